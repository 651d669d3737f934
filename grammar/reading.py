"""From a reply's text back to tool calls: whole, and piece by piece while it is written (SYSTEM.md G4)."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .families import Family
from .machine import END, JsonState


class ToolCall(NamedTuple):
    """A call: ``arguments`` as a dict, ``arguments_text`` as it was written."""

    id: str
    name: str
    arguments: dict[str, Any]
    arguments_text: str


@dataclass(frozen=True)
class CallDelta:
    """A piece of call ``index``: id and name come first and once, then pieces of its arguments."""

    index: int
    id: str | None
    name: str | None
    arguments: str


class ReadReply(NamedTuple):
    """What a reply holds: text outside calls, and the calls in order."""

    content: str
    calls: tuple[ToolCall, ...]


@dataclass
class CallReader:
    """Reads a reply as it grows. ``feed`` returns what became certain; ``reply`` is all of it."""

    family: Family
    names: Sequence[str]
    reasoning: tuple[str, str] | None = None
    reasoning_open: bool = False
    _text: str = ""
    _calls: list[_Open] = field(default_factory=list)
    _content: list[str] = field(default_factory=list)
    _thinking: bool = False
    _began: bool = False

    def __post_init__(self) -> None:
        self._thinking = self.reasoning is not None and self.reasoning_open
        head = re.escape(self.family.head).replace("%NAME%", r"(?P<name>(?:[^\"\\\[\]]|\\.)+?)")
        self._head = re.compile(head)

    def feed(self, text: str) -> list[str | CallDelta]:
        """Pieces of plain text and of calls that ``text`` makes certain, in order."""
        self._text += text
        pieces: list[str | CallDelta] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[str | CallDelta]:
        """What was held back because it might have become a call."""
        self._eat_tail()
        rest, self._text = self._text, ""
        if self._open is not None or (self._calls and not rest.strip()):
            return []
        if self._calls:
            rest = self._without_markup(rest)
        return self._say(rest) if rest else []

    @property
    def reply(self) -> ReadReply:
        """Everything read so far; unfinished calls are left out."""
        done = tuple(call.whole() for call in self._calls if call.complete)
        return ReadReply("".join(self._content).strip() if done else "".join(self._content), done)

    @property
    def _open(self) -> _Open | None:
        return self._calls[-1] if self._calls and not self._calls[-1].complete else None

    def _step(self, pieces: list[str | CallDelta]) -> bool:
        if self._open is not None:
            return self._continue(self._open, pieces)
        self._eat_tail()
        if self._thinking or self._opens_reasoning():
            return self._think(pieces)
        found = self._head.search(self._text)
        if found and (found["name"] in self.names or self._calls):
            before = self._without_markup(self._text[: found.start()])
            if before and not self._calls:
                pieces += self._say(before)
            call = _Open("call_" + uuid.uuid4().hex[:24], json.loads(f'"{found["name"]}"'), self.family.tail)
            self._calls.append(call)
            pieces.append(CallDelta(len(self._calls) - 1, call.id, call.name, ""))
            self._text = self._text[found.end() :]
            return True
        if self._calls:
            return False
        safe = self._safe_length()
        if safe:
            pieces += self._say(self._text[:safe])
            self._text = self._text[safe:]
        return False

    def _eat_tail(self) -> None:
        """The text that closes a call after its arguments says nothing."""
        if self._calls:
            call = self._calls[-1]
            while call.tail and self._text.startswith(call.tail[0]):
                call.tail, self._text = call.tail[1:], self._text[1:]

    def _opens_reasoning(self) -> bool:
        if self.reasoning is None or self._began or not self._text.lstrip():
            return False
        return self._text.lstrip().startswith(self.reasoning[0])

    def _think(self, pieces: list[str | CallDelta]) -> bool:
        assert self.reasoning is not None
        self._thinking = self._began = True
        end = self._text.find(self.reasoning[1])
        if end < 0:
            return False
        end += len(self.reasoning[1])
        pieces += self._say(self._text[:end])
        self._text, self._thinking = self._text[end:], False
        return True

    def _continue(self, call: _Open, pieces: list[str | CallDelta]) -> bool:
        data = self._text.encode()
        end = call.take(data)
        piece = data[:end].decode()
        self._text = data[end:].decode()
        if piece:
            pieces.append(CallDelta(len(self._calls) - 1, None, None, piece))
        return call.complete

    def _say(self, text: str) -> list[str | CallDelta]:
        self._began = self._began or bool(text.strip())
        self._content.append(text)
        return [text]

    def _safe_length(self) -> int:
        """Characters that cannot become the start of a call any more."""
        trigger = self.family.trigger
        found = self._text.find(trigger)
        if found >= 0:
            return found
        for overlap in range(min(len(trigger) - 1, len(self._text)), 0, -1):
            if self._text.endswith(trigger[:overlap]):
                return len(self._text) - overlap
        return len(self._text)

    def _without_markup(self, text: str) -> str:
        for mark in (self.family.opener, self.family.closer, self.family.between, *self.family.controls):
            text = text.replace(mark, "") if mark.strip() else text
        return text


@dataclass
class _Open:
    id: str
    name: str
    tail: str
    state: JsonState = field(default_factory=JsonState)
    written: bytes = b""

    @property
    def complete(self) -> bool:
        return self.state.name == END

    def take(self, data: bytes) -> int:
        """How many bytes belong to the arguments."""
        for at in range(len(data)):
            self.state = self.state.feed(data[at : at + 1])
            if self.state.name == END:
                self.written += data[: at + 1]
                return at + 1
        self.written += data
        return len(data)

    def whole(self) -> ToolCall:
        text = self.written.decode()
        return ToolCall(self.id, self.name, json.loads(text), text)


def read_reply(reader: CallReader, text: str) -> ReadReply:
    """A finished reply, read at once."""
    reader.feed(text)
    reader.finish()
    return reader.reply


def deltas(pieces: Sequence[str | CallDelta]) -> Iterator[CallDelta]:
    """The call pieces among ``pieces``."""
    return (piece for piece in pieces if isinstance(piece, CallDelta))
