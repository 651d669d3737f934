"""Positions of cached rows: 1-D RoPE, learned positions and M-RoPE alike (SYSTEM.md C1, V7).

Text advances every axis by one a token, a picture by its extent; rows that were dropped leave a gap. So a
sequence needs, beside the order of each row, only the position that follows it.
"""

from __future__ import annotations

import numpy as np

from .masks import IntArray


class Positions:
    """For each cached row: its order in the sequence, and the position of the token that would follow it."""

    def __init__(self, axes: int) -> None:
        self.axes = axes
        self._order = np.zeros(256, dtype=np.int64)
        self._next = np.zeros(256, dtype=np.int64)

    def order(self, length: int) -> IntArray:
        """[length] order of the cached rows."""
        return self._order[:length]

    def next_position(self, length: int) -> int:
        """Position of a text token appended to the first ``length`` rows."""
        return int(self._next[length - 1]) if length else 0

    def chain(self, length: int, count: int) -> IntArray:
        """[axes, count] positions of ``count`` text tokens behind the first ``length`` rows."""
        first = self.next_position(length)
        return self._broadcast(np.arange(first, first + count, dtype=np.int64))

    def of_rows(self, length: int, order: IntArray) -> IntArray:
        """[axes, q] positions of text rows (a tree's, say) of the given order behind ``length`` rows."""
        return self._broadcast(order - order[0] + self.next_position(length))

    def append(self, length: int, order: IntArray, next_positions: IntArray) -> None:
        """Record rows behind the first ``length``: their order [n], and the position that follows each [n]."""
        end = length + len(order)
        if end > len(self._order):
            size = max(end, 2 * len(self._order))
            self._order = np.resize(self._order, size)
            self._next = np.resize(self._next, size)
        self._order[length:end] = order
        self._next[length:end] = next_positions

    def snapshot(self, length: int) -> tuple[IntArray, IntArray]:
        """Copies of order and following position [length] of the first rows, as ``append`` takes them."""
        return self._order[:length].copy(), self._next[:length].copy()

    def drop(self, start: int, end: int, length: int) -> None:
        """Close the gap of dropped rows; the others keep their positions."""
        kept = length - (end - start)
        for values in (self._order, self._next):
            values[start:kept] = values[end:length].copy()

    def shift(self, start: int, end: int, by: int) -> None:
        """Rows start … end-1 were rotated by ``by`` positions; their order stays."""
        self._next[start:end] += by

    def _broadcast(self, positions: IntArray) -> IntArray:
        return np.tile(positions, (self.axes, 1))
