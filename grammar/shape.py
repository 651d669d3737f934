"""The shape of a reply as a tree of nodes that can finish any text begun under it.

A node answers one question: given the bytes written so far, where does its text end, or, if they run out
inside it, what is a short suffix that completes it. Text may fit several ways at once (branches of a union):
the next token may rule out all but the dearest, so the longest of their suffixes is answered too. llguidance
alone decides what is legal; a proposed suffix is verified against it before anything depends on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, Protocol

from .regex import Automaton


class Reading(NamedTuple):
    """``end``: where the node's text may stop; ``tail``: a suffix that completes it where the data ran out.

    ``dearest``: the longest suffix of the ways the text may be meant (None: there is one way, ``tail``); ``plain``:
    the text stopped inside a string where a character that needs no escape lengthens none of these suffixes.
    """

    end: int | None
    tail: bytes | None
    dearest: bytes | None = None
    plain: bool = False

    @property
    def longest(self) -> bytes:
        """The longest of the suffixes; only where there is a ``tail``."""
        assert self.tail is not None
        return self.tail if self.dearest is None else self.dearest

    def then(self, rest: bytes | None) -> Reading:
        """This reading, its text not ended, with ``rest`` behind it."""
        if self.tail is None or rest is None:
            return FAILED
        return Reading(None, self.tail + rest, None if self.dearest is None else self.dearest + rest, self.plain)


FAILED = Reading(None, None)


def either(readings: Sequence[Reading]) -> Reading:
    """What is known where a text may be read in any of several ways."""
    if len(readings) == 1:
        return readings[0]
    end = max((r.end for r in readings if r.end is not None), default=None)
    alive = [r for r in readings if r.tail is not None]
    if not alive:
        return FAILED if end is None else Reading(end, None)
    tail = min((r.tail for r in alive if r.tail is not None), key=len)
    return Reading(end, tail, max((r.longest for r in alive), key=len), all(r.plain for r in alive))


_SEALED = "_shortest_text"
_AFTER_ALL: Final = b"\xff"
"""Sorts behind every continuation of a UTF-8 text."""

_MOST_COMPARED: Final = 64
_WORKED_OUT: Final = frozenset({"_endings", "_closings", "_nexts"})
"""What nodes keep that follows from the shortest texts of their parts."""


class Node(Protocol):
    """A part of a reply."""

    def read(self, data: bytes, at: int) -> Reading:
        """How ``data[at:]`` begins this node's text."""
        ...


def literal_read(text: bytes, data: bytes, at: int) -> Reading:
    """Reading of a fixed text. It is its own ``dearest``: in other tokens than the usual it may take more of them."""
    rest = data[at : at + len(text)]
    if rest == text:
        return Reading(at + len(text), b"" if at + len(text) == len(data) else None)
    if len(rest) < len(text) and text.startswith(rest):
        return Reading(None, text[len(rest) :], text[len(rest) :], True)
    return FAILED


@dataclass(frozen=True)
class Literal:
    """A fixed text."""

    text: bytes

    def read(self, data: bytes, at: int) -> Reading:
        return literal_read(self.text, data, at)


@dataclass(frozen=True)
class OneOf:
    """One of many fixed texts (an enum); ``texts`` sorted."""

    texts: tuple[bytes, ...]

    @cached_property
    def _known(self) -> frozenset[bytes]:
        return frozenset(self.texts)

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(sorted({len(t) for t in self.texts}))

    @cached_property
    def _shortest(self) -> bytes:
        return min(self.texts, key=len)

    def read(self, data: bytes, at: int) -> Reading:
        rest = data[at:]
        if not rest:
            return Reading(None, self._shortest)
        end = next(
            (at + n for n in reversed(self._lengths) if data[at : at + n] in self._known and at + n <= len(data)), None
        )
        first, last = bisect_left(self.texts, rest), bisect_left(self.texts, rest + _AFTER_ALL)
        if first == last:
            return Reading(end, None)
        if last - first > _MOST_COMPARED:
            return Reading(end, self._shortest_from(first, last)[len(rest) :], self._longest[len(rest) :], True)
        begun = self.texts[first:last]
        return Reading(end, min(begun, key=len)[len(rest) :], max(begun, key=len)[len(rest) :], True)

    @cached_property
    def _longest(self) -> bytes:
        return max(self.texts, key=len)

    @cached_property
    def _found(self) -> dict[tuple[int, int], bytes]:
        return {}

    def _shortest_from(self, first: int, last: int) -> bytes:
        known = self._found.get((first, last))
        if known is None:
            known = self._found[first, last] = min(self.texts[first:last], key=len)
        return known


@dataclass(frozen=True)
class Pattern:
    """Free text under a regular expression that has to match as a whole."""

    automaton: Automaton

    def read(self, data: bytes, at: int) -> Reading:
        text = data[at:].decode("utf-8", "ignore")
        more = self.automaton.finish(text)
        return FAILED if more is None else Reading(len(data) if more == "" else None, more.encode())


@dataclass(frozen=True)
class Until:
    """Any text up to and including ``stop``."""

    stop: bytes

    def read(self, data: bytes, at: int) -> Reading:
        found = data.find(self.stop, at)
        if found >= 0:
            end = found + len(self.stop)
            return Reading(end, b"" if end == len(data) else None)
        for overlap in range(min(len(self.stop) - 1, len(data) - at), 0, -1):
            if data.endswith(self.stop[:overlap]):
                return Reading(None, self.stop[overlap:])
        return Reading(None, mended(data[at:]) + self.stop, None, True)


@dataclass(frozen=True)
class Choice:
    """One of several nodes."""

    options: tuple[Node, ...]

    def read(self, data: bytes, at: int) -> Reading:
        return either([option.read(data, at) for option in self.options]) if self.options else FAILED


@dataclass(frozen=True)
class Sequence_:
    """Nodes one after another."""

    parts: tuple[Node, ...]

    def read(self, data: bytes, at: int) -> Reading:
        return self._from(0, data, at)

    def _from(self, index: int, data: bytes, at: int) -> Reading:
        if index == len(self.parts):
            return Reading(at, b"" if at == len(data) else None)
        reading = self.parts[index].read(data, at)
        ways = []
        if reading.tail is not None:
            ways.append(reading.then(shortest_of(self.parts[index + 1 :])))
        if reading.end is not None:
            # A part that may stop here may often go on as well: both ways are followed.
            ways.append(self._from(index + 1, data, reading.end))
        return either(ways) if ways else FAILED


@dataclass(frozen=True)
class Repeat:
    """A node ``least`` to ``most`` times with a separator between."""

    item: Node
    separator: bytes
    least: int
    most: int | None

    def read(self, data: bytes, at: int) -> Reading:
        count = 0
        while True:
            end = at if count >= self.least else None
            if at == len(data):
                return Reading(end, self._rest(count))
            if self.most is not None and count >= self.most:
                return Reading(at, None)
            start = at
            if count:
                between = literal_read(self.separator, data, at)
                if between.end is None:
                    item = shortest(self.item)
                    rest = self._rest(count + 1)
                    return between.then(None if item is None or rest is None else item + rest)._replace(end=end)
                start = between.end
            reading = self.item.read(data, start)
            if reading.end is None:
                return reading.then(self._rest(count + 1))._replace(end=end)
            at, count = reading.end, count + 1

    def _rest(self, count: int) -> bytes | None:
        if count >= self.least:
            return b""
        item = shortest(self.item)
        missing = self.least - count
        return None if item is None else (self.separator if count else b"") + self.separator.join([item] * missing)


@dataclass
class Reference:
    """A node defined elsewhere, possibly around this one; ``known`` is its shortest text once found."""

    name: str
    target: Node | None = None
    known: bytes | None = None
    _read: bytes = field(default=b"", repr=False, compare=False)
    _readings: dict[int, Reading] = field(default_factory=dict, repr=False, compare=False)

    def read(self, data: bytes, at: int) -> Reading:
        if at == len(data):
            return Reading(None, self.known)
        assert self.target is not None
        if self._read is not data:
            self._read, self._readings = data, {}
        known = self._readings.get(at)
        if known is None:
            # Branches of nested unions come here again and again: each place is read once.
            known = self._readings[at] = self.target.read(data, at)
        return known


def shortest(node: Node) -> bytes | None:
    """The shortest whole text of a node, None if it has no finite one."""
    known: Node | bytes | None = node.__dict__.get(_SEALED, node)
    return known if known is None or isinstance(known, bytes) else node.read(b"", 0).tail


def shortest_of(nodes: Sequence[Node]) -> bytes | None:
    """The shortest text of several nodes in a row."""
    texts = [shortest(node) for node in nodes]
    return None if any(t is None for t in texts) else b"".join(t for t in texts if t is not None)


def children(node: Node) -> Iterator[Node]:
    """Direct parts of a node, a reference's target among them."""
    for value in list(vars(node).values()):
        yield from _nodes(value)


def _nodes(value: object) -> Iterator[Node]:
    if hasattr(value, "read"):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _nodes(part)


def walk(node: Node) -> Iterator[Node]:
    """A node and all its parts, through references, each once."""
    seen, todo = set(), [node]
    while todo:
        here = todo.pop()
        if id(here) not in seen:
            seen.add(id(here))
            yield here
            todo.extend(children(here))


def flattened(choice: Choice, named: dict[int, Reference]) -> tuple[Node, ...]:
    """The options of a choice without choices among them, directly or by reference, each once.

    What was reached by reference stays behind one (``named``: by the node it leads to), or nodes would contain
    themselves.
    """
    found: dict[int, Node] = {}
    seen: set[int] = set()
    todo: list[tuple[Node, bool]] = [(option, False) for option in reversed(choice.options)]
    while todo:
        option, referred = todo.pop()
        if id(option) in seen:
            continue
        seen.add(id(option))
        if isinstance(option, Choice):
            todo.extend((inner, referred) for inner in reversed(option.options))
        elif isinstance(option, Reference) and option.target is not None:
            todo.append((option.target, True))
        elif referred:
            found[id(option)] = named.setdefault(id(option), Reference(f"option {len(named)}", option))
        else:
            found[id(option)] = option
    return tuple(found.values())


def settle(root: Node) -> None:
    """Find the shortest texts of mutually recursive nodes, by fixed point, and note them in every node.

    Unions are flattened first: one that refers to itself says nothing by it, and could not be read.
    """
    named: dict[int, Reference] = {}
    flat = [(node, flattened(node, named)) for node in walk(root) if isinstance(node, Choice)]
    for choice, options in flat:
        object.__setattr__(choice, "options", options)
    nodes = list(walk(root))
    references = [node for node in nodes if isinstance(node, Reference)]
    for node in nodes:
        if isinstance(node, Reference):
            node.known = None
    changed = True
    while changed:
        changed = False
        for node in nodes:
            _forget(node)
        for reference in references:
            assert reference.target is not None
            text = shortest(reference.target)
            if text is not None and (reference.known is None or len(text) < len(reference.known)):
                reference.known, changed = text, True
    for node in nodes:
        _forget(node)
    for node in reversed(nodes):
        node.__dict__[_SEALED] = node.read(b"", 0).tail


def _forget(node: Node) -> None:
    for key in [_SEALED, *(key for key in vars(node) if key in _WORKED_OUT)]:
        node.__dict__.pop(key, None)


def mended(content: bytes) -> bytes:
    """What an open string needs before it can be closed: the rest of an escape or of a character."""
    tail = content[-4:]
    for back in range(1, min(3, len(tail)) + 1):
        lead = tail[-back]
        if lead >= 0xC0:
            need = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
            missing = need - (back - 1)
            if missing > 0:
                filler = b"\x80" * missing
                if back == 1 and lead in (0xE0, 0xF0):
                    filler = (b"\xa0" if lead == 0xE0 else b"\x90") + filler[1:]
                return filler
            break
        if lead < 0x80:
            break
    run = len(content) - len(content.rstrip(b"\\"))
    return b"n" if run % 2 else b""
