"""Step by step: the engine's own share of a step, and what hopeless drafts cost (SYSTEM.md C9)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from mmspec_agent.core.controller import Controller
from mmspec_agent.core.decode import Decoder, OpenDrafter, Request, Step
from mmspec_agent.core.drafters.base import Drafter, DraftView, Outcome
from mmspec_agent.core.drafters.ngram import NgramDrafter, NgramState
from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.noise import ReplyNoise
from mmspec_agent.core.sampling import IdBuffer, Processing, Sampler
from mmspec_agent.core.tree import EMPTY, ROOT, DraftTree, TreeBuilder

from .forward_clock import ForwardClock

GREEDY = Processing()


@dataclass
class FixedTree(Controller):
    """Verifies all that is proposed, up to ``max_nodes``: for measuring, not for use."""

    def choose(self, tree: DraftTree, pending: int, room: int) -> DraftTree:
        return tree.trim(min(self.max_nodes, room))


@dataclass(frozen=True)
class HopelessDrafter:
    """Always wrong and always sure: chains of an id that the target does not say."""

    token: int
    depth: int = 16
    name: str = "hopeless"
    needs_hidden: bool = False
    keeps_to_constraint: bool = False

    def open(self) -> HopelessDrafter:
        """Nothing is learned, so the drafter is its own state."""
        return self

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        """A chain of the wrong id, claimed to be nearly certain."""
        count = min(self.depth, budget)
        return DraftTree.chain([self.token] * count, self.name, [0.95**depth for depth in range(1, count + 1)])

    def observe(self, outcome: Outcome) -> None:
        """It never learns."""


@dataclass(frozen=True)
class PaddedDrafter:
    """N-gram drafts, padded with wrong guesses to exactly the budget, so that steps of one size are measured."""

    inner: NgramDrafter = field(default_factory=NgramDrafter)
    name: str = "ngram"
    needs_hidden: bool = False
    keeps_to_constraint: bool = False

    def open(self) -> _PaddedState:
        """A state around the n-gram drafter's."""
        return _PaddedState(self.inner.open())


class _PaddedState:
    def __init__(self, inner: NgramState) -> None:
        self._inner = inner

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        tree = self._inner.propose(view, budget)
        builder = TreeBuilder()
        builder.add_tree(tree)
        token = 0
        while len(builder) < budget:
            builder.add(ROOT, token, "padding", 0.01)
            token += 1
        return builder.build()

    def observe(self, outcome: Outcome) -> None:
        self._inner.observe(outcome)


def open_decoder(
    target: HFTarget,
    ids: Sequence[int],
    new_tokens: int,
    drafter: Drafter | None,
    controller: Controller,
    processing: Processing = GREEDY,
) -> Decoder:
    """A reply of exactly ``new_tokens`` tokens, whatever ends the model would like to make."""
    tokens = list(ids)
    sampler = Sampler(processing, ReplyNoise(0), IdBuffer(tokens, target.device))
    emitted = iter(range(1, new_tokens))
    request = Request(tokens, sampler, lambda _: "length" if next(emitted, None) is None else None, new_tokens)
    drafters = [] if drafter is None else [OpenDrafter(drafter, drafter.open())]
    return Decoder(target.open(len(tokens) + new_tokens + 64), request, drafters, controller)


class Share(NamedTuple):
    """The engine's part of a step: median share, median milliseconds of a step, nodes of its tree."""

    share: float
    step_ms: float
    nodes: float


def engine_share(target: HFTarget, ids: Sequence[int], nodes: int, steps: int, processing: Processing) -> Share:
    """Time outside the target's forward as a share of a step that verifies ``nodes`` draft nodes."""
    controller = FixedTree(max_nodes=nodes)
    decoder = open_decoder(target, ids, steps * (nodes + 1), PaddedDrafter(), controller, processing)
    shares, seconds, sizes = [], [], []
    with ForwardClock(target.model) as clock:
        iterator = decoder.steps()
        next(iterator)
        for _ in range(steps):
            clock.reset()
            started = time.perf_counter()
            step = next(iterator, None)
            total = time.perf_counter() - started
            if step is None or len(step.record["tokens"]) != nodes:
                continue
            shares.append(1.0 - clock.seconds / total)
            seconds.append(total)
            sizes.append(len(step.record["tokens"]))
    if not shares:
        return Share(float("nan"), float("nan"), 0.0)
    return Share(statistics.median(shares), 1000 * statistics.median(seconds), statistics.median(sizes))


class Hopeless(NamedTuple):
    """Plain decoding's cost over that with hopeless drafts (1 = no loss): by the clock, and by rows counted."""

    wall: float
    counted: float
    drafted: int
    ladder: dict[str, int]


def hopeless_drafts(target: HFTarget, ids: Sequence[int], new_tokens: int, costs: dict[int, float]) -> Hopeless:
    """Plain loop and loop with hopeless drafts, a step of one then a step of the other.

    ``costs``: measured seconds of a forward by its rows, for the counted ratio; the clock's includes drafting.
    """
    controller = Controller()
    for rows, seconds in costs.items():
        for _ in range(4):
            controller.cost.observe(rows, seconds)
    plain = open_decoder(target, ids, new_tokens, None, Controller(enabled=False))
    drafted = open_decoder(target, ids, new_tokens, HopelessDrafter(target.vocab_size - 1), controller)
    walls, units = [0.0, 0.0], [0.0, 0.0]
    arms: list[Iterator[Step]] = [plain.steps(), drafted.steps()]
    for turn in range(new_tokens):
        for arm in (0, 1) if turn % 2 else (1, 0):
            started = time.perf_counter()
            step = next(arms[arm], None)
            if step is not None and turn:
                walls[arm] += time.perf_counter() - started
                units[arm] += interpolated(costs, step.record["pending"] + len(step.record["tokens"]))
    return Hopeless(walls[0] / walls[1], units[0] / units[1], drafted.stats.drafted, dict(drafted.stats.ladder))


def forward_costs(target: HFTarget, prompt: Sequence[int], nodes: Sequence[int], repeats: int) -> dict[int, float]:
    """Median seconds of a verify behind ``prompt`` by rows (nodes of a chain, plus the pending token)."""
    sequence = target.open(len(prompt) + max(nodes) + 64)
    sequence.prefill(list(prompt))
    seconds: dict[int, list[float]] = {n: [] for n in nodes}
    for turn in range(repeats + 1):
        for n in nodes:
            tree = DraftTree.chain([prompt[i % len(prompt)] for i in range(n)], "probe") if n else EMPTY
            started = time.perf_counter()
            sequence.verify([prompt[-1]], tree).argmax(ROOT)
            if turn:
                seconds[n].append(time.perf_counter() - started)
    return {n + 1: statistics.median(values) for n, values in seconds.items()}


def interpolated(costs: dict[int, float], rows: int) -> float:
    """Seconds of a forward of ``rows`` rows, between the measured ones."""
    known = sorted(costs)
    if rows <= known[0]:
        return costs[known[0]]
    for low, high in pairwise(known):
        if rows <= high:
            return costs[low] + (costs[high] - costs[low]) * (rows - low) / (high - low)
    return costs[known[-1]] * rows / known[-1]


def as_details(value: Any) -> dict[str, Any]:
    """A named tuple for JSON."""
    return dict(value._asdict())
