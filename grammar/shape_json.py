"""Objects and arrays as shape nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from .regex import Automaton
from .shape import FAILED, Node, Reading, either, literal_read, mended, shortest
from .shape_values import closing_quote, decoded, quoted

_MOST_MARKS: Final = 2048
_MOST_NEXT: Final = 64
"""Members looked at for the cheapest one that may come next."""


class Member(NamedTuple):
    """A declared property: its quoted name, its value, whether it must be there."""

    name: bytes
    value: Node
    required: bool


class Free(NamedTuple):
    """Properties that are not declared: names by an expression (None: all that no expression matches)."""

    names: Automaton | None
    value: Node


class _Marks:
    """How far a text was read, by where its container began and how many parts it had.

    A reply is read again after every token. A mark includes the separator behind the last part: what comes
    before it stands, whatever follows.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[bytes, int]] = {}

    def note(self, start: int, count: int, text: bytes, index: int) -> None:
        """``text`` was read up to a separator; the next part is number ``index``."""
        if len(self._known) > _MOST_MARKS:
            self._known.clear()
        self._known[start, count] = (text, index)

    def furthest(self, data: bytes, start: int) -> tuple[int, int, int]:
        """(at, index, count) of the furthest mark that ``data`` begins with, else of the opening's end."""
        found, count = (start + 1, 0, 0), 1
        while (mark := self._known.get((start, count))) is not None and data.startswith(mark[0]):
            found = len(mark[0]), mark[1], count
            count += 1
        return found


@dataclass(frozen=True)
class Object:
    """A JSON object as the engine writes it: declared members in their order, then names by expression, then free.

    A required member cannot be passed over, and a declared name is never free. ``taken``: quoted names that are
    declared but have no member since nothing fits them.
    """

    members: tuple[Member, ...]
    free: tuple[Free, ...]
    separators: tuple[bytes, bytes]
    least: int = 0
    most: int | None = None
    taken: frozenset[bytes] = frozenset()

    @cached_property
    def _index(self) -> dict[bytes, int]:
        return {member.name: i for i, member in enumerate(self.members)}

    @cached_property
    def _next_required(self) -> tuple[int, ...]:
        nexts = [len(self.members)] * (len(self.members) + 2)
        for i in range(len(self.members) - 1, -1, -1):
            nexts[i] = i if self.members[i].required else nexts[i + 1]
        return tuple(nexts)

    @cached_property
    def _required_from(self) -> tuple[int, ...]:
        """Per index how many required members stand there or later."""
        counts = [0] * (len(self.members) + 2)
        for i in range(len(self.members) - 1, -1, -1):
            counts[i] = counts[i + 1] + self.members[i].required
        return tuple(counts)

    @cached_property
    def _endings(self) -> tuple[bytes | None, ...]:
        """Per index the separated required members from there on."""
        endings: list[bytes | None] = [b""] * (len(self.members) + 2)
        for i in range(len(self.members) - 1, -1, -1):
            after = endings[i + 1]
            if self.members[i].required:
                text = self._member_text(i)
                after = None if after is None or text is None else self.separators[0] + text + after
            endings[i] = after
        return tuple(endings)

    @cached_property
    def _marks(self) -> _Marks:
        return _Marks()

    def _member_text(self, index: int) -> bytes | None:
        member = self.members[index]
        value = shortest(member.value)
        return None if value is None else member.name + self.separators[1] + value

    def read(self, data: bytes, at: int) -> Reading:
        if at == len(data):
            rest = self._finish(0, 0)
            return Reading(None, None if rest is None else b"{" + rest)
        if data[at] != 0x7B:
            return FAILED
        start = at
        at, index, count = self._marks.furthest(data, start)
        while True:
            if count == 0:
                if at == len(data):
                    return Reading(None, self._finish(index, count))
                if data[at] == 0x7D:
                    return self._closed(data, at, index, count)
            step = self._read_member(data, at, index, count)
            if isinstance(step, Reading):
                return step
            at, index, count = *step, count + 1
            if data[at] == 0x7D:
                return self._closed(data, at, index, count)
            between = literal_read(self.separators[0], data, at)
            if between.end is None:
                return between.then(self._next(index, count))
            at = between.end
            self._marks.note(start, count, data[:at], index)

    def _closed(self, data: bytes, at: int, index: int, count: int) -> Reading:
        if self._next_required[index] < len(self.members) or count < self.least:
            return FAILED
        return Reading(at + 1, b"" if at + 1 == len(data) else None)

    def _read_member(self, data: bytes, at: int, index: int, count: int) -> Reading | tuple[int, int]:
        """What follows where the data ran out inside a member, else (where it ended, the next member's index)."""
        if at == len(data):
            return Reading(None, self._next(index, count))
        if data[at] != 0x22 or (self.most is not None and count >= self.most):
            return FAILED
        close = closing_quote(data, at + 1)
        if close is None:
            return self._finish_name(data[at:], index, count)
        value, after = self._named(data[at : close + 1], index)
        if value is None:
            return FAILED
        rest = self._finish(after, count + 1)
        colon = literal_read(self.separators[1], data, close + 1)
        if colon.end is None:
            text = shortest(value)
            return colon.then(None if text is None or rest is None else text + rest)
        reading = value.read(data, colon.end)
        if reading.end is None or reading.end == len(data):
            return reading.then(rest)
        return reading.end, after

    def _named(self, name: bytes, index: int) -> tuple[Node | None, int]:
        """The value under a quoted name and the index behind it; no value where the name may not stand here."""
        found = self._index.get(name)
        required = self._next_required[index]
        if found is not None:
            return (self.members[found].value, found + 1) if index <= found <= required else (None, 0)
        if name in self.taken or required < len(self.members):
            return None, 0
        text = decoded(name[1:-1])
        for names, value in self.free:
            if names is None:
                return value, len(self.members) + 1
            if names.finish(text) == "":
                return (value, len(self.members)) if index <= len(self.members) else (None, 0)
        return None, 0

    def _finish(self, index: int, count: int) -> bytes | None:
        """From after a value (or the opening brace) to the closing brace."""
        key = index, min(count, max(self.least, 1))
        known = self._closings.get(key)
        if known is None:
            known = self._closings[key] = (self._to_the_end(index, count),)
        return known[0]

    @cached_property
    def _closings(self) -> dict[tuple[int, int], tuple[bytes | None]]:
        return {}

    def _to_the_end(self, index: int, count: int) -> bytes | None:
        ending = self._endings[index]
        missing = self.least - count - self._required_from[index]
        if ending is not None and missing > 0:
            ending = self._filled(index, missing)
        if ending is None:
            return None
        return (ending[len(self.separators[0]) :] if count == 0 else ending) + b"}"

    def _filled(self, index: int, missing: int) -> bytes | None:
        """The separated required members with ``missing`` others among them."""
        chosen = [i for i in range(index, len(self.members)) if not self.members[i].required][:missing]
        texts = [
            self._member_text(i) for i in range(index, len(self.members)) if self.members[i].required or i in chosen
        ]
        free = self._free_members(index, missing - len(chosen))
        if free is None or any(t is None for t in texts):
            return None
        return b"".join(self.separators[0] + t for t in [*texts, *free] if t is not None)

    def _free_members(self, index: int, number: int) -> list[bytes] | None:
        if number <= 0:
            return []
        made = []
        for i in range(number):
            text = self._free_member(index, "abcdefghijklmnopqrstuvwxyz"[i % 26] * (1 + i // 26) if number > 1 else "")
            if text is None:
                return None
            made.append(text)
        return made

    def _free_member(self, index: int, wish: str) -> bytes | None:
        """A cheap member that is not declared."""
        made = []
        for names, value in self._free_from(index):
            text = shortest(value)
            ending = None if text is None else self._free_ending(b'"' + quoted(wish)[1:-1], names, True)
            if text is not None and ending is not None:
                made.append(b'"' + quoted(wish)[1:-1] + ending + b'"' + self.separators[1] + text)
        return min(made, key=len, default=None)

    def _free_from(self, index: int) -> Iterator[Free]:
        """What is free at an index: names by expression come before all others."""
        return (free for free in self.free if free.names is None or index <= len(self.members))

    def _free_ending(self, begun: bytes, names: Automaton | None, renew: bool = False) -> bytes | None:
        """What makes a begun name (its quote first) one that is free and, if need be, matched by ``names``."""
        mend = mended(begun[1:])
        if names is not None:
            more = names.finish("" if renew else decoded(begun[1:] + mend))
            if more is None:
                return None
            mend += quoted(more)[1:-1]
        for more in ("", *_FILLERS):
            name = begun + mend + more.encode()
            if name + b'"' not in self._index and name + b'"' not in self.taken and self._matches(name[1:], names):
                return mend + more.encode()
        return None

    def _matches(self, name: bytes, names: Automaton | None) -> bool:
        if names is not None:
            return names.finish(decoded(name)) == ""
        others = [free.names for free in self.free if free.names is not None]
        return not others or all(other.finish(decoded(name)) != "" for other in others)

    def _next(self, index: int, count: int) -> bytes | None:
        """From after a separator: at least one more member, then the end."""
        key = index, min(count, max(self.least, 1))
        known = self._nexts.get(key)
        if known is None:
            known = self._nexts[key] = (self._one_more(index, count),)
        return known[0] if self.most is None or count < self.most else None

    @cached_property
    def _nexts(self) -> dict[tuple[int, int], tuple[bytes | None]]:
        return {}

    def _one_more(self, index: int, count: int) -> bytes | None:
        options: list[bytes] = []
        required = self._next_required[index]
        for i in range(index, min(required + 1, len(self.members), index + _MOST_NEXT)):
            text, rest = self._member_text(i), self._finish(i + 1, count + 1)
            if text is not None and rest is not None:
                options.append(text + rest)
        if required >= len(self.members):
            text, rest = self._free_member(index, ""), self._finish(index, count + 1)
            if text is not None and rest is not None:
                options.append(text + rest)
        return min(options, key=len, default=None)

    def _finish_name(self, begun: bytes, index: int, count: int) -> Reading:
        ways: list[Reading] = []
        required = self._next_required[index]
        for i in range(index, min(required + 1, len(self.members))):
            if self.members[i].name.startswith(begun):
                text, rest = self._member_text(i), self._finish(i + 1, count + 1)
                if text is not None:
                    ways.append(literal_read(text, begun, 0).then(rest))
        if required >= len(self.members):
            for names, value in self._free_from(index):
                text, ending = shortest(value), self._free_ending(begun, names)
                after = len(self.members) + (names is None)
                if text is not None and ending is not None:
                    whole = Reading(None, ending + b'"' + self.separators[1] + text, None, names is None)
                    ways.append(whole.then(self._finish(after, count + 1)))
        return either(ways) if ways else FAILED


_FILLERS: Final = tuple("aA0_-z.") + tuple(f"{x}{y}" for x in "aA0_" for y in "bB1-z") + ("aaaaaaaa", "0A0A_-a.z")


@dataclass(frozen=True)
class Array:
    """A JSON array: ``first`` items by place, then ``item`` (None: no more)."""

    first: tuple[Node, ...]
    item: Node | None
    separator: bytes
    least: int = 0
    most: int | None = None

    def _node(self, index: int) -> Node | None:
        return self.first[index] if index < len(self.first) else self.item

    @cached_property
    def _marks(self) -> _Marks:
        return _Marks()

    def read(self, data: bytes, at: int) -> Reading:
        if at == len(data):
            rest = self._finish(0)
            return Reading(None, None if rest is None else b"[" + rest)
        if data[at] != 0x5B:
            return FAILED
        start = at
        at, _, count = self._marks.furthest(data, start)
        behind_separator = count > 0
        while True:
            if at == len(data):
                return Reading(None, self._finish(count, behind_separator))
            if data[at] == 0x5D and not behind_separator:
                return Reading(at + 1, b"" if at + 1 == len(data) else None) if count >= self.least else FAILED
            if count and not behind_separator:
                between = literal_read(self.separator, data, at)
                if between.end is None:
                    return between.then(self._finish(count, True))
                at, behind_separator = between.end, True
                self._marks.note(start, count, data[:at], count)
                continue
            node = self._node(count)
            if node is None or (self.most is not None and count >= self.most):
                return FAILED
            reading, rest = node.read(data, at), self._finish(count + 1)
            if reading.end is None or reading.end == len(data):
                return reading.then(rest)
            at, count, behind_separator = reading.end, count + 1, False

    def _finish(self, count: int, forced: bool = False) -> bytes | None:
        """From after an item (after a separator if ``forced``) to the closing bracket."""
        texts = []
        if forced and self.most is not None and count >= self.most:
            return None
        for index in range(count, max(self.least, count + (1 if forced else 0))):
            node = self._node(index)
            text = None if node is None else shortest(node)
            if text is None:
                return None
            texts.append(text)
        joined = self.separator.join(texts)
        return (self.separator if texts and count and not forced else b"") + joined + b"]"
