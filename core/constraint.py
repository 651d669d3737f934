"""What may come next: the seam between the decoding loop and grammar, compliance and closing budget.

One object serves target and drafts alike (EXACTNESS.md, "Grammar"): a cursor over the tokens of one reply that
is forked along tree branches and advanced for good by committed tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class TokenMask:
    """The legal tokens at one position, a bit each.

    ``words`` [ceil(vocab_size / 32)]: bit ``t % 32`` of word ``t // 32`` is set where token t is legal.
    """

    words: Words
    vocab_size: int

    def __post_init__(self) -> None:
        # Masks are shared by cursors at the same position, drafters' forks among them.
        self.words.flags.writeable = False

    @classmethod
    def of(cls, tokens: Sequence[int], vocab_size: int) -> TokenMask:
        """The mask that allows exactly ``tokens``."""
        ids = np.asarray(tokens, dtype=np.int64)
        words = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
        np.bitwise_or.at(words, ids // 32, np.left_shift(np.uint32(1), (ids % 32).astype(np.uint32)))
        return cls(words, vocab_size)

    @classmethod
    def only(cls, token: int, vocab_size: int) -> TokenMask:
        """The mask that allows ``token`` alone."""
        words = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
        words[token >> 5] = 1 << (token & 31)
        return cls(words, vocab_size)

    def allows(self, token: int) -> bool:
        """Whether ``token`` is legal."""
        return bool((int(self.words[token >> 5]) >> (token & 31)) & 1)

    def single(self) -> int | None:
        """The only legal token, or None if there are several or none."""
        bits = int.from_bytes(self.words.tobytes(), "little")  # one big integer is far quicker than a search
        return bits.bit_length() - 1 if bits and not bits & (bits - 1) else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is legal."""
        return not self.words.any()

    def bools(self) -> npt.NDArray[np.bool_]:
        """[vocab_size] True where legal."""
        bits = np.unpackbits(self.words.view(np.uint8), bitorder="little")
        return bits[: self.vocab_size].view(np.bool_)

    def tokens(self) -> npt.NDArray[np.int64]:
        """The legal tokens in ascending order."""
        return np.flatnonzero(self.bools())

    def __and__(self, other: TokenMask) -> TokenMask:
        return TokenMask(self.words & other.words, self.vocab_size)

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        """``scores`` [..., V] with illegal entries at -inf; V may exceed the mask's vocabulary (padding rows)."""
        legal = torch.zeros(scores.shape[-1], dtype=torch.bool)
        legal[: self.vocab_size] = torch.from_numpy(self.bools().copy())
        return scores.masked_fill(~legal.to(scores.device), float("-inf"))


class Veto(NamedTuple):
    """A drawn token that must not be emitted: ``replacement`` is emitted instead and the reply ends.

    ``reason`` becomes part of the reply's statistics (which phrase was hit, say).
    """

    replacement: tuple[int, ...]
    reason: str


class Constraint(Protocol):
    """A cursor at one position of one reply."""

    def fork(self) -> Self:
        """An independent copy at the same position; cheap enough for every node of a tree."""
        ...

    def advance(self, token: int) -> None:
        """Move past ``token``, which must be legal here (ConstraintError otherwise)."""
        ...

    def mask(self) -> TokenMask | None:
        """The legal tokens here, end-of-sequence ids included; None if every token is."""
        ...

    def forced_run(self, limit: int) -> Sequence[int]:
        """Up to ``limit`` tokens each of which is the only legal one at its place (Rule A). Does not move."""
        ...

    def veto(self, token: int) -> Veto | None:
        """What replaces ``token`` if emitting it is forbidden although the mask allows it (compliance)."""
        ...

    @property
    def state(self) -> str:
        """Name of the state at this position, e.g. KEY_NAME; "TEXT" where nothing is constrained (G1)."""
        ...

    @property
    def held_back(self) -> int:
        """How many of the last emitted characters may still have to be replaced, so must not be streamed yet."""
        ...


class ConstraintPlan(Protocol):
    """A compiled constraint, shared by all replies that use it.

    A plan may have ``sections``: plans that take over inside a reply, and that have to be satisfiable by themselves
    (a call that free text may turn into).
    """

    @property
    def minimum_tokens(self) -> int:
        """Tokens of the shortest legal reply, its end-of-sequence token not counted; 0 if it may be empty."""
        ...

    def open(self, max_new_tokens: int) -> Constraint:
        """A cursor at the start of a reply of at most ``max_new_tokens`` tokens (closing budget, G5)."""
        ...
