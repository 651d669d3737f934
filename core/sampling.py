"""From the target's logits to the target's token: processors, constraint, warpers, coupled noise (C5, C10).

Order of processing in every arm (EXACTNESS.md): penalties, biases, bans; then the constraint's mask; then
temperature and truncation. Only rows that the walk visits are processed, each exactly once and in the order of
the emitted tokens, so stateful processors see what plain decoding would show them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers.generation.logits_process import (
    InfNanRemoveLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
)

from .constraint import TokenMask
from .errors import ConstraintConflict, MMSpecError, NumericalError, OptionError
from .noise import Purpose, ReplyNoise
from .target import StepResult

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(input_ids [1, length], scores [1, V]) to scores [1, V], as in transformers."""


@dataclass(frozen=True)
class Processing:
    """What happens to the logits: ``before`` the constraint's mask and ``after`` it."""

    before: Sequence[Processor] = ()
    after: Sequence[Processor] = ()
    greedy: bool = True
    keep_scores: bool = False
    keep_logprobs: bool = False
    top_logprobs: int = 0
    """How many of the likeliest tokens to keep with their log-probabilities; needs ``keep_logprobs``."""

    @property
    def keeps_support(self) -> bool:
        """Whether no processor can take the last legal token away, so that the only legal one may be skipped to."""
        return all(getattr(process, "keeps_support", False) for process in self.before)


class Draw(NamedTuple):
    """The target's token at one position, with what the caller asked to keep."""

    token: int
    scores: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


class IdBuffer:
    """The ids so far as a tensor [1, length] that processors and criteria can be shown without a copy."""

    def __init__(self, tokens: Sequence[int], device: torch.device, room: int = 256) -> None:
        self._data = torch.empty(1, len(tokens) + room, dtype=torch.long, device=device)
        self._data[0, : len(tokens)] = torch.tensor(list(tokens), dtype=torch.long)
        self.length = len(tokens)

    def append(self, token: int) -> None:
        """Add one id."""
        if self.length == self._data.shape[1]:
            grown = self._data.new_empty(1, 2 * self.length)
            grown[:, : self.length] = self._data
            self._data = grown
        self._data[0, self.length] = token
        self.length += 1

    def view(self) -> torch.Tensor:
        """[1, length]."""
        return self._data[:, : self.length]


@dataclass
class Sampler:
    """Draws the target's token at visited positions of one reply."""

    processing: Processing
    noise: ReplyNoise
    ids: IdBuffer
    history: list[Draw] = field(default_factory=list)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the token is the argmax of the raw logits, so that no row has to be copied."""
        p = self.processing
        return p.greedy and not (p.before or p.after or p.keep_scores or p.keep_logprobs)

    def draw(self, result: StepResult, node: int, index: int, mask: TokenMask | None) -> Draw:
        """The token that plain decoding would emit as token ``index`` of the reply.

        Errors: NumericalError for rows that cannot be drawn from, ConstraintConflict if nothing is legal.
        """
        if self.is_plain_greedy and mask is None:
            return Draw(result.argmax(node))
        if self.is_plain_greedy and mask is not None and mask.allows(top := result.argmax(node)):
            return Draw(top)  # the best of all tokens is the best of the legal ones
        single = mask.single() if mask is not None else None
        p = self.processing
        if single is not None and not (p.before or p.keep_scores or p.keep_logprobs):
            return self.forced(single)
        logits = result.row(node)
        scores = self.scores(logits, mask)
        return self.kept(self._choose(scores, index), scores, logits)

    def forced(self, token: int) -> Draw:
        """The draw of the only legal token."""
        return Draw(token, logprob=0.0, top_logprobs=((token, 0.0),) if self.processing.top_logprobs else ())

    def kept(self, token: int, scores: torch.Tensor, logits: torch.Tensor) -> Draw:
        """``token`` with what the caller asked to keep of its processed ``scores`` and raw ``logits`` [1, V]."""
        p = self.processing
        draw = Draw(token, scores, logits) if p.keep_scores else Draw(token)
        if not p.keep_logprobs:
            return draw
        logprobs = torch.log_softmax(scores[0], dim=-1)
        return draw._replace(logprob=float(logprobs[token]), top_logprobs=likeliest(logprobs, p.top_logprobs))

    def scores(self, logits: torch.Tensor, mask: TokenMask | None) -> torch.Tensor:
        """Processed scores [1, V] of one row of raw ``logits`` [1, V]."""
        if not any(isinstance(p, InfNanRemoveLogitsProcessor) for p in self.processing.before):
            check_row(logits)
        ids = self.ids.view()
        scores = processed(self.processing.before, ids, logits)
        if mask is not None:
            scores = mask.apply(scores)
        # Greedy has no warpers, but watermarks and normalisation come after the mask as well.
        scores = processed(self.processing.after, ids, scores)
        if not bool((scores > float("-inf")).any()):
            raise ConstraintConflict(
                "no token is both legal under the constraint and allowed by the bans (bad_words_ids, "
                "suppress_tokens, min_new_tokens …) at this position; relax one of the two"
            )
        return scores

    def _choose(self, scores: torch.Tensor, index: int) -> int:
        if self.processing.greedy:
            return int(scores[0].argmax())
        return gumbel_argmax(scores[0], self.noise, index)


def processed(processors: Sequence[Processor], ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """``scores`` [rows, V] through ``processors`` in order, each shown ``ids`` [rows, length].

    OptionError if one of transformers' own refuses its settings, or if one returns no scores of that shape; what a
    user's own processor raises is passed on as it is.
    """
    shape = scores.shape
    for process in processors:
        try:
            scores = process(ids, scores)
        except MMSpecError:
            raise
        except Exception as error:
            if not is_of_transformers(process):
                raise
            raise OptionError(f"{type(process).__name__} of transformers refuses: {error}") from error
        if not isinstance(scores, torch.Tensor) or scores.shape != shape:
            got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            name = getattr(process, "__name__", type(process).__name__)
            raise OptionError(
                f"the logits processor {name} returned {got}; accepted is a tensor {tuple(shape)} [rows, vocabulary]"
            )
    return scores


def is_of_transformers(process: object) -> bool:
    """Whether a processor or criterion is one of transformers' own, not a user's, and calls no user's function."""
    if isinstance(process, PrefixConstrainedLogitsProcessor):
        return False
    return type(process).__module__.startswith("transformers.")


def likeliest(logprobs: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The ``count`` likeliest possible tokens of ``logprobs`` [V] with their log-probabilities, best first."""
    if not count:
        return ()
    values, tokens = logprobs.topk(min(count, len(logprobs)))
    pairs = zip(tokens.tolist(), values.tolist())
    return tuple((int(token), value) for token, value in pairs if value > float("-inf"))


def gumbel_argmax(scores: torch.Tensor, noise: ReplyNoise, index: int) -> int:
    """argmax(scores + g) over the entries of ``scores`` [V] that are possible; g depends on (seed, index) alone."""
    survivors = torch.nonzero(scores > float("-inf")).reshape(-1)
    values = scores[survivors].double().cpu().numpy()
    entries = survivors.cpu().numpy()
    everything = len(entries) == scores.shape[0]
    gumbel = noise.gumbel(index, len(entries) if everything else entries)
    return int(entries[int(np.argmax(values + gumbel))])


def check_row(logits: torch.Tensor) -> None:
    """NumericalError if a row of logits holds NaN or +Inf, or nothing finite."""
    top = float(logits.max())
    if not np.isfinite(top):
        raise NumericalError(
            "the target's logits are NaN or infinite at this position; check the weights and the dtype "
            "(float16 overflows in some models: try bfloat16 or float32)"
        )


def probabilities(scores: torch.Tensor) -> npt.NDArray[np.float64]:
    """[V] float64 distribution of processed scores [1, V] or [V]."""
    values = scores.reshape(-1).double().cpu().numpy()
    weights = np.exp(values - values.max())
    return np.asarray(weights / weights.sum())


def draw_from(weights: npt.NDArray[np.float64], noise: ReplyNoise, index: int, purpose: Purpose, rank: int = 0) -> int:
    """A token drawn from ``weights`` [V] (not necessarily normalised) by the Gumbel-max rule."""
    entries = np.flatnonzero(weights > 0)
    gumbel = noise.gumbel(index, entries.astype(np.int64), purpose, rank)
    return int(entries[int(np.argmax(np.log(weights[entries]) + gumbel))])
