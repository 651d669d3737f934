"""Which guesses become nodes: best-first, importance-sampled (SYSTEM.md C4, §3.1), and the fixed tree they beat.

All three grow from a *continuation source*: for a context it gives the likely next tokens with probabilities.
"""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from .drafters.base import Proposal, RowCost
from .noise import Purpose
from .tree import ROOT, DraftTree, TreeBuilder, Trial

Context = TypeVar("Context")
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Continuations(NamedTuple):
    """Likely next tokens ``ids`` [k] with probabilities ``probs`` [k], most likely first; the sum may be < 1."""

    ids: IntArray
    probs: FloatArray


class ContinuationSource(Protocol[Context]):
    """A draft distribution over trees of contexts."""

    def root(self) -> Context:
        """The context at the last pending token."""
        ...

    def continuations(self, context: Context) -> Continuations:
        """What may follow; empty when the source has nothing to say."""
        ...

    def extend(self, context: Context, token: int) -> Context:
        """The context after ``token``, one of its continuations."""
        ...


def importance_weights(probs: FloatArray, beta: float) -> FloatArray:
    """w_i = p_i^β / Σ p_j^β (§3.1): β < 1 flattens, so that second choices get their share of the budget."""
    weights = np.power(probs, beta)
    return np.asarray(weights / weights.sum())


def best_first(
    source: ContinuationSource[Context],
    name: str,
    budget: int,
    max_depth: int,
    row_cost: RowCost = RowCost(),  # noqa: B008  (an immutable value)
    floor: float = 0.005,
) -> DraftTree:
    """The nodes of highest path probability (their ancestors are among them): ``budget`` at most, while they pay."""
    builder = TreeBuilder()
    gained = 1.0
    order = itertools.count()
    queue: list[tuple[float, int, int, int, Context, int]] = []

    def push(context: Context, parent: int, score: float, depth: int) -> None:
        ids, probs = source.continuations(context)
        for token, prob in zip(ids.tolist(), probs.tolist()):
            if score * prob >= floor:
                heapq.heappush(queue, (-score * prob, next(order), parent, token, context, depth))

    push(source.root(), ROOT, 1.0, 1)
    while queue and len(builder) < budget:
        negative, _, parent, token, context, depth = heapq.heappop(queue)
        if not row_cost.pays(-negative, gained, len(builder)):
            break
        gained -= negative
        node = builder.add(parent, token, name, -negative)
        if depth < max_depth:
            push(source.extend(context, token), node, -negative, depth + 1)
    return builder.build()


def importance_sampled(
    source: ContinuationSource[Context],
    name: str,
    budget: int,
    max_depth: int,
    proposal: Proposal,
    shallow: float = 0.05,
) -> DraftTree:
    """A tree of draws from w ∝ p^β, deepened by path weight: §3.1 with the draws recorded for the ratio test.

    How many draws a parent gets is decided from its weights before they are drawn. Branches whose path weight
    falls below ``shallow`` stay leaves, the others grow to ``max_depth`` while the budget lasts.
    """
    builder = TreeBuilder()
    order = itertools.count()
    queue = [(-1.0, next(order), ROOT, source.root(), 0)]
    while queue and len(builder) < budget:
        negative, _, parent, context, depth = heapq.heappop(queue)
        ids, probs = source.continuations(context)
        if not len(ids) or depth >= max_depth or (parent != ROOT and -negative < shallow):
            continue
        weights = importance_weights(probs, proposal.beta)
        count = min(_number_of_draws(weights), budget - len(builder))
        tokens = _draw(ids, weights, count, proposal, depth, parent)
        trials = tuple(Trial(token, ids, weights) for token in tokens)
        for token in tokens:
            at = int(np.flatnonzero(ids == token)[0])
            score = -negative * float(probs[at])
            node = builder.add(parent, token, name, score)
            heapq.heappush(queue, (-score, next(order), node, source.extend(context, token), depth + 1))
        builder.set_trials(parent, trials)
    return builder.build()


def _number_of_draws(weights: FloatArray, mass: float = 0.9, most: int = 4) -> int:
    """Enough draws for the likeliest tokens to make up ``mass``, at most ``most``."""
    covered = np.cumsum(np.sort(weights)[::-1])
    return min(most, int(np.searchsorted(covered, mass)) + 1, len(weights))


def _draw(ids: IntArray, weights: FloatArray, count: int, proposal: Proposal, depth: int, parent: int) -> list[int]:
    """``count`` tokens without replacement: the Gumbel-top-k of log w (Kool et al., ICML 2019)."""
    # Depth tells the steps apart: two steps that reach the same token index must not share its noise, because
    # where the first one ended may depend on what it had drawn there.
    rank = depth << 16 | (parent + 1)
    gumbel = proposal.noise.gumbel(proposal.index + depth, ids, Purpose.PROPOSAL, rank)
    return [int(token) for token in ids[np.argsort(-(np.log(weights) + gumbel))[:count]]]


def fixed_tree(
    source: ContinuationSource[Context], name: str, budget: int, width: int = 8, depth: int = 3
) -> DraftTree:
    """The first ``budget`` nodes, breadth-first, of a tree of constant ``width`` and ``depth``: the yardstick."""
    builder = TreeBuilder()
    level = [(ROOT, source.root(), 1.0)]
    for _ in range(depth):
        below = []
        for parent, context, score in level:
            ids, probs = source.continuations(context)
            for token, prob in list(zip(ids.tolist(), probs.tolist()))[:width]:
                if len(builder) >= budget:
                    return builder.build()
                node = builder.add(parent, token, name, score * prob)
                below.append((node, source.extend(context, token), score * prob))
        level = below
    return builder.build()
