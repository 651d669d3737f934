"""Arrays whose items depend on those before: counted (``contains``) or all different (``uniqueItems``)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property

from .shape import FAILED, Node, Reading, literal_read, shortest

Edges = tuple[tuple[Node, int], ...]


@dataclass(frozen=True)
class ItemGraph:
    """A JSON array as a graph: in each state the items that may come next, and the state after each.

    ``ends``: states in which the array may close. State 0 is the beginning.
    """

    states: tuple[Edges, ...]
    ends: frozenset[int]
    separator: bytes

    @cached_property
    def _endings(self) -> tuple[bytes | None, ...]:
        """Per state a shortest text of the separated items still needed: Dijkstra's algorithm from the ends."""
        into: list[list[tuple[int, bytes]]] = [[] for _ in self.states]
        for state, edges in enumerate(self.states):
            for node, after in edges:
                text = shortest(node)
                if text is not None:
                    into[after].append((state, self.separator + text))
        found: list[bytes | None] = [None] * len(self.states)
        queue = [(0, state, b"") for state in sorted(self.ends)]
        while queue:
            _, state, text = heapq.heappop(queue)
            if found[state] is not None:
                continue
            found[state] = text
            for before, item in into[state]:
                if found[before] is None:
                    heapq.heappush(queue, (len(item) + len(text), before, item + text))
        return tuple(found)

    def leads(self, node: Node, after: int) -> bool:
        """Whether an array can still close behind an edge."""
        return shortest(node) is not None and self._endings[after] is not None

    def read(self, data: bytes, at: int) -> Reading:
        if at == len(data):
            rest = self._finish(0, first=True)
            return Reading(None, None if rest is None else b"[" + rest)
        if data[at] != 0x5B:
            return FAILED
        return self._after(data, at + 1, {0}, first=True)

    def _after(self, data: bytes, at: int, states: set[int], first: bool) -> Reading:
        """Items are read by every edge that takes them; all that agree on where an item ends go on."""
        while True:
            if at == len(data):
                return _shortest(self._finish(state, first) for state in states)
            if data[at] == 0x5D:
                closed = bool(states & self.ends)
                return Reading(at + 1, b"" if at + 1 == len(data) else None) if closed else FAILED
            if not first:
                between = literal_read(self.separator, data, at)
                if between.end is None:
                    return between if between.tail is None else _behind(between.tail, self._items(b"", states))
                at = between.end
            reached, tails = self._edges(data, at, states)
            if not reached:
                return _shortest(tails)
            at = max(reached)
            states, first = reached[at], False
            if at == len(data) and tails:
                return _shortest([*tails, *(self._finish(state, False) for state in states)])

    def _edges(self, data: bytes, at: int, states: set[int]) -> tuple[dict[int, set[int]], list[bytes | None]]:
        reached: dict[int, set[int]] = {}
        tails: list[bytes | None] = []
        for state in states:
            for node, after in self.states[state]:
                reading = node.read(data, at)
                if reading.end is not None:
                    reached.setdefault(reading.end, set()).add(after)
                rest = self._finish(after, False)
                if reading.tail and rest is not None:
                    tails.append(reading.tail + rest)
        return reached, tails

    def _items(self, begun: bytes, states: set[int]) -> bytes | None:
        """A further item and the rest."""
        found = []
        for state in states:
            for node, after in self.states[state]:
                text, rest = shortest(node), self._finish(after, False)
                if text is not None and rest is not None:
                    found.append(begun + text + rest)
        return min(found, key=len, default=None)

    def _finish(self, state: int, first: bool) -> bytes | None:
        ending = self._endings[state]
        if ending is None:
            return None
        return (ending[len(self.separator) :] if first else ending) + b"]"


def _shortest(texts: object) -> Reading:
    known = [text for text in texts if text is not None]  # type: ignore[attr-defined]
    return Reading(None, min(known, key=len)) if known else FAILED


def _behind(tail: bytes, rest: bytes | None) -> Reading:
    return FAILED if rest is None else Reading(None, tail + rest)
