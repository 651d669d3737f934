"""KV rows of pictures and of what stands before them, kept over requests and sessions (SYSTEM.md C2, V5).

The rows of a token depend on everything before it, so a segment is found by the hash of the *whole* prefix it was
computed under: ids, pictures, where they lie, model and dtype.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..cache import KVRows
from ..hf_target import HFSequence
from ..masks import IntArray
from .memory import ByteStore
from .placing import Placed
from .quantize import Int8Rows

LOSSY_NAME = "lossy_int8_segments"
"""What rows restored from INT8 are marked with, and the option that allows them."""


@dataclass(frozen=True)
class Segment:
    """Rows start … start + n - 1 of a sequence, with their order and following positions [n].

    ``lossy``: options that made them, or rows before them, other than plain decoding would have.
    """

    start: int
    rows: KVRows | Int8Rows
    order: IntArray
    following: IntArray
    lossy: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """Index behind the last row."""
        return self.start + len(self.order)

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return self.rows.bytes + self.order.nbytes + self.following.nbytes


def prefix_keys(weights: str, ids: Sequence[int], placed: Sequence[Placed]) -> list[str]:
    """For each picture, the hash of the whole prefix that ends with it; ``weights`` stands for model and dtype."""
    state = hashlib.blake2b(weights.encode(), digest_size=16)
    keys, at = [], 0
    for one in placed:
        state.update(np.asarray(ids[at : one.end], dtype=np.int64).tobytes())
        state.update(f"{one.start}-{one.end}:{one.picture.key};".encode())
        keys.append(f"segment:{state.hexdigest()}")
        at = one.end
    return keys


class Restored(NamedTuple):
    """How many rows were copied in, and what they are marked with."""

    rows: int
    lossy: tuple[str, ...] = ()


class SegmentStore:
    """Segments within the visual memory's budget; ``int8`` stores them at half the bytes, not quite exactly."""

    def __init__(self, memory: ByteStore, int8: bool = False) -> None:
        self._memory = memory
        self.int8 = int8

    def save(self, key: str, sequence: HFSequence, start: int, end: int, lossy: Sequence[str] = ()) -> None:
        """Copy the rows start … end-1 of a sequence, with their marks, unless they are held already."""
        if key in self._memory or sequence.target.length_rule is not None:
            return
        rows = sequence.arena.read(start, end)
        order, following = sequence.positions.snapshot(end)
        marks = dict.fromkeys([*lossy, *([LOSSY_NAME] if self.int8 else [])])
        stored = Int8Rows.of(rows) if self.int8 else rows
        segment = Segment(start, stored, order[start:], following[start:], tuple(marks))
        self._memory.put(key, segment, segment.bytes)

    def restore(self, key: str, sequence: HFSequence) -> Restored:
        """Append what a held segment has behind the rows of ``sequence``; INT8 rows only where they are allowed."""
        segment = self._memory.get(key) if key in self._memory else None
        if not isinstance(segment, Segment) or not segment.start <= sequence.length < segment.end:
            return Restored(0)
        if LOSSY_NAME in segment.lossy and not self.int8:
            return Restored(0)
        skipped = sequence.length - segment.start
        rows = segment.rows.restore() if isinstance(segment.rows, Int8Rows) else segment.rows
        if skipped:
            rows = KVRows(tuple((k[:, :, skipped:], v[:, :, skipped:]) for k, v in rows.layers))
        sequence.restore(rows, segment.order[skipped:], segment.following[skipped:])
        return Restored(segment.end - segment.start - skipped, segment.lossy)
