"""Cost model and ladder (SYSTEM.md C9): how many guesses a step may verify, never which token comes out.

The cost of a forward is learned by rows, per step, from what was measured. A node is worth its estimated
acceptance in plain steps saved; a tree is cut where the rate of tokens per second is highest. A credit guarantees
the floor: what drafts may cost beyond what they saved is bounded, whatever they claim, and a tree that would cost
more than is left is cut to what is left. Sizes never measured are judged by a line through those that were; only
behind a tree that was right throughout by the estimate, or a line too steep would never be corrected.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from .drafters.base import RowCost
from .tree import DraftTree

ROW_CLASSES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
PRIOR_SLOPE = 0.012
"""Relative cost of one more row before anything was measured."""

PRIOR_WEIGHT = 3.0
"""Observations that the prior shape counts for, per class of rows."""

CREDIT = 2.0
"""Plain steps that drafts may have cost beyond what they saved, at most, at any time."""

ALLOWANCE = 0.01
"""Plain steps forgiven per emitted token. Over any n tokens hopeless drafts cost at most CREDIT + n * ALLOWANCE."""

SPENT = 0.1
"""Credit below which the ladder goes down to plain decoding."""

RENEWED = 1.0
"""Credit from which a new reply starts with trees again."""

STEP_LIKE = 8
"""Pending rows up to which a forward without drafts says what a verify costs; a prompt's skips the output layer."""

FIRST_LOOKS = 3
"""Forwards of a class of rows that are charged as measured; later ones as the cost model has it by then."""


SURPRISE = 0.5
"""Plain steps that a first look is charged beyond the estimate, at most: a kernel compiled for a new shape is paid
for once, and silencing drafts would not bring it back."""

REMEMBERED = 12
"""Latest observations kept per class of rows."""

PROBE = 4
"""Nodes with which plain decoding looks whether drafts have turned good."""

FEW = 4
"""Rows up to which one cost says little about another's: kernels differ most there."""

SURE = 3
"""Observations after which a class may cost more than a larger one: some kernels are slow at 2 or 3 rows, not at 4."""

STALE = 256
"""Forwards after which that is doubted again: the machine may have been busy then."""


class Level(IntEnum):
    """Rungs of the ladder."""

    PLAIN = 0
    CHAIN = 1
    TREE = 2


class CostModel:
    """Seconds of a verify of k rows: a low quartile of the latest per class of k, shrunk to a prior shape.

    Measurements err upwards: another process ran, or a kernel was compiled for a shape seen for the first time.
    So a class counts only as much as it was measured (``PRIOR_WEIGHT`` observations' worth of the prior shape),
    and no class costs more than a larger one does, unless it was lately measured ``SURE`` times.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        self._counts: Counter[int] = Counter()
        self._latest: dict[int, int] = {}
        self._forwards = 0
        self._table: list[float] = []
        self._measured: list[float] = []

    def observe(self, rows: int, seconds: float) -> None:
        """One measured forward."""
        if rows > ROW_CLASSES[-1]:
            return
        self._table, self._measured = [], []
        key = _row_class(rows)
        self._counts[key] += 1
        self._forwards += 1
        self._latest[key] = self._forwards
        self._recent.setdefault(key, deque(maxlen=REMEMBERED)).append(seconds)

    def relative(self, rows: int, to: int = 1) -> float:
        """Cost of ``rows`` rows in units of the cost of ``to`` rows."""
        return self._at(rows) / self._at(to)

    def at_most(self, rows: int, to: int = 1) -> float:
        """``relative`` for those who cannot afford a surprise: as measured, where that is more than the estimate."""
        if not self._measured:
            self._measured = self._build_measured()
        last = len(self._measured) - 1
        ratio = self._measured[min(rows, last)] / self._measured[min(to, last)]
        return max(ratio, self.relative(rows, to))

    def looks(self, rows: int) -> int:
        """Forwards seen of the class of ``rows``."""
        return self._counts[_row_class(rows)]

    @property
    def known_rows(self) -> int:
        """How many rows a forward may have without leaving what was measured by more than a factor of two."""
        return max(3, 2 * max(self._recent, default=0))

    @property
    def curve(self) -> dict[int, float]:
        """Measured seconds by row class."""
        return {key: self._seconds(key) for key in sorted(self._recent)}

    @property
    def plain_seconds(self) -> float | None:
        """Estimated seconds of a forward of one row; None before anything was measured."""
        if not self._recent:
            return None
        rows = max(self._counts, key=lambda k: self._counts[k])
        return self._seconds(rows) / self._at(rows)

    def _seconds(self, key: int) -> float:
        """Of few observations the least, of several the lower quartile."""
        ordered = sorted(self._recent[key])
        return ordered[len(ordered) // 4]

    def _at(self, rows: int) -> float:
        """Cost in units of a plain step."""
        if not self._table:
            self._table = self._build()
        last = len(self._table) - 1
        return self._table[rows] if rows <= last else self._table[last] * _prior(rows) / _prior(last)

    def _build(self) -> list[float]:
        """Cost of 0 … 128 rows."""
        rows = np.arange(ROW_CLASSES[-1] + 1)
        prior = 1.0 + PRIOR_SLOPE * np.maximum(rows - 1, 0)
        points = self._enveloped({k: self._ratio(k) for k in sorted(self._recent)}) if 1 in self._recent else {}
        if not points:
            return [float(cost) for cost in prior]
        table = np.interp(rows, list(points), [points[k] / _prior(k) for k in points]) * prior
        return [float(cost) for cost in np.maximum(table, 1.0)]

    def _build_measured(self) -> list[float]:
        """Cost of 0 … 128 rows without the prior: interpolated, and beyond the last class in a line from one row,
        except for so few rows that a line would mislead."""
        known = [k for k in sorted(self._recent) if k > 1]
        rows = np.arange(ROW_CLASSES[-1] + 1)
        if 1 not in self._recent or not known:
            return [1.0] * len(rows)
        points = self._enveloped({k: self._seconds(k) / self._seconds(1) for k in known})
        table = np.interp(rows, [1, *points], [1.0, *points.values()])
        beyond = 1.0 + (points[known[-1]] - 1.0) / (known[-1] - 1) * (rows - 1)
        beyond = np.where(rows <= FEW, points[known[-1]], beyond)
        table = np.where(rows > known[-1], beyond, table)
        return [float(cost) for cost in np.maximum(table, 1.0)]

    def _enveloped(self, ratios: dict[int, float]) -> dict[int, float]:
        """Ratios by class, ascending, none above that of a larger class unless it is sure, and none below 1."""
        limit = math.inf
        result: dict[int, float] = {}
        for key, ratio in reversed(ratios.items()):
            fresh = self._forwards - self._latest[key] < STALE
            result[key] = max(1.0, ratio if self._counts[key] >= SURE and fresh else min(ratio, limit))
            limit = min(limit, result[key])
        return dict(reversed(result.items()))

    def _ratio(self, rows: int) -> float:
        count = self._counts[rows]
        ratio = self._seconds(rows) / self._seconds(1)
        return (count * ratio + PRIOR_WEIGHT * _prior(rows)) / (count + PRIOR_WEIGHT)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step: drafting, the target's forward, and the rest (walk, commit, bookkeeping)."""

    draft: float
    verify: float
    rest: float

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.draft + self.verify + self.rest


@dataclass
class Controller:
    """Chooses budgets for one engine; shared by its requests, since costs belong to model and machine."""

    max_nodes: int = 64
    max_chain: int = 16
    enabled: bool = True
    cost: CostModel = field(default_factory=CostModel)
    level: Level = Level.TREE
    changes: Counter[str] = field(default_factory=Counter)
    ceiling: Level = Level.TREE
    _credit: float = CREDIT
    _probe_in: int = 0
    _probe_gap: int = 8
    _steps: int = 0
    _probing: bool = False
    _flawless: int = 0

    def budget(self, pending: int = 1) -> int:
        """Nodes the drafters may propose behind ``pending`` rows; 0 means they are not asked.

        Nor are they where the credit pays for none: what they cost themselves would keep it from coming back.
        """
        self._probing = False
        if not self.enabled or self.ceiling is Level.PLAIN:
            return 0
        if not self.cost.looks(1) and self._steps < 2:
            return 0  # what a plain step costs comes first
        if self.level is Level.PLAIN:
            self._probe_in -= 1
            if self._probe_in > 0:
                return 0
        if not any(self._affordable(pending, self.max_nodes)):
            return 0
        if self.level is Level.PLAIN:
            self._probing = True
            return min(PROBE, self.max_nodes)
        return self.max_nodes if self.level is Level.TREE else self.max_chain

    @property
    def row_cost(self) -> RowCost:
        """The slope of the cost curve, halved: drafters should rather offer too much than too little."""
        rows = min(self.max_nodes, 32)
        return RowCost(0.5 * (self.cost.relative(1 + rows) - 1.0) / rows if rows else 0.0)

    def choose(self, tree: DraftTree, pending: int, room: int) -> DraftTree:
        """The part of ``tree`` worth verifying behind ``pending`` rows, at most ``room`` nodes."""
        if not len(tree):
            return tree
        if self.level is Level.CHAIN or self.ceiling is Level.CHAIN:
            tree = _best_chain(tree)
        nodes = min(len(tree), room, PROBE if self.level is Level.PLAIN else room)
        counts = list(self._affordable(pending, nodes))
        count = self._best_count(sorted(tree.scores, reverse=True), pending, counts)
        if self.level is Level.PLAIN and counts:
            count = count or min(counts, key=lambda n: (self.cost.relative(pending + n), -n))
        return tree.trim(count)

    def _affordable(self, pending: int, nodes: int) -> Iterator[int]:
        """Numbers of nodes, up to ``nodes``, that the credit pays for if all of them fail."""
        if pending < self.cost.known_rows:
            nodes = min(nodes, self.cost.known_rows - pending)
        most = 1.0 + self._credit

        def cost(count: int) -> float:
            # A tree that was right throughout has earned a look at one of twice its size, whatever a line says of it.
            known = self.cost.relative if count <= 2 * self._flawless else self.cost.at_most
            return known(pending + count, pending)

        return (count for count in range(1, nodes + 1) if cost(count) <= most)

    def _best_count(self, scores: Sequence[float], pending: int, counts: Sequence[int]) -> int:
        """The one of ``counts`` with the highest rate of tokens, 0 where none is above plain decoding's."""
        gained = list(itertools.accumulate(scores, initial=1.0))
        best, best_rate = 0, 1.0 / self.cost.relative(pending)
        for count in counts:
            rate = gained[count] / self.cost.relative(pending + count)
            if rate > best_rate * 1.005:
                best, best_rate = count, rate
        return best

    def observe(self, tree: DraftTree, pending: int, accepted: int, emitted: int, times: StepTimes) -> None:
        """Account for a finished step."""
        rows = pending + len(tree)
        self._steps += 1
        if len(tree):
            self._flawless = accepted if accepted == len(tree) else 0
        if len(tree) or pending <= STEP_LIKE:
            self.cost.observe(rows, times.verify)
        extra = self._extra(rows, pending, times)
        # The floor keeps one stalled step (a machine that slept) from silencing drafts for thousands of tokens.
        self._credit = max(-1.0, min(CREDIT, self._credit + ALLOWANCE * emitted + accepted - extra))
        if self.level is Level.PLAIN:
            self._after_probe(tree, accepted, extra)
        elif self._credit < SPENT:
            self.step_down("drafts cost more than they save", Level.PLAIN)

    def _extra(self, rows: int, pending: int, times: StepTimes) -> float:
        """What the step cost beyond the same step without drafts, in plain steps."""
        plain = self.cost.plain_seconds or 1.0
        cost = self.cost.relative(rows, pending)
        if rows > pending and self.cost.looks(1) and self.cost.looks(rows) <= FIRST_LOOKS:
            measured = times.verify / (plain * self.cost.relative(pending))
            cost = max(cost, min(measured, cost + SURPRISE))
        return cost - 1.0 + times.draft / plain

    def _after_probe(self, tree: DraftTree, accepted: int, extra: float) -> None:
        if not self._probing:
            return
        if len(tree) and accepted > extra:
            self._probe_gap = 8
            self.step_up("a probe paid", Level.TREE)
        else:
            self._probe_gap = min(2 * self._probe_gap, 64)
            self._probe_in = self._probe_gap

    def step_down(self, reason: str, to: Level | None = None) -> bool:
        """One rung down (or to ``to``); False if already at the bottom."""
        target = Level(self.level - 1) if to is None and self.level else to
        if target is None or target >= self.level:
            return False
        self.changes[f"down to {target.name.lower()}: {reason}"] += 1
        self.level = target
        self._probe_in = self._probe_gap
        return True

    def step_up(self, reason: str, to: Level) -> None:
        """Up to ``to``."""
        if to > self.level:
            self.changes[f"up to {to.name.lower()}: {reason}"] += 1
            self.level = to

    def begin_reply(self) -> None:
        """A new reply is a new text: drafts get another chance, as far as memory and credit go."""
        self._probe_gap = 8
        self._probe_in = 0
        self._flawless = 0
        if self._credit >= RENEWED:
            self.step_up("a new reply", self.ceiling)

    def out_of_memory(self) -> bool:
        """A forward ran out of memory: one rung down for good; False if there is none left."""
        stepped = self.step_down("out of memory")
        self.ceiling = min(self.ceiling, self.level)
        return stepped


def _best_chain(tree: DraftTree) -> DraftTree:
    leaf = max(range(len(tree)), key=lambda node: (tree.scores[node] * tree.depths[node], -node))
    return tree.select(tree.path(leaf))


def _prior(rows: int) -> float:
    return 1.0 + PRIOR_SLOPE * (rows - 1)


def _row_class(rows: int) -> int:
    return min(ROW_CLASSES, key=lambda k: (abs(k - rows), k))
