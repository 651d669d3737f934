"""A store of n-gram counts of the target's own text, as next-token probabilities.

Contexts of one to six tokens, each with its likeliest continuations. A token that is not listed for
the longest known context is looked up for the next shorter one, times the probability that the
longer context leaves for what it does not list (Katz, "Estimation of probabilities from sparse
data", IEEE TASSP 1987). Contexts are found by a 32-bit hash: a collision costs one wrong guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..errors import StoreError

FORMAT = "count-store-1"
MAX_ORDER = 6
"""Longest context, in tokens."""

BLOCK = 32
"""Contexts per entry of ``starts``: where a context's list begins is a sum over less than a block."""

LOG_STEP = 1 / 24
"""Probabilities are stored as exp(-LOG_STEP * byte): steps of four percent, down to 2e-5."""

UInt32Array = npt.NDArray[np.uint32]
FloatArray = npt.NDArray[np.float64]

_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_PROBABILITIES = tuple(np.exp(-LOG_STEP * np.arange(256)).tolist())


def extend_hash(key: int, token: int) -> int:
    """The hash of a context one token longer, to the left (64 bits)."""
    value = (key ^ (token + 1)) * _MULTIPLIER & _MASK
    return value ^ value >> 29


def quantised(probabilities: FloatArray) -> npt.NDArray[np.uint8]:
    """Probabilities as bytes on the logarithmic scale."""
    steps = np.rint(-np.log(np.maximum(probabilities, 1e-30)) / LOG_STEP)
    return np.clip(steps, 0, 255).astype(np.uint8)


class Listed(NamedTuple):
    """The continuations of one context, likeliest first, and what is left for all others."""

    ids: list[int]
    probs: list[float]
    backoff: float


@dataclass(frozen=True)
class CountStore:
    """``keys`` [n] ascending hashes of contexts; ``sizes`` [n] continuations of each, which lie end to
    end in ``tokens`` and ``probs``; ``starts`` [n / BLOCK] offsets; ``backoffs`` [n]."""

    keys: UInt32Array
    sizes: npt.NDArray[np.uint8]
    starts: UInt32Array
    backoffs: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.uint16] | UInt32Array
    probs: npt.NDArray[np.uint8]
    about: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> CountStore:
        """The store in a file, memory-mapped; StoreError if it is damaged or of another format."""
        try:
            with safe_open(path, framework="numpy") as file:
                about = dict(file.metadata() or {})
                parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if about.get("format") != FORMAT:
                raise StoreError(f"{path} is no count store of format {FORMAT}")
            return cls(**parts, about=about)
        except (SafetensorError, OSError, TypeError) as error:
            raise StoreError(f"{path} holds no readable count store: {error}") from error

    def save(self, path: Path) -> None:
        """Write the store; complete or not at all."""
        names = ("keys", "sizes", "starts", "backoffs", "tokens", "probs")
        temporary = path.with_name(path.name + ".part")
        save_file({n: getattr(self, n) for n in names}, temporary, metadata=dict(self.about))
        temporary.replace(path)

    @property
    def bytes(self) -> int:
        """Bytes of all arrays."""
        parts = (self.keys, self.sizes, self.starts, self.backoffs, self.tokens, self.probs)
        return sum(part.nbytes for part in parts)

    def lookup(self, context: Sequence[int]) -> list[Listed]:
        """What is listed for the last token of ``context``, the last two, …: known contexts only."""
        hashes = []
        key = 0
        for token in reversed(context[-MAX_ORDER:]):
            key = extend_hash(key, token)
            hashes.append(key >> 32)
        wanted = np.array(hashes, dtype=np.uint32)
        places = np.searchsorted(self.keys, wanted)
        places = np.minimum(places, len(self.keys) - 1)
        return [self._listed(at) for at in places[self.keys[places] == wanted].tolist()]

    def _listed(self, at: int) -> Listed:
        block = at // BLOCK
        start = int(self.starts[block]) + sum(self.sizes[block * BLOCK : at].tolist())
        end = start + int(self.sizes[at])
        return Listed(
            self.tokens[start:end].tolist(),
            [_PROBABILITIES[step] for step in self.probs[start:end].tolist()],
            _PROBABILITIES[self.backoffs[at]],
        )


def next_probabilities(
    store: CountStore, context: Sequence[int], most: int = 8, floor: float = 0.004
) -> list[tuple[int, float]]:
    """The likeliest next tokens after ``context`` with their probabilities, likeliest first.

    At most ``most`` of at least ``floor``; empty where no context is known.
    """
    if not len(store.keys):
        return []
    found: dict[int, float] = {}
    weight = 1.0
    for listed in reversed(store.lookup(context)):
        if weight < floor:
            break
        for token, share in zip(listed.ids, listed.probs):
            if share * weight < floor:
                break
            found.setdefault(token, share * weight)
        weight *= listed.backoff
    return sorted(found.items(), key=lambda item: -item[1])[:most]
