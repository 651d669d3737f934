"""The target as the decoding loop sees it (SYSTEM.md C1): a protocol, so that other backends fit.

Processors, samplers, constraints and drafters see logits and hidden states, never torch modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from .errors import NumericalError
from .tree import DraftTree

_INFINITY = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
"""Bits of the magnitude of infinity in the 16-bit formats."""


class StepResult:
    """Logits of a forward at the last pending token (row 0) and at every draft node i (row i + 1).

    ``logits`` [rows, V] stay on the device in the model's dtype; single rows are handed out on demand.
    ``hidden`` [rows, width] only when a drafter asked for it.
    """

    def __init__(self, logits: torch.Tensor, hidden: torch.Tensor | None = None) -> None:
        self.logits = logits
        self.hidden = hidden
        self._argmax: list[int] | None = None

    def row(self, node: int) -> torch.Tensor:
        """[1, V] float32 copy of the logits at ``node`` (ROOT: the last pending token)."""
        return self.logits[node + 1 : node + 2].to(dtype=torch.float32, copy=True)

    def argmax(self, node: int) -> int:
        """The most likely token at ``node``; all rows are reduced on the device at once.

        NumericalError if the row's maximum is not finite.
        """
        if self._argmax is None:
            self._argmax = best_tokens(self.logits)
        token = self._argmax[node + 1]
        if token < 0:
            raise NumericalError(
                "the target's logits are NaN or infinite at this position; check the weights and the dtype "
                "(float16 overflows in some models: try bfloat16 or float32)"
            )
        return token


def best_tokens(logits: torch.Tensor) -> list[int]:
    """The most likely token of each row of ``logits`` [rows, V], the first of equals; -1 where it is not finite.

    On a CPU numpy reduces them on one thread: waking torch's threads for so little work takes longer than the work.
    """
    if logits.device.type != "cpu" or logits.dtype not in (torch.float32, *_INFINITY):
        values, tokens = logits.max(dim=-1)
        return [int(token) for token in torch.where(torch.isfinite(values), tokens, -1).tolist()]
    if logits.dtype == torch.float32:
        scores = logits.numpy()
        best = scores.argmax(axis=-1)
        finite = np.isfinite(scores[np.arange(len(best)), best])
    else:
        best, finite = _best_of_halves(logits.view(torch.int16).numpy(), _INFINITY[logits.dtype])
    return [int(token) if ok else -1 for token, ok in zip(best, finite)]


def _best_of_halves(bits: npt.NDArray[np.int16], infinity: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Argmax and finiteness per row of 16-bit floats given by their bits: sign and magnitude sort as integers."""
    magnitude = bits & 0x7FFF
    best = (bits ^ ((bits >> 15) & 0x7FFF)).argmax(axis=-1)
    has_nan = magnitude.max(axis=-1) > infinity
    return best, ~has_nan & (magnitude[np.arange(len(best)), best] < infinity)


class TargetSequence(Protocol):
    """The target together with the KV rows of one sequence."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        ...

    @property
    def max_rows(self) -> int:
        """Positions still free in the model's context behind the cached tokens."""
        ...

    def settle(self, total: int) -> None:
        """Drop rows that cannot serve a sequence of ``total`` tokens (see ``rotary``)."""
        ...

    def span(self, count: int) -> int:
        """How many of the next ``count`` tokens may share a forward."""
        ...

    def draft_room(self, pending: int) -> int:
        """How deep a draft tree behind ``pending`` tokens may be."""
        ...

    def prefill(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; no logits are computed."""
        ...

    def verify(self, pending: Sequence[int], tree: DraftTree, need_hidden: bool = False) -> StepResult:
        """One forward over the pending chain and the tree behind it; nothing is committed yet."""
        ...

    def commit(self, pending: int, path: Sequence[int]) -> None:
        """Keep the rows of ``pending`` tokens and of the accepted ``path`` of the last ``verify``."""
        ...

    def truncate(self, length: int) -> None:
        """Forget everything behind ``length`` tokens."""
        ...


class Target(Protocol):
    """A model whose output counts."""

    @property
    def vocab_size(self) -> int:
        """Rows of the output layer."""
        ...

    @property
    def context_limit(self) -> int | None:
        """Longest sequence the model can hold, None if it does not say."""
        ...

    @property
    def placeholder_ids(self) -> frozenset[int]:
        """Ids that stand for picture or video features; never drafted."""
        ...

    def open(self, capacity: int) -> TargetSequence:
        """An empty sequence with room for ``capacity`` tokens, grown on demand."""
        ...
