"""A clock on grammar work: masks, forks, forced runs and drafts, as a share of each step (SYSTEM.md G1, G2)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from mmspec_agent.engine import Engine
from mmspec_agent.grammar.constraint import GrammarCursor
from mmspec_agent.grammar.drafter import GrammarDraftState
from mmspec_agent.grammar.position import Position
from mmspec_agent.models.progress import Progress

from .closing import run_closing

if TYPE_CHECKING:
    from .call_arms import CallArms
    from .call_tasks import CallTask

CLOCKED: tuple[tuple[type[Any], str], ...] = (
    (GrammarCursor, "mask"),
    (GrammarCursor, "fork"),
    (GrammarCursor, "advance"),
    (GrammarCursor, "forced_run"),
    (GrammarDraftState, "propose"),
    (GrammarDraftState, "observe"),
)


class GrammarShare(NamedTuple):
    """Grammar work of some steps: its share of all their seconds, its median seconds and share, and the steps.

    ``mask_p99_ms``: 99th percentile of the CPU time of one mask, of all that were computed.
    """

    share: float
    median_share: float
    median_ms: float
    worst_ms: float
    steps: int
    masks: int = 0
    mask_p99_ms: float = 0.0


@dataclass
class GrammarClock:
    """Seconds inside the grammar while a ``with`` block runs; one call that makes another counts once.

    Give ``trace`` to the replies that are watched: it closes one entry a step. The first step of a reply, which
    also prefills, is kept apart (``first``): what it takes is no step's time.
    """

    steps: list[tuple[float, float]] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)
    _seconds: float = 0.0
    _depth: int = 0
    _kept: list[tuple[type[Any], str, Callable[..., Any]]] = field(default_factory=list)

    def __enter__(self) -> Self:
        for owner, name in CLOCKED:
            method = getattr(owner, name)
            self._kept.append((owner, name, method))
            setattr(owner, name, self._clocked(method))
        compute = Position._compute_mask
        self._kept.append((Position, "_compute_mask", compute))
        setattr(Position, "_compute_mask", self._timed_mask(compute))  # noqa: B010  (a method is replaced)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, name, method in self._kept:
            setattr(owner, name, method)
        self._kept.clear()

    def _clocked(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return method(*args, **kwargs)
            self._depth, started = 1, time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._depth = 0
                self._seconds += time.perf_counter() - started

        return call

    def _timed_mask(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def compute(position: Position) -> Any:
            started = time.thread_time()
            try:
                return method(position)
            finally:
                self.masks.append(time.thread_time() - started)

        return compute

    def trace(self, record: dict[str, Any]) -> None:
        """One step is over."""
        if record["step"] == 1:
            self.first.append(self._seconds)
        else:
            self.steps.append((self._seconds, sum(record["seconds"].values())))
        self._seconds = 0.0

    @property
    def share(self) -> GrammarShare:
        """Over the steps so far."""
        ordered = sorted(self.masks)
        p99 = 1000 * ordered[99 * len(ordered) // 100] if ordered else 0.0
        if not self.steps:
            return GrammarShare(0.0, 0.0, 0.0, 0.0, 0, len(ordered), p99)
        spent = [grammar for grammar, _ in self.steps]
        shares = [grammar / step for grammar, step in self.steps]
        return GrammarShare(
            sum(spent) / sum(step for _, step in self.steps),
            statistics.median(shares),
            1000 * statistics.median(spent),
            1000 * max(spent),
            len(self.steps),
            len(ordered),
            p99,
        )


def share_of_calls(arms: CallArms, tasks: Sequence[CallTask]) -> GrammarShare:
    """Grammar work of some function calls, all drafts on."""
    clock = GrammarClock()
    with clock:
        for task in tasks:
            arms.engine.close()
            for _ in arms.engine.run(
                arms.engine.open_conversation(), list(task.messages), arms.options(task, trace=clock.trace)
            ):
                pass
    return clock.share


def share_of_wide_schema(engine: Engine, budget: int, replies: int = 2) -> GrammarShare:
    """Grammar work of an object of `wide_schema` in ``budget`` tokens, after a reply that fills the caches.

    A budget below what the model would write shows what closing in time costs beside.
    """
    return share_of_schema(engine, wide_schema(), budget, replies)


def share_of_patterns(engine: Engine, budget: int, replies: int = 2) -> GrammarShare:
    """Grammar work of strings under expressions, closed by their budget."""
    parts = {"code": "^([A-Z]{2}-[0-9]{4} ){3,12}end$", "text": "^[^<>]{40,300}$"}
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "pattern": pattern} for name, pattern in parts.items()},
        "required": list(parts),
        "additionalProperties": False,
    }
    return share_of_schema(engine, schema, budget, replies)


def masks_of_random_schemas(schemas: int, progress: Progress) -> GrammarShare:
    """The masks of a model of random weights, a reply a schema, in budgets from the least upwards."""
    clock = GrammarClock()
    with clock:
        run_closing(schemas, schemas, progress, seed=1)
    return clock.share


def share_of_schema(engine: Engine, schema: dict[str, Any], budget: int, replies: int = 2) -> GrammarShare:
    """Grammar work of replies of one schema, after a reply that fills the caches."""
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
    ask = "Fill in the form for part PN-07919-B: green, ordered on 2024-05-06, 12 pieces at 3.5 each for Anna Schmidt."
    clock = GrammarClock()
    for reply in range(replies + 1):
        engine.close()
        watched = {"trace": clock.trace} if reply else {}
        with clock:
            engine.chat([{"role": "user", "content": ask}], response_format=form, max_new_tokens=budget, **watched)
    return clock.share


def wide_schema() -> dict[str, Any]:
    """200 properties of every kind, nine of them required, one with an enum of 5,000 values."""
    kinds: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "integer", "minimum": 0, "maximum": 1000},
        {"type": "boolean"},
        {"type": "number"},
        {"enum": ["red", "green", "blue"]},
        {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        {"type": "string", "format": "date"},
    ]
    properties = {f"property_{i:03d}": kinds[i % len(kinds)] for i in range(199)}
    parts = [f"PN-{i * 7919 % 100_000:05d}-{'ABCDEFGH'[i % 8]}" for i in range(5000)]
    return {
        "type": "object",
        "properties": {**properties, "part": {"enum": parts}},
        "required": ["part", *(f"property_{i:03d}" for i in range(0, 199, 25))],
        "additionalProperties": False,
    }
