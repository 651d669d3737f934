"""What could be written next at a place in a JSON text: continuations with their chances (SYSTEM.md G3)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .constraint import GrammarCursor
from .hints import UNKNOWN, Hint, Hints
from .machine import ARRAY, COLON, COMMA, END, KEY_NAME, LITERAL, NUMBER, OBJECT, START, STRING, VALUE_START
from .values import Conversation

PRIORS: Final[Mapping[str, float]] = {
    "open": 0.97, "close": 0.6, "more": 0.4, "next": 0.97, "item": 0.5, "end": 0.6, "key0": 0.6, "key1": 0.2,
    "key2": 0.1, "number0": 0.65, "number1": 0.15, "number2": 0.08, "number3": 0.05, "digits": 0.7,
    "string0": 0.35, "string1": 0.15, "string2": 0.1, "string3": 0.06, "copy0": 0.6, "copy1": 0.15, "copy2": 0.08,
    "choice0": 0.55, "choice1": 0.25, "choice2": 0.12, "choice3": 0.06, "bool0": 0.7, "bool1": 0.3, "null": 0.1,
    "default": 0.15, "example0": 0.15, "example1": 0.08, "earlier0": 0.4, "earlier1": 0.15, "stop": 0.35,
    "tool0": 0.75, "tool1": 0.15, "tool2": 0.05, "within": 0.93, "tail": 0.6, "space": 0.3,
    "full": 0.7,
}  # fmt: skip
"""Chance that a guess of each kind is right, before anything is learned."""


ENDINGS: Final = frozenset({"close", "more", "next", "item", "tail"})
"""Kinds that end a value: any token that begins the text will do."""


class Guess(NamedTuple):
    """Text that may follow, and its kind; ``boundary``: guess what ends the value too.

    ``context``: what kind of value this ends, where endings are judged apart.
    """

    text: str
    kind: str
    boundary: bool = True
    context: str = ""


@dataclass
class Earlier:
    """Arguments and tools of earlier calls in this session, the latest first, bounded."""

    values: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    tools: list[str] = field(default_factory=list)
    _limit: int = 64

    def note(self, tool: str, arguments: Mapping[str, object]) -> None:
        """Remember a finished call."""
        self.tools = [*self.tools, tool][-self._limit :]
        for key, value in arguments.items():
            text = json.dumps(value, ensure_ascii=False)
            if len(text) <= 400:
                known = self.values.setdefault((tool, key), [])
                if text in known:
                    known.remove(text)
                known.insert(0, text)
                del known[4:]
        while len(self.values) > 8 * self._limit:
            self.values.pop(next(iter(self.values)))

    def following(self) -> list[str]:
        """Tools that came after the last one used before, likeliest first (G7)."""
        if not self.tools:
            return []
        last = self.tools[-1]
        counts: dict[str, int] = {}
        for before, after in zip(self.tools, self.tools[1:], strict=False):
            if before == last:
                counts[after] = counts.get(after, 0) + 1
        return sorted(counts, key=lambda tool: -counts[tool])


class Place(NamedTuple):
    """Where a cursor stands: the tool, the path inside its arguments, what is known of the value."""

    tool: str
    path: tuple[str | int, ...]
    hint: Hint
    used: tuple[str, ...]


class Proposer:
    """Guesses at one reply."""

    def __init__(self, conversation: Conversation, earlier: Earlier, hints: Mapping[str, Hints]) -> None:
        self.conversation = conversation
        self.earlier = earlier
        self.hints = hints
        self._choices: dict[tuple[str, ...], list[str]] = {}

    def place(self, cursor: GrammarCursor) -> Place:
        """Tool, path and hint at a cursor."""
        path = cursor.scan.path
        if "" in self.hints:
            return Place("", path, self.hints[""].at(path), _used(cursor.text))
        tool = _tool_of(cursor.text, self.hints)
        if path and path[0] in ("arguments", "parameters"):
            path = path[1:]
        hint = self.hints[tool].at(path) if tool in self.hints else UNKNOWN
        return Place(tool, path, hint, _used(cursor.text))

    def guesses(self, cursor: GrammarCursor) -> Iterator[Guess]:
        """Continuations at a cursor, likeliest kinds first within each."""
        name = cursor.scan.name
        place = self.place(cursor)
        if name in (VALUE_START, COLON, ARRAY):
            yield from self._value(place, place.hint, _lead(cursor))
        elif name == STRING:
            yield from self._string(cursor, place)
        elif name == NUMBER:
            yield from self._number(cursor, place)
        elif name == LITERAL:
            begun = cursor.scan.piece.decode()
            yield from (Guess(w[len(begun) :], "within") for w in ("true", "false", "null") if w.startswith(begun))
        elif name in (KEY_NAME, OBJECT):
            yield from self._key(cursor, place)
        elif name in (COMMA, END, START):
            yield from self._structure(cursor)

    def _structure(self, cursor: GrammarCursor) -> Iterator[Guess]:
        tail = _tail(cursor)
        if cursor.scan.name == COMMA:
            if tail[:1] in ("}", "]"):
                yield Guess(tail, "close", False)
                yield Guess(', "', "more", False)
            else:
                yield Guess(tail, "next", False)
        elif tail:
            yield Guess(tail, "tail", False)

    def _key(self, cursor: GrammarCursor, place: Place) -> Iterator[Guess]:
        begun = cursor.scan.piece.decode("utf-8", "ignore")
        parent = self._parent(place)
        order = parent.key_places
        first = max((order[key] for key in _keys_of(cursor) if key in order), default=-1) + 1
        ahead: list[str] = []
        for key in parent.key_texts[first:]:
            # Keys come in the schema's order, so none is reached past a required one.
            if key.startswith(begun):
                ahead.append(key)
                if len(ahead) == 3 or key in parent.required_texts:
                    break
        for rank, key in enumerate(ahead):
            yield Guess(key[len(begun) :] + ":", f"key{rank}", False)
        if cursor.scan.name == OBJECT and not parent.required:
            yield Guess("}", "close", False)

    def _parent(self, place: Place) -> Hint:
        hints = self.hints.get(place.tool)
        return UNKNOWN if hints is None else hints.at(place.path[:-1])

    def _value(self, place: Place, hint: Hint, lead: str) -> Iterator[Guess]:
        """At the start of a value: its opening if it is text or a container, else the whole value."""
        for rank, text in enumerate(self.earlier.values.get((place.tool, _key_of(place)), ())[:2]):
            yield Guess(lead + text, f"earlier{rank}")
        if hint.choices:
            yield from (Guess(lead + c, f"choice{min(r, 3)}") for r, c in enumerate(self._ranked(hint)[:4]))
            return
        if hint.may_be("string") and hint.types[:1] != ("null",):
            yield Guess(lead + '"', "open", False)
        if lead and (hint.may_be("number") or hint.may_be("boolean")):
            yield Guess(lead, "space", False)
        if hint.may_be("number"):
            for rank, text in enumerate(self._numbers(place, hint)[:4]):
                yield Guess(lead + text, f"number{rank}")
        if hint.may_be("boolean"):
            order = ("false", "true") if hint.default in ("false", "False") else ("true", "false")
            yield from (Guess(lead + text, f"bool{rank}") for rank, text in enumerate(order))
        if hint.may_be("array") and hint.types:
            yield Guess(lead + "[" + _opening(hint.item or UNKNOWN), "open", False)
        if hint.may_be("object") and hint.types:
            yield Guess(lead + "{", "open", False)
        if "null" in hint.types:
            yield Guess(lead + "null", "null")

    def _numbers(self, place: Place, hint: Hint) -> list[str]:
        found = self.conversation.numbers_for(hint, place.used)
        if hint.default is not None and hint.default not in found and hint.default[:1] in "-0123456789":
            found.insert(2, hint.default)
        return found

    def _ranked(self, hint: Hint) -> list[str]:
        """Choices, those the conversation names first."""
        known = self._choices.get(hint.choices)
        if known is None:
            latest = self.conversation.segments[0].lower() if self.conversation.segments else ""
            default = (hint.default or "").strip('"')

            def score(choice: str) -> tuple[bool, bool]:
                bare = choice.strip('"')
                return bare.lower() not in latest, bare != default

            known = self._choices[hint.choices] = sorted(hint.choices, key=score)
        return known

    def _number(self, cursor: GrammarCursor, place: Place) -> Iterator[Guess]:
        begun = cursor.scan.piece.decode()
        rank = 0
        for text in self._numbers(place, place.hint):
            if text.startswith(begun) and text != begun:
                yield Guess(text[len(begun) :], "digits" if rank == 0 else "number3")
                rank += 1
        yield Guess("", "end")

    def _string(self, cursor: GrammarCursor, place: Place) -> Iterator[Guess]:
        if place.path[-1:] == ("name",) and not place.tool and "" not in self.hints:
            yield from self._tools(cursor)
            return
        begun = cursor.scan.piece[1:].decode("utf-8", "ignore")
        quoted = [c for c in self._ranked(place.hint) if c.startswith('"' + begun)]
        if place.hint.choices:
            yield from (Guess(c[1 + len(begun) : -1], f"choice{min(r, 3)}") for r, c in enumerate(quoted[:4]))
            return
        seen: set[str] = set()
        for guess in self._texts(begun, place):
            if guess.text not in seen:
                seen.add(guess.text)
                yield guess

    def _texts(self, begun: str, place: Place) -> Iterator[Guess]:
        earlier = [t[1:-1] for t in self.earlier.values.get((place.tool, _key_of(place)), ()) if t.startswith('"')]
        for rank, text in enumerate(t for t in earlier[:2] if t.startswith(begun)):
            yield Guess(text[len(begun) :], f"earlier{rank}")
        rank = 0
        candidates = self.conversation.strings_for(place.hint, place.used)
        if begun in candidates:
            yield Guess("", "full")
        for text in candidates:
            escaped = json.dumps(text, ensure_ascii=False)[1:-1]
            if escaped.startswith(begun) and escaped != begun:
                yield Guess(escaped[len(begun) :], f"string{min(rank, 3)}" if not begun else f"copy{min(rank, 2)}")
                rank += 1
        if begun:
            for place_rank, rest in enumerate(self.conversation.after(begun)):
                if rest and '"' not in rest and "\\" not in rest:
                    yield Guess(rest, f"copy{min(place_rank, 2)}")
            yield Guess("", "stop")
        for rank, text in enumerate(e for e in place.hint.examples[:2] if e.startswith(begun) and e != begun):
            yield Guess(json.dumps(text, ensure_ascii=False)[1:-1][len(begun) :], f"example{rank}")

    def _tools(self, cursor: GrammarCursor) -> Iterator[Guess]:
        begun = cursor.scan.piece[1:].decode("utf-8", "ignore")
        names = [name for name in self.hints if name.startswith(begun)]
        follow = self.earlier.following()

        def score(name: str) -> tuple[int, int]:
            words = self.hints[name].at(()).words | _words(name)
            return -(follow.index(name) if name in follow else 99), self.conversation.mentions(words)

        for rank, name in enumerate(sorted(names, key=score, reverse=True)[:3]):
            yield Guess(name[len(begun) :], f"tool{rank}")


def _words(name: str) -> frozenset[str]:
    from .hints import words_of

    return words_of(name)


def _opening(item: Hint) -> str:
    if item.choices:
        return '"' if item.choices[0].startswith('"') else ""
    return '"' if item.types == ("string",) else '{"' if item.types == ("object",) else ""


def _key_of(place: Place) -> str:
    return "/".join("*" if isinstance(part, int) else part for part in place.path)


def _tail(cursor: GrammarCursor) -> str:
    tail = cursor.plan.tail(cursor.text)
    return "" if tail is None else tail.decode("utf-8", "replace")


def _lead(cursor: GrammarCursor) -> str:
    """What stands between here and the first byte of the value."""
    tail = _tail(cursor)
    at = 0
    while at < len(tail) and tail[at] in " :":
        at += 1
    return tail[:at]


def _tool_of(text: bytes, hints: Mapping[str, Hints]) -> str:
    """The tool whose arguments are being written: the last name that was finished."""
    best, where = "", -1
    for name in hints:
        for mark in (f'"{name}", "', f"{name}[ARGS]"):
            at = text.rfind(mark.encode())
            if at > where:
                best, where = name, at
    if where < 0 and len(hints) == 1 and b'"arguments"' in text:
        return next(iter(hints))
    return best


def _used(text: bytes) -> tuple[str, ...]:
    """Scalars written so far in the last call."""
    import re

    decoded = text.decode("utf-8", "ignore")
    start = max(decoded.rfind('"arguments": '), decoded.rfind('"parameters": '), 0)
    found = re.findall(r'[:\[,] ?("(?:[^"\\]|\\.)*"|-?[\d.eE+-]+)', decoded[start:])
    return tuple(value.strip('"') for value in found)


def _keys_of(cursor: GrammarCursor) -> list[str]:
    """Quoted names that the object being written has already."""
    text = cursor.text.decode("utf-8", "ignore")
    depth, end = 0, len(text)
    start = 0
    for at in range(end - 1, -1, -1):
        if text[at] in "}]":
            depth += 1
        elif text[at] in "{[":
            if depth == 0:
                start = at
                break
            depth -= 1
    import re

    return re.findall(r'[{,] ?("(?:[^"\\]|\\.)*"):', text[start:])
