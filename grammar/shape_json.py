"""Objects and arrays as shape nodes (SYSTEM.md G5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from .regex import Automaton
from .shape import FAILED, Node, Reading, literal_read, mended, shortest
from .shape_values import closing_quote, decoded, quoted

_MOST_MARKS: Final = 2048


class Member(NamedTuple):
    """A declared property: its quoted name, its value, whether it must be there."""

    name: bytes
    value: Node
    required: bool


@dataclass(frozen=True)
class Object:
    """A JSON object: members in their order, then free ones; ``free`` pairs a name's automaton with a value."""

    members: tuple[Member, ...]
    free: tuple[tuple[Automaton | None, Node], ...]
    separators: tuple[bytes, bytes]
    least: int = 0
    most: int | None = None

    @cached_property
    def _index(self) -> dict[bytes, int]:
        return {member.name: i for i, member in enumerate(self.members)}

    @cached_property
    def _next_required(self) -> tuple[int, ...]:
        nexts = [len(self.members)] * (len(self.members) + 1)
        for i in range(len(self.members) - 1, -1, -1):
            nexts[i] = i if self.members[i].required else nexts[i + 1]
        return tuple(nexts)

    @cached_property
    def _required_from(self) -> tuple[int, ...]:
        """Per index how many required members stand there or later."""
        counts = [0] * (len(self.members) + 1)
        for i in range(len(self.members) - 1, -1, -1):
            counts[i] = counts[i + 1] + self.members[i].required
        return tuple(counts)

    @cached_property
    def _endings(self) -> tuple[bytes | None, ...]:
        """Per index the separated required members from there on."""
        endings: list[bytes | None] = [b""] * (len(self.members) + 1)
        for i in range(len(self.members) - 1, -1, -1):
            after = endings[i + 1]
            if self.members[i].required:
                text = self._member_text(i)
                after = None if after is None or text is None else self.separators[0] + text + after
            endings[i] = after
        return tuple(endings)

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
        at, index, count = self._resumed(data, start)
        while True:
            if count == 0:
                if at == len(data):
                    return Reading(None, self._finish(index, count))
                if data[at] == 0x7D:
                    return self._closed(data, at, index)
            step = self._read_member(data, at, index, count)
            if isinstance(step, Reading):
                return step
            at, index, count = *step, count + 1
            if at == len(data):
                return Reading(None, self._finish(index, count))
            if data[at] == 0x7D:
                return self._closed(data, at, index)
            between = literal_read(self.separators[0], data, at)
            if between.end is None:
                return self._joined(between.tail, self._next(index, count))
            at = between.end
            self._marks[start, count] = (data[:at], index)

    def _closed(self, data: bytes, at: int, index: int) -> Reading:
        if self._next_required[index] < len(self.members):
            return FAILED
        return Reading(at + 1, b"" if at + 1 == len(data) else None)

    @cached_property
    def _marks(self) -> dict[tuple[int, int], tuple[bytes, int]]:
        """By where an object began and how many members it had: the last text read so far, the next member's index.

        A reply is read again after every token. A mark includes the separator behind the last member: what comes
        before it stands, whatever follows.
        """
        return {}

    def _resumed(self, data: bytes, start: int) -> tuple[int, int, int]:
        """(at, index, count) of the furthest mark that ``data`` begins with, else of the opening brace's end."""
        if len(self._marks) > _MOST_MARKS:
            self._marks.clear()
        found, count = (start + 1, 0, 0), 1
        while (mark := self._marks.get((start, count))) is not None and data.startswith(mark[0]):
            found = len(mark[0]), mark[1], count
            count += 1
        return found

    def _joined(self, first: bytes | None, rest: bytes | None) -> Reading:
        return FAILED if first is None or rest is None else Reading(None, first + rest)

    def _read_member(self, data: bytes, at: int, index: int, count: int) -> Reading | tuple[int, int]:
        if at == len(data):
            return Reading(None, self._next(index, count))
        if data[at] != 0x22:
            return FAILED
        close = closing_quote(data, at + 1)
        if close is None:
            return Reading(None, self._finish_name(data[at:], index, count))
        found = self._index.get(data[at : close + 1])
        if found is None or found < index:
            value, after = self._free_value(data[at + 1 : close]), len(self.members)
        else:
            value, after = self.members[found].value, found + 1
        if value is None:
            return FAILED
        rest = self._finish(after, count + 1)
        colon = literal_read(self.separators[1], data, close + 1)
        if colon.end is None:
            text = shortest(value)
            return self._joined(colon.tail, None if text is None or rest is None else text + rest)
        reading = value.read(data, colon.end)
        if reading.end is None or (reading.end == len(data) and reading.tail):
            return self._joined(reading.tail, rest)
        return reading.end, after

    def _free_value(self, name: bytes) -> Node | None:
        for automaton, value in self.free:
            if automaton is None or automaton.finish(decoded(name)) == "":
                return value
        return None

    def _finish(self, index: int, count: int) -> bytes | None:
        """From after a value (or the opening brace) to the closing brace."""
        ending = self._endings[index]
        if ending is None:
            return None
        required = self._required_from[index]
        missing = self.least - count - required
        if missing > 0:
            extra = self._extra(index, missing)
            ending = None if extra is None else extra if required == 0 else self._mixed(index, missing)
            if ending is None:
                return None
        if count == 0 and ending:
            ending = ending[len(self.separators[0]) :]
        return ending + b"}"

    def _mixed(self, index: int, missing: int) -> bytes | None:
        chosen = [i for i in range(index, len(self.members)) if not self.members[i].required][:missing]
        texts = [
            self._member_text(i) for i in range(index, len(self.members)) if self.members[i].required or i in chosen
        ]
        free = self._free_members(missing - len(chosen))
        if free is None or any(t is None for t in texts):
            return None
        return b"".join(self.separators[0] + t for t in [*texts, *free] if t is not None)

    def _extra(self, index: int, missing: int) -> bytes | None:
        return self._mixed(index, missing)

    def _free_members(self, number: int) -> list[bytes] | None:
        if number <= 0:
            return []
        made = []
        for i in range(number):
            name = self._free_name("abcdefghijklmnopqrstuvwxyz"[i % 26] * (1 + i // 26) if number > 1 else "")
            if name is None:
                return None
            made.append(name[0] + self.separators[1] + name[1])
        return made

    def _free_name(self, wish: str, begun: bytes = b"") -> tuple[bytes, bytes] | None:
        for automaton, value in self.free:
            text = shortest(value)
            name = wish if automaton is None else automaton.finish("")
            if text is None or name is None:
                continue
            while quoted(name) in self._index:
                name += "a"
            return quoted(name), text
        return None

    def _next(self, index: int, count: int) -> bytes | None:
        """From after a separator: at least one more member, then the end."""
        options: list[bytes] = []
        required = self._next_required[index]
        for i in range(index, min(required + 1, len(self.members))):
            text, rest = self._member_text(i), self._finish(i + 1, count + 1)
            if text is not None and rest is not None:
                options.append(text + rest)
            if len(options) > 64:
                break
        if required == len(self.members) and (free := self._free_members(1)):
            rest = self._finish(len(self.members), count + 1)
            if rest is not None:
                options.append(free[0] + rest)
        return min(options, key=len, default=None)

    def _finish_name(self, begun: bytes, index: int, count: int) -> bytes | None:
        options: list[bytes] = []
        required = self._next_required[index]
        for i in range(index, min(required + 1, len(self.members))):
            if self.members[i].name.startswith(begun):
                text, rest = self._member_text(i), self._finish(i + 1, count + 1)
                if text is not None and rest is not None:
                    options.append(text[len(begun) :] + rest)
        if required == len(self.members):
            rest = self._finish(required, count + 1)
            options.extend(self._free_endings(begun, rest))
        return min(options, key=len, default=None)

    def _free_endings(self, begun: bytes, rest: bytes | None) -> Iterator[bytes]:
        mend = mended(begun[1:])
        for automaton, value in self.free:
            text = shortest(value)
            more = "" if automaton is None else automaton.finish(decoded(begun[1:] + mend))
            if text is None or more is None or rest is None:
                continue
            suffix = mend + quoted(more)[1:-1]
            while begun + suffix + b'"' in self._index:
                suffix += b"a"
            yield suffix + b'"' + self.separators[1] + text + rest


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

    def read(self, data: bytes, at: int) -> Reading:
        if at == len(data):
            rest = self._finish(0)
            return Reading(None, None if rest is None else b"[" + rest)
        if data[at] != 0x5B:
            return FAILED
        at, count = at + 1, 0
        while True:
            if at == len(data):
                return Reading(None, self._finish(count))
            if data[at] == 0x5D:
                return Reading(at + 1, b"" if at + 1 == len(data) else None) if count >= self.least else FAILED
            if count:
                between = literal_read(self.separator, data, at)
                if between.end is None:
                    rest = self._finish(count, forced=True)
                    return FAILED if between.tail is None or rest is None else Reading(None, between.tail + rest)
                at = between.end
            node = self._node(count)
            if node is None or (self.most is not None and count >= self.most):
                return FAILED
            reading, rest = node.read(data, at), self._finish(count + 1)
            if reading.end is None or (reading.end == len(data) and reading.tail):
                return FAILED if reading.tail is None or rest is None else Reading(None, reading.tail + rest)
            at, count = reading.end, count + 1

    def _finish(self, count: int, forced: bool = False) -> bytes | None:
        """From after an item (after a separator if ``forced``) to the closing bracket."""
        texts = []
        for index in range(count, max(self.least, count + (1 if forced else 0))):
            node = self._node(index)
            text = None if node is None else shortest(node)
            if text is None:
                return None
            texts.append(text)
        joined = self.separator.join(texts)
        return (self.separator if texts and count and not forced else b"") + joined + b"]"
