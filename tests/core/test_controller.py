"""The controller: what hopeless drafts may cost, what good ones bring, and a ladder that says why."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from mmspec_agent.core.controller import Controller, CostModel, StepTimes
from mmspec_agent.core.tree import DraftTree

pytestmark = pytest.mark.own_clock
Curve = Callable[[int], float]

CURVES: dict[str, Curve] = {
    "flat": lambda rows: 1.0,
    "memory-bound": lambda rows: 1.0 + 0.012 * (rows - 1),
    "measured on two cores": lambda rows: float(np.interp(rows, [1, 8, 16, 32, 64, 128], [1, 1.4, 1.65, 2.4, 3.4, 6])),
    "compute-bound": lambda rows: 1.0 + 0.2 * (rows - 1),
    "linear": lambda rows: float(rows),
    "slow at 2 and 3 rows": lambda rows: float(np.interp(rows, [1, 2, 3, 4, 16, 128], [1, 2.2, 2.3, 1.3, 1.7, 5])),
    "cliff": lambda rows: 1.0 if rows == 1 else 2.5 + 0.05 * rows,
}


class Simulation:
    """A decoding loop without tokens: forwards cost what the curve says, drafts hit with a given chance."""

    def __init__(self, curve: Curve, hit: float, claim: float, draft: float = 0.0, noise: float = 0.0) -> None:
        self.curve, self.hit, self.claim, self.draft, self.noise = curve, hit, claim, draft, noise
        self.rng = np.random.default_rng(0)
        self.controller = Controller()
        self.costs: list[float] = []
        """Cost of each emitted token, in plain steps."""

    def reply(self, tokens: int) -> None:
        self.controller.begin_reply()
        end = len(self.costs) + tokens
        while len(self.costs) < end:
            self._step()
        del self.costs[end:]

    def _step(self) -> None:
        budget = self.controller.budget()
        scores = [self.claim**depth for depth in range(1, budget + 1)]
        drafted = DraftTree.chain(list(range(budget)), "sim", scores)
        tree = self.controller.choose(drafted, 1, budget)
        accepted = 0
        while accepted < len(tree) and self.rng.uniform() < self.hit:
            accepted += 1
        jitter = 1.0 + self.noise * float(self.rng.exponential())
        verify = self.curve(1 + len(tree)) * jitter
        draft = self.draft if budget else 0.0
        self.controller.observe(tree, 1, accepted, accepted + 1, StepTimes(draft, verify, 0.0))
        self.costs += [(self.curve(1 + len(tree)) + draft) / (accepted + 1)] * (accepted + 1)

    def worst_window(self, window: int = 200) -> float:
        """Highest cost of that many tokens in a row, relative to plain decoding."""
        sums = np.cumsum([0.0, *self.costs])
        return float((sums[window:] - sums[:-window]).max() / (window * self.curve(1)))


@pytest.mark.parametrize("claim", [0.5, 0.9, 1.0])
@pytest.mark.parametrize(("draft", "noise"), [(0.0, 0.0), (0.02, 0.2)])
@pytest.mark.parametrize("name", CURVES)
def test_hopeless_drafts_cost_at_most_three_percent_of_any_200_tokens(
    name: str, draft: float, noise: float, claim: float
) -> None:
    simulation = Simulation(CURVES[name], 0.0, claim, draft, noise)
    simulation.reply(700)
    assert simulation.worst_window() <= 1.03


def test_hopeless_drafts_over_many_short_replies() -> None:
    """Each reply gives drafts another chance; over 200 tokens that must stay affordable too."""
    for name, length in itertools.product(CURVES, (40, 100, 200)):
        simulation = Simulation(CURVES[name], 0.0, 0.9)
        for _ in range(600 // length):
            simulation.reply(length)
        assert simulation.worst_window() <= 1.03, (name, length)


def test_good_drafts_pay() -> None:
    for name, bar in (("flat", 0.3), ("memory-bound", 0.35), ("measured on two cores", 0.6)):
        simulation = Simulation(CURVES[name], 0.85, 0.85)
        simulation.reply(600)
        assert np.mean(simulation.costs[100:]) < bar, name


def test_drafts_that_turn_good_are_found_again() -> None:
    simulation = Simulation(CURVES["memory-bound"], 0.0, 0.9)
    simulation.reply(300)
    assert simulation.controller.level.name == "PLAIN"
    simulation.hit = 0.9
    for _ in range(120):
        simulation._step()
    assert simulation.controller.level.name == "TREE"
    assert simulation.controller.changes["up to tree: a probe paid"] >= 1


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("turn", range(0, 400, 57))
def test_perfect_drafts_are_taken_up_whatever_came_before(name: str, turn: int) -> None:
    """Within a hundred tokens; behind a cliff, where any look costs two steps, when the credit has grown to that.

    Not even drafting that costs as much as the credit grows may keep a spent credit from coming back.
    """
    simulation = Simulation(CURVES[name], 0.0, 0.9, draft=0.012)
    simulation.reply(100 + turn)
    simulation.hit = 1.0
    simulation.reply(350 if name == "cliff" else 150)
    taken = simulation.costs[-50:]
    assert np.mean(taken) < max(0.3, 1.5 * min(simulation.curve(1 + n) / (1 + n) for n in range(64)))


def test_every_change_of_the_ladder_is_counted_with_its_reason() -> None:
    controller = Controller()
    assert controller.step_down("heat")
    assert controller.level.name == "CHAIN"
    assert controller.out_of_memory()
    assert controller.level.name == "PLAIN"
    assert not controller.out_of_memory()
    controller.begin_reply()
    assert controller.level.name == "PLAIN"
    assert controller.budget() == 0
    assert dict(controller.changes) == {"down to chain: heat": 1, "down to plain: out of memory": 1}


def test_a_chain_is_one_branch_and_a_tree_may_be_more() -> None:
    tree = DraftTree((1, 2, 3, 4), (-1, 0, -1, 2), ("t",) * 4, (0.9, 0.8, 0.95, 0.1))
    controller = Controller()
    assert len(controller.choose(tree, 1, 9).leaves) == 2
    controller.step_down("a reason")
    chain = controller.choose(tree, 1, 9)
    assert chain.tokens == (1, 2)
    assert len(controller.choose(tree, 1, 1)) == 1
    assert len(controller.choose(tree, 1, 0)) == 0


def test_disabled_controllers_never_ask() -> None:
    assert Controller(enabled=False).budget() == 0
    assert Controller(max_nodes=0).budget() == 0


def test_the_cost_model_follows_what_is_measured() -> None:
    model = CostModel()
    assert model.relative(1) == 1.0
    for _ in range(60):
        for rows in (1, 8, 32):
            model.observe(rows, CURVES["measured on two cores"](rows))
    assert model.relative(8) == pytest.approx(1.4, rel=0.1)
    assert model.relative(32) == pytest.approx(2.4, rel=0.1)
    assert model.plain_seconds == pytest.approx(1.0, rel=0.05)
    costs = [model.relative(rows) for rows in range(1, 400)]
    assert all(b >= a for a, b in itertools.pairwise(costs))


def test_a_small_size_may_cost_more_than_a_larger_one_once_it_is_sure_and_is_doubted_later() -> None:
    model = CostModel()
    for _ in range(20):
        for rows in (1, 4, 8):
            model.observe(rows, CURVES["slow at 2 and 3 rows"](rows))
    assert model.relative(2) < 1.3
    for looks in range(1, 4):
        model.observe(2, 2.2)
        assert (model.relative(2) > model.relative(4)) == (looks == 3)
    assert model.at_most(2) == pytest.approx(2.2)
    assert model.at_most(4) == pytest.approx(1.3, rel=0.05)
    for _ in range(300):
        model.observe(1, 1.0)
    assert model.relative(2) <= model.relative(4)


def test_a_stray_look_at_a_plain_step_changes_little() -> None:
    model = CostModel()
    for _ in range(60):
        for rows in (1, 8, 32):
            model.observe(rows, CURVES["measured on two cores"](rows))
    model.observe(1, 100.0)
    assert model.relative(8) == pytest.approx(1.4, rel=0.15)
    assert set(model.curve) == {1, 8, 32}


def test_prompts_do_not_count_as_steps() -> None:
    """Their forward computes one row of logits, a tree's one for each node."""
    controller = Controller()
    controller.observe(DraftTree(), 40, 0, 1, StepTimes(0.0, 0.1, 0.0))
    assert controller.cost.curve == {}
    controller.observe(DraftTree(), 1, 0, 1, StepTimes(0.0, 0.1, 0.0))
    assert controller.cost.curve == {1: 0.1}
