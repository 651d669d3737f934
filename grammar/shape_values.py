"""JSON values without a schema of their parts, as shape nodes: strings, numbers, anything (SYSTEM.md G5)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from .machine import ARRAY, COLON, COMMA, END, KEY_NAME, LITERAL, NUMBER, OBJECT, START, STRING, VALUE_START, JsonState
from .numbers import NumberRange
from .regex import Automaton
from .shape import FAILED, Reading, mended


@dataclass(frozen=True)
class String:
    """A JSON string, by length or by expression (of its decoded content)."""

    least: int = 0
    most: int | None = None
    pattern: Automaton | None = None

    def read(self, data: bytes, at: int) -> Reading:
        if at == len(data):
            return self._finish(b"", b'"')
        if data[at] != 0x22:
            return FAILED
        close = closing_quote(data, at + 1)
        if close is not None:
            if not self._fits(data[at + 1 : close]):
                return FAILED
            return Reading(close + 1, b"" if close + 1 == len(data) else None)
        return self._finish(data[at + 1 :], b"")

    def _fits(self, content: bytes) -> bool:
        count = _length(content)
        if count < self.least or (self.most is not None and count > self.most):
            return False
        return self.pattern is None or self.pattern.matches(decoded(content))

    def _finish(self, content: bytes, before: bytes) -> Reading:
        mend = mended(content)
        text = decoded(content + mend)
        count = len(text)
        if self.most is not None and count > self.most:
            return FAILED
        need = max(0, self.least - count)
        if self.pattern is None:
            return Reading(None, before + mend + b"a" * need + b'"', None, not before)
        more = self.pattern.finish(text, need, None if self.most is None else self.most - count)
        return FAILED if more is None else Reading(None, before + mend + quoted(more)[1:])


_LENIENT: Final = json.JSONDecoder(strict=False)
"""Made once: a mask near the end of a budget reads dozens of texts."""

_NUMBER_STARTS: Final = frozenset(bytes([byte]) for byte in b"-0123456789")


@dataclass(frozen=True)
class Number:
    """A JSON number in a range."""

    range: NumberRange

    def read(self, data: bytes, at: int) -> Reading:
        end = at
        while end < len(data) and data[end] in b"0123456789.eE+-":
            end += 1
        if end < len(data):
            fits = end > at and self.range.admits(data[at:end].decode())
            return Reading(end, None) if fits else FAILED
        more = self.range.finish(data[at:].decode())
        if more is None:
            return FAILED
        return Reading(end if more == "" else None, more.encode())


@dataclass(frozen=True)
class Anything:
    """Any JSON value."""

    separators: tuple[bytes, bytes]

    def read(self, data: bytes, at: int) -> Reading:
        state = JsonState().feed(data[at:])
        if state.name == END:
            end = _json_end(data, at)
            return Reading(end, b"" if end == len(data) else None)
        tail = self._close(state, data[at:])
        plain = state.name in (STRING, KEY_NAME) and state.piece[:1] == b'"'
        return Reading(len(data) if tail == b"" else None, tail, None, plain)

    def _close(self, state: JsonState, written: bytes) -> bytes | None:
        """What finishes a value from its state; None for text that begins no value."""
        closers = b""
        frame = state.frame
        while frame is not None:
            closers += b"}" if frame.is_object else b"]"
            frame = frame.parent
        name, colon = state.name, self.separators[1]
        if name in (KEY_NAME, STRING) and state.piece[:1] == b'"':
            value = colon + b"0" if name == KEY_NAME else b""
            return mended(state.piece[1:]) + b'"' + value + closers
        if name == NUMBER:
            return (NumberRange().finish(state.piece.decode()) or "").encode() + closers
        if name == LITERAL:
            word = next((w for w in (b"true", b"false", b"null") if w.startswith(state.piece)), None)
            return None if word is None else word[len(state.piece) :] + closers
        if name in (KEY_NAME, VALUE_START):  # behind a separator, or a part of one
            return self._rest_of_separator(written) + (b'"a"' + colon + b"0" if name == KEY_NAME else b"0") + closers
        return {COLON: colon + b"0", START: b"0", ARRAY: b"", OBJECT: b"", COMMA: b""}[name] + closers

    def _rest_of_separator(self, written: bytes) -> bytes:
        """What is missing of the separator that ``written`` ends with."""
        for separator in self.separators:
            for end in range(1, len(separator) + 1):
                if written.endswith(separator[:end]):
                    return separator[end:]
        return b""


def closing_quote(data: bytes, at: int) -> int | None:
    """Index of the quote that closes a string whose content begins at ``at``; None while it is open."""
    while (quote := data.find(b'"', at)) >= 0:
        back = quote
        while back > at and data[back - 1] == 0x5C:
            back -= 1
        if (quote - back) % 2 == 0:
            return quote
        at = quote + 1
    return None


def _json_end(data: bytes, at: int) -> int:
    low, high = at, len(data)
    while low < high:
        middle = (low + high) // 2
        if JsonState().feed(data[at:middle]).name == END:
            high = middle
        else:
            low = middle + 1
    # A number is known to have ended only by the byte behind it.
    return low - 1 if data[at : at + 1] in _NUMBER_STARTS else low


def _length(content: bytes) -> int:
    """Code points of raw JSON string content."""
    if b"\\" not in content:
        return len(content.decode("utf-8", "ignore"))
    return len(decoded(content))


def decoded(content: bytes) -> str:
    """The text of raw JSON string content."""
    text = content.decode("utf-8", "ignore")
    if "\\" not in text:
        return text
    try:
        return str(_LENIENT.decode(f'"{text}"'))
    except ValueError:
        return text


def quoted(text: str) -> bytes:
    """A text as a JSON string."""
    return json.dumps(text, ensure_ascii=False).encode()
