"""Proof 3: the law of joint two-token outcomes, by chi-square; every wrong variant of the rule must be caught.

20,000 replies of two tokens over a table of logits, against the exact distribution. The bar is a p-value of
1e-9: a sound rule fails it once in a billion runs, a wrong one at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
import torch
from fake import FakeDrafter, Table, decode
from scipy.special import gammaincc

from mmspec_agent.core.accept import Choice, rejection
from mmspec_agent.core.controller import Controller
from mmspec_agent.core.drafters.base import DraftView, Proposal
from mmspec_agent.core.noise import Purpose, ReplyNoise, philox4x32
from mmspec_agent.core.sampling import draw_from, gumbel_argmax
from mmspec_agent.core.tree import ROOT, DraftTree, Trial
from mmspec_agent.core.tree_sampling import Continuations, importance_sampled

FloatArray = npt.NDArray[np.float64]
DRAWS = 20_000
LEVEL = 1e-9
PROMPT = [1, 2]


@dataclass(frozen=True)
class Pair:
    """A target and a draft over the same small vocabulary; the draft is a continuation source at the prompt."""

    target: Table
    draft: Table
    _target: dict[tuple[int, ...], FloatArray] = field(default_factory=dict)
    _draft: dict[tuple[int, ...], Continuations] = field(default_factory=dict)

    @classmethod
    def of(cls, q: Sequence[float], w: Sequence[float]) -> Pair:
        """The same two distributions in every context."""
        size = (len(q),) * 3
        target, draft = (Table(np.broadcast_to(np.log(np.array(p)), size).copy()) for p in (q, w))
        return cls(target, draft)

    @property
    def vocab(self) -> int:
        return self.target.vocab

    def exact(self) -> FloatArray:
        """[V, V] probability of each two-token outcome."""
        first = self.target_probs(PROMPT)
        return np.stack([first[a] * self.target_probs([*PROMPT, a]) for a in range(self.vocab)])

    def target_probs(self, tokens: Sequence[int]) -> FloatArray:
        key = tuple(tokens[-2:])
        if key not in self._target:
            self._target[key] = self.target.probs(key)
        return self._target[key]

    def root(self) -> tuple[int, ...]:
        return tuple(PROMPT)

    def continuations(self, context: tuple[int, ...]) -> Continuations:
        key = context[-2:]
        if key not in self._draft:
            probs = self.draft.probs(key)
            order = np.argsort(-probs, kind="stable")
            self._draft[key] = Continuations(order.astype(np.int64), probs[order])
        return self._draft[key]

    def extend(self, context: tuple[int, ...], token: int) -> tuple[int, ...]:
        return (*context, token)


def random_pair() -> Pair:
    target = Table.random(11, 4, scale=1.0)
    return Pair(target, Table(target.logits + np.random.default_rng(12).normal(size=(4, 4, 4)) * 1.2))


PAIR = random_pair()
SKEWED = Pair.of(q=(1e-6, 0.55, 0.45), w=(0.5, 0.45, 0.05))


def p_value(counts: FloatArray, expected: FloatArray) -> float:
    """Of Pearson's chi-square."""
    total = counts.sum()
    wanted = expected * total
    statistic = float(((counts - wanted) ** 2 / wanted).sum())
    return float(gammaincc((expected.size - 1) / 2, statistic / 2))


class QuickNoise(ReplyNoise):
    """The same addresses, with numpy's own numbers behind them: a tenth of Philox's time for a few entries.

    What matters here is which draws share a number, and that is the address's; test_noise tests Philox.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        object.__setattr__(self, "_rng", _GENERATOR)
        object.__setattr__(self, "_drawn", {})

    def _all(self, index: int, purpose: Purpose, rank: int) -> FloatArray:
        drawn: dict[tuple[int, int, int], FloatArray] = self.__dict__["_drawn"]
        numbers = drawn.get((index, purpose, rank))
        if numbers is None:
            numbers = drawn[index, purpose, rank] = self.__dict__["_rng"].random(8)
        return numbers

    def uniform(self, index: int, purpose: Purpose, entries: npt.NDArray[np.int64], rank: int = 0) -> FloatArray:
        return self._all(index, purpose, rank)[entries]

    def uniforms(self, index: int, purpose: Purpose, size: int, rank: int = 0) -> FloatArray:
        return self._all(index, purpose, rank)[:size]


_GENERATOR = np.random.default_rng(20)


Rule = Callable[[DraftTree, int, FloatArray, ReplyNoise, int, float], Choice]


def walk(pair: Pair, tree: DraftTree, noise: ReplyNoise, gamma: float, rule: Rule) -> tuple[int, int]:
    """The first two tokens of a reply over one tree; without trials a node takes the target's own draw."""
    tokens = list(PROMPT)
    node: int | None = ROOT
    for index in range(2):
        probs = pair.target_probs(tokens)
        if node is not None and node in tree.trials:
            choice = rule(tree, node, probs, noise, index, gamma)
        else:
            choice = Choice(draw_from(probs, noise, index, Purpose.TARGET), None)
            choice = Choice(choice.token, tree.child(node, choice.token) if node is not None else None)
        tokens.append(choice.token)
        node = choice.child
    return tokens[-2], tokens[-1]


def histogram(
    pair: Pair,
    beta: float,
    gamma: float,
    rule: Rule = rejection,
    draws: int = DRAWS,
    cut: int | None = None,
    budget: int = 8,
) -> FloatArray:
    counts = np.zeros((pair.vocab, pair.vocab))
    for seed in range(draws):
        noise = QuickNoise(seed)
        tree = importance_sampled(pair, "draft", budget, 2, Proposal(beta, noise, 0))
        counts[walk(pair, tree if cut is None else tree.trim(cut), noise, gamma, rule)] += 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "gamma"), [(0.5, 1.0), (1.0, 1.0), (0.5, 0.6), (0.8, 0.8)])
def test_rejection_keeps_the_law(beta: float, gamma: float) -> None:
    assert p_value(histogram(PAIR, beta, gamma), PAIR.exact()) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 3])
def test_rejection_keeps_the_law_when_nodes_are_cut_after_the_draw(cut: int) -> None:
    """What is cut depends on what was drawn; the draws must be judged all the same."""
    assert p_value(histogram(PAIR, 0.7, 1.0, cut=cut), PAIR.exact()) > LEVEL


# -- negative controls: each is the rule with one mistake ------------------------------------------------------


def ratio_by_p(tree: DraftTree, node: int, q: FloatArray, noise: ReplyNoise, index: int, gamma: float) -> Choice:
    """The source's ratio: by the draft's own p, although children were drawn from w."""
    path = [] if node == ROOT else tree.path_tokens(node)
    return _variant(tree, node, q, noise, index, gamma, p=PAIR.draft.probs([*PROMPT, *path]))


def residual_without_gamma(
    tree: DraftTree, node: int, q: FloatArray, noise: ReplyNoise, index: int, gamma: float
) -> Choice:
    """The source's residual, (q - w)_+, with gamma < 1."""
    return _variant(tree, node, q, noise, index, gamma, residual_gamma=1.0)


def one_key_for_siblings(
    tree: DraftTree, node: int, q: FloatArray, noise: ReplyNoise, index: int, gamma: float
) -> Choice:
    """One acceptance number for all ranks."""
    return _variant(tree, node, q, noise, index, gamma, same_rank=True)


def residual_from_proposal_noise(
    tree: DraftTree, node: int, q: FloatArray, noise: ReplyNoise, index: int, gamma: float
) -> Choice:
    """The recovered token drawn with the noise that drew the children."""
    rank = index << 16 | (node + 1)
    return _variant(tree, node, q, noise, index, gamma, purpose=Purpose.PROPOSAL, rank=rank)


def _variant(
    tree: DraftTree,
    node: int,
    q: FloatArray,
    noise: ReplyNoise,
    index: int,
    gamma: float,
    p: FloatArray | None = None,
    residual_gamma: float | None = None,
    same_rank: bool = False,
    purpose: Purpose = Purpose.RESIDUAL,
    rank: int = 0,
) -> Choice:
    """The rule written anew, for one mistake at a time; without any it is ``rejection``."""
    residual, excluded = q, np.ones(len(q))
    for i, trial in enumerate(tree.trials[node]):
        w = np.zeros(len(q))
        w[trial.ids] = trial.weights
        w = w * excluded / (w * excluded).sum()
        shown = w if p is None else p * excluded / (p * excluded).sum()
        uniform = noise.uniform(index, Purpose.ACCEPTANCE, np.zeros(1, np.int64), 0 if same_rank else i)[0]
        if uniform < gamma * residual[trial.token] / shown[trial.token]:
            return Choice(trial.token, tree.child(node, trial.token))
        kept = gamma if residual_gamma is None else residual_gamma
        left = np.maximum(residual - np.minimum(shown, kept * residual), 0.0)
        residual = left / left.sum() if left.sum() > 0 else residual
        excluded[trial.token] = 0.0
    token = draw_from(residual, noise, index, purpose, rank)
    return Choice(token, tree.child(node, token))


def test_the_rule_written_anew_agrees_with_the_rule() -> None:
    def anew(tree: DraftTree, node: int, q: FloatArray, noise: ReplyNoise, index: int, gamma: float) -> Choice:
        return _variant(tree, node, q, noise, index, gamma)

    for seed in range(150):
        noise = ReplyNoise(seed)
        tree = importance_sampled(PAIR, "draft", 8, 2, Proposal(0.7, noise, 0))
        for gamma in (1.0, 0.6):
            assert walk(PAIR, tree, noise, gamma, rejection) == walk(PAIR, tree, noise, gamma, anew)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "pair", "beta", "gamma"),
    [
        (ratio_by_p, PAIR, 0.5, 1.0),
        (residual_without_gamma, PAIR, 0.5, 0.6),
        (one_key_for_siblings, PAIR, 1.0, 1.0),
        (residual_from_proposal_noise, SKEWED, 1.0, 1.0),
    ],
)
def test_wrong_rules_are_caught(rule: Rule, pair: Pair, beta: float, gamma: float) -> None:
    """In the setting of each control the sound rule passes, so it is the mistake that is seen."""
    budget = 1 if pair is SKEWED else 8
    assert p_value(histogram(pair, beta, gamma, rule, budget=budget), pair.exact()) < LEVEL
    assert p_value(histogram(pair, beta, gamma, draws=5000, budget=budget), pair.exact()) > LEVEL


@pytest.mark.slow
def test_losing_a_parents_draws_for_one_cut_node_is_caught() -> None:
    """Why ``select`` keeps trials: the coupled rule for parents that lost a node favours likely guesses."""

    def forgetful(tree: DraftTree, node: int, q: FloatArray, noise: ReplyNoise, index: int, gamma: float) -> Choice:
        if any(tree.child(node, trial.token) is None for trial in tree.trials[node]):
            token = draw_from(q, noise, index, Purpose.TARGET)
            return Choice(token, tree.child(node, token))
        return rejection(tree, node, q, noise, index, gamma)

    assert p_value(_thresholded(PAIR, forgetful), PAIR.exact()) < LEVEL
    assert p_value(_thresholded(PAIR, rejection), PAIR.exact()) > LEVEL


def _thresholded(pair: Pair, rule: Rule) -> FloatArray:
    """One draw a parent; the controller cuts what it thinks unlikely."""
    counts = np.zeros((pair.vocab, pair.vocab))
    for seed in range(DRAWS):
        noise = QuickNoise(seed)
        tree = importance_sampled(pair, "draft", 1, 2, Proposal(1.0, noise, 0))
        tree = tree.select([n for n in range(len(tree)) if tree.scores[n] > 0.3])
        counts[walk(pair, tree, noise, 1.0, rule)] += 1
    return counts


# -- coupled ---------------------------------------------------------------------------------------------------


def _coupled(indices: tuple[int, int]) -> FloatArray:
    """Histogram of argmax(log q + g) twice over, g by Philox at the given token indices; all replies at once."""
    keys = np.stack([ReplyNoise(seed).key for seed in range(DRAWS)])
    tokens = np.tile(np.array(PROMPT), (DRAWS, 1))
    for index in indices:
        counter = np.broadcast_to(np.array([0, index, Purpose.TARGET, 0], np.uint32), (DRAWS, 4))
        gumbel = -np.log(-np.log((philox4x32(counter, keys) + 0.5) * 2.0**-32))
        drawn = (PAIR.target.logits[tokens[:, -2], tokens[:, -1]] + gumbel).argmax(axis=1)
        for seed in range(20):
            row = torch.from_numpy(PAIR.target.row(tokens[seed]))
            assert drawn[seed] == gumbel_argmax(row, ReplyNoise(seed), index)
        tokens = np.column_stack([tokens, drawn])
    counts = np.zeros((PAIR.vocab, PAIR.vocab))
    np.add.at(counts, (tokens[:, -2], tokens[:, -1]), 1)
    return counts


def test_coupled_keeps_the_law() -> None:
    """The token is argmax(log q + g) whatever was drafted, so drawing it is all there is to test."""
    assert p_value(_coupled((0, 1)), PAIR.exact()) > LEVEL


def test_one_noise_vector_for_both_tokens_is_caught() -> None:
    """Why the index is part of the key."""
    assert p_value(_coupled((0, 0)), PAIR.exact()) < LEVEL


# -- the loop itself -------------------------------------------------------------------------------------------


class _At(Pair):
    """The draft at another place than the prompt."""

    def __init__(self, pair: Pair, place: tuple[int, ...]) -> None:
        super().__init__(pair.target, pair.draft, pair._target, pair._draft)
        object.__setattr__(self, "_place", place)

    def root(self) -> tuple[int, ...]:
        place: tuple[int, ...] = self.__dict__["_place"]
        return place


def _drafter() -> FakeDrafter:
    def propose(view: DraftView, budget: int) -> DraftTree:
        assert view.proposal is not None
        return importance_sampled(_At(PAIR, tuple(view.tokens)), "draft", budget, view.remaining, view.proposal)

    return FakeDrafter(propose, "draft")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "gamma"), [("rejection", 1.0), ("rejection", 0.7), ("coupled", 1.0)])
def test_the_loop_keeps_the_law(mode: str, gamma: float) -> None:
    """The whole path: drafter, merge, the controller's cut, walk; three tokens, the last two are looked at."""
    expected = np.zeros((PAIR.vocab, PAIR.vocab))
    first = PAIR.target.probs(PROMPT)
    for a in range(PAIR.vocab):
        second = PAIR.target.probs([*PROMPT, a])
        for b in range(PAIR.vocab):
            expected[b] += first[a] * second[b] * PAIR.target.probs([*PROMPT, a, b])
    counts = np.zeros((PAIR.vocab, PAIR.vocab))
    drafter = _drafter() if mode == "rejection" else FakeDrafter(lambda view, budget: DraftTree.chain([2, 1], "d"))
    for seed in range(2000):
        tokens, _ = decode(
            PAIR.target,
            PROMPT,
            3,
            drafters=[drafter],
            temperature=1.0,
            seed=seed,
            controller=Controller(max_nodes=6),
            mode=mode,
            gamma=gamma,
        )
        counts[tokens[1], tokens[2]] += 1
        drafter.states.clear()
    assert p_value(counts, expected) > LEVEL


def test_rejection_at_temperature_0_is_greedy() -> None:
    plain, _ = decode(PAIR.target, PROMPT, 30)
    drafter = FakeDrafter(lambda view, budget: DraftTree.chain([2, 1], "d"))
    assert decode(PAIR.target, PROMPT, 30, drafters=[drafter], mode="rejection")[0] == plain


def test_edges_of_the_ratio_test() -> None:
    """q = 0 rejects; an exhausted or empty residual falls back to the last one that was not empty."""
    noise = ReplyNoise(0)
    ids, weights = np.arange(2), np.array([1.0, 0.0])
    tree = DraftTree((0,), (ROOT,), ("t",), (1.0,), {ROOT: (Trial(0, ids, weights),)})
    assert rejection(tree, ROOT, np.array([0.0, 1.0]), noise, 0).token == 1
    assert rejection(tree, ROOT, np.array([1.0, 0.0]), noise, 0) == Choice(0, 0)
    twice = DraftTree((0,), (ROOT,), ("t",), (1.0,), {ROOT: (Trial(0, ids, weights),) * 3})
    for seed in range(50):
        assert rejection(twice, ROOT, np.array([0.3, 0.7]), ReplyNoise(seed), 0).token in (0, 1)
    tiny = rejection(tree, ROOT, np.array([1e-300, 1.0]), noise, 0)
    assert tiny.token == 1
