"""C4: importance-sampled trees accept more than a fixed one at the same node budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from mmspec_agent.core.accept import rejection
from mmspec_agent.core.drafters.base import Proposal
from mmspec_agent.core.noise import ReplyNoise
from mmspec_agent.core.tree import ROOT, DraftTree
from mmspec_agent.core.tree_sampling import (
    Continuations,
    best_first,
    fixed_tree,
    importance_sampled,
    importance_weights,
)

VOCAB = 64
BUDGETS = (16, 32, 64)
BAR = 1.38
"""0.62 against 0.45 in the source (§5)."""


@dataclass(frozen=True)
class Peaky:
    """Distributions as language models have them: mostly sure, sometimes open.

    The entropy of a context follows from its last two tokens. The target is the draft disturbed by ``gap``.
    """

    seed: int
    gap: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "_known", {})

    def _logits(self, context: tuple[int, ...], disturbed: bool) -> npt.NDArray[np.float64]:
        rng = np.random.default_rng([self.seed, *context[-2:]])
        sharpness = rng.choice([9.0, 5.0, 2.5, 1.2], p=[0.45, 0.25, 0.2, 0.1])
        logits = np.sort(rng.gumbel(size=VOCAB))[::-1] * sharpness / 2
        logits = logits[rng.permutation(VOCAB)]
        return np.asarray(logits + rng.normal(size=VOCAB) * self.gap if disturbed else logits)

    def target_probs(self, context: tuple[int, ...]) -> npt.NDArray[np.float64]:
        return self._probs(context, True)

    def _probs(self, context: tuple[int, ...], disturbed: bool) -> npt.NDArray[np.float64]:
        known: dict[object, npt.NDArray[np.float64]] = self.__dict__["_known"]
        key = (context[-2:], disturbed)
        if key not in known:
            logits = self._logits(context, disturbed)
            weights = np.exp(logits - logits.max())
            known[key] = weights / weights.sum()
        return known[key]

    def root(self) -> tuple[int, ...]:
        return (self.seed % 11, self.seed % 13)

    def continuations(self, context: tuple[int, ...]) -> Continuations:
        probs = self._probs(context, False)
        order = np.argsort(-probs)[:8]
        return Continuations(order.astype(np.int64), probs[order])

    def extend(self, context: tuple[int, ...], token: int) -> tuple[int, ...]:
        return (*context, token)


def expected_accepted(source: Peaky, tree: DraftTree) -> float:
    """Nodes accepted on average by the coupled rule: each node counts its probability under the target."""
    reach = {ROOT: 1.0}
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens)):
        context = source.root() + (() if parent == ROOT else tuple(tree.path_tokens(parent)))
        reach[node] = reach[parent] * float(source.target_probs(context)[token])
    return sum(reach.values()) - 1.0


def walked(source: Peaky, tree: DraftTree, noise: ReplyNoise) -> int:
    """Nodes accepted by the ratio test along one walk."""
    node, count = ROOT, 0
    while node in tree.trials:
        context = source.root() + (() if node == ROOT else tuple(tree.path_tokens(node)))
        child = rejection(tree, node, source.target_probs(context), noise, count).child
        if child is None:
            break
        node, count = child, count + 1
    return count


def accepted(budget: int, contexts: int = 60, draws: int = 8) -> dict[str, float]:
    """Accepted tokens per step of each kind of tree, each under its own rule, over many contexts."""
    sums = {"fixed": 0.0, "importance": 0.0, "best first": 0.0}
    for seed in range(contexts):
        source = Peaky(seed)
        sums["fixed"] += expected_accepted(source, fixed_tree(source, "f", budget))
        sums["best first"] += expected_accepted(source, best_first(source, "b", budget, 12))
        for draw in range(draws):
            noise = ReplyNoise(draw, seed)
            tree = importance_sampled(source, "i", budget, 12, Proposal(0.65, noise, 0))
            sums["importance"] += walked(source, tree, noise) / draws
    return {name: total / contexts for name, total in sums.items()}


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
def test_importance_sampled_trees_accept_38_percent_more_than_the_fixed_tree(budget: int) -> None:
    measured = accepted(budget)
    assert measured["importance"] >= BAR * measured["fixed"], measured
    assert measured["best first"] >= BAR * measured["fixed"], measured


def test_weights_flatten() -> None:
    probs = np.array([0.7, 0.2, 0.1])
    weights = importance_weights(probs, 0.5)
    assert weights.sum() == pytest.approx(1.0)
    assert weights[0] < 0.7
    assert weights[2] > 0.1
    assert importance_weights(probs, 1.0) == pytest.approx(probs)


def test_trees_keep_to_budget_and_depth() -> None:
    source = Peaky(3)
    for budget in (0, 1, 7, 40):
        proposal = Proposal(0.6, ReplyNoise(0), 0)
        trees = (
            fixed_tree(source, "f", budget, width=3, depth=2),
            importance_sampled(source, "i", budget, 4, proposal),
            best_first(source, "b", budget, 4),
        )
        for tree in trees:
            assert len(tree) <= budget
            assert tree.depth <= 4
    assert len(fixed_tree(source, "f", 100, width=3, depth=2)) == 12


def test_draws_differ_between_steps_parents_and_seeds() -> None:
    def draws(seed: int, index: int) -> tuple[int, ...]:
        return importance_sampled(Peaky(4), "i", 30, 5, Proposal(0.3, ReplyNoise(seed), index)).tokens

    assert draws(0, 0) == draws(0, 0)
    assert len({draws(0, 0), draws(1, 0), draws(0, 1), draws(0, 2)}) == 4
