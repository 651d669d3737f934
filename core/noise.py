"""Counter-based randomness: Philox4x32-10, addressed, never streamed (SYSTEM.md C10).

Every number is a pure function of (seed, reply, row, token index, purpose, rank, vocabulary entry), so a
skipped or forced token shifts nothing, rows of a batch differ, and the bits are the same on every platform.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox4x32 with ten rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)

UInt32Array = npt.NDArray[np.uint32]
FloatArray = npt.NDArray[np.float64]


class Purpose(IntEnum):
    """What a draw is for; two purposes never share a number."""

    TARGET = 0
    PROPOSAL = 1
    ACCEPTANCE = 2
    RESIDUAL = 3
    BONUS = 4


def philox4x32(counter: UInt32Array, key: UInt32Array) -> UInt32Array:
    """Ten rounds of Philox: ``counter`` [..., 4] and ``key`` [..., 2] to words [..., 4]."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key[..., 0].astype(np.uint32), key[..., 1].astype(np.uint32)
    with np.errstate(over="ignore"):
        for _ in range(_ROUNDS):
            product0 = _MULTIPLIERS[0] * c0
            product1 = _MULTIPLIERS[1] * c2
            c0 = (product1 >> _SHIFT) ^ c1 ^ k0
            c2 = (product0 >> _SHIFT) ^ c3 ^ k1
            c1, c3 = product1 & _LOW, product0 & _LOW
            k0, k1 = k0 + _WEYL[0], k1 + _WEYL[1]
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def _mix(value: int) -> int:
    """SplitMix64's finaliser: spreads an integer over 64 bits (Steele et al., OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


@dataclass(frozen=True)
class ReplyNoise:
    """The noise of one reply: ``seed`` and ``reply`` (index of the reply, e.g. of a returned sequence), ``row``.

    The key is a hash of the three, the counter is (vocabulary entry / 4, token index, purpose, rank).
    """

    seed: int
    reply: int = 0
    row: int = 0

    @property
    def key(self) -> UInt32Array:
        """[2] Philox key."""
        mixed = _mix(_mix(_mix(self.seed & 0xFFFFFFFFFFFFFFFF) ^ self.reply) ^ (self.row << 1 | 1))
        return np.array([mixed & 0xFFFFFFFF, mixed >> 32], dtype=np.uint32)

    def uniform(self, index: int, purpose: Purpose, entries: npt.NDArray[np.int64], rank: int = 0) -> FloatArray:
        """Uniform numbers in (0, 1), one for each of ``entries`` [k], at token ``index`` of the reply."""
        blocks, inverse = np.unique(entries >> 2, return_inverse=True)
        words = self._words(index, purpose, blocks, rank)
        picked = words[inverse, entries & 3]
        return np.asarray((picked.astype(np.float64) + 0.5) * 2.0**-32)

    def uniforms(self, index: int, purpose: Purpose, size: int, rank: int = 0) -> FloatArray:
        """``uniform`` for the entries 0 … size-1."""
        words = self._words(index, purpose, np.arange((size + 3) // 4, dtype=np.int64), rank)
        return np.asarray((words.reshape(-1)[:size].astype(np.float64) + 0.5) * 2.0**-32)

    def gumbel(
        self,
        index: int,
        entries: npt.NDArray[np.int64] | int,
        purpose: Purpose = Purpose.TARGET,
        rank: int = 0,
    ) -> FloatArray:
        """Standard Gumbel numbers for given vocabulary entries [k], or for the first ``entries`` of them."""
        if isinstance(entries, int):
            uniform = self.uniforms(index, purpose, entries, rank)
        else:
            uniform = self.uniform(index, purpose, entries, rank)
        return np.asarray(-np.log(-np.log(uniform)))

    def _words(self, index: int, purpose: Purpose, blocks: npt.NDArray[np.int64], rank: int) -> UInt32Array:
        counter = np.empty((len(blocks), 4), dtype=np.uint32)
        counter[:, 0] = blocks
        counter[:, 1] = index
        counter[:, 2] = int(purpose)
        counter[:, 3] = rank
        return philox4x32(counter, self.key)
