"""Bytes kept for pictures over requests: least recently used first out, what is in use stays (SYSTEM.md V5, C11)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class StoreCounts:
    """What happened in a store so far."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    refused: int = 0
    """Values too large to be kept beside what is in use."""


class ByteStore:
    """Values by key within ``budget`` bytes. A value that does not fit is simply not kept."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.counts = StoreCounts()
        self.bytes = 0
        self._held: OrderedDict[str, tuple[object, int]] = OrderedDict()
        self._pinned: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def get(self, key: str) -> object | None:
        """The value, which becomes the most recently used; None if it is not held."""
        entry = self._held.get(key)
        if entry is None:
            self.counts.misses += 1
            return None
        self._held.move_to_end(key)
        self.counts.hits += 1
        return entry[0]

    def put(self, key: str, value: object, size: int) -> bool:
        """Keep a value of ``size`` bytes; returns whether there was room for it."""
        self.discard(key)
        if not self._make_room(size):
            self.counts.refused += 1
            return False
        self._held[key] = (value, size)
        self.bytes += size
        return True

    def discard(self, key: str) -> None:
        """Forget a value."""
        entry = self._held.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
        self.bytes = 0

    @contextmanager
    def pinned(self, keys: Iterator[str] | list[str]) -> Iterator[None]:
        """Values of these keys are not evicted while the block runs."""
        names = list(keys)
        for name in names:
            self._pinned[name] = self._pinned.get(name, 0) + 1
        try:
            yield
        finally:
            for name in names:
                self._pinned[name] -= 1
                if not self._pinned[name]:
                    del self._pinned[name]

    def _make_room(self, size: int) -> bool:
        pinned = sum(entry[1] for key, entry in self._held.items() if key in self._pinned)
        if size > self.budget - pinned:
            return False
        for key in list(self._held):
            if self.bytes + size <= self.budget:
                break
            if key not in self._pinned:
                self.discard(key)
                self.counts.evictions += 1
        return True
