"""The step trace: one JSON line a step, to a file or a callback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .controller import Controller, StepTimes
    from .decode import Emitted
    from .tree import DraftTree

TraceCallback = Callable[[dict[str, Any]], None]


def open_trace(trace: str | Path | TraceCallback | None) -> TraceCallback | None:
    """A callback from an option: a callable as it is, a path as a file that gets a JSON line per step."""
    if trace is None or callable(trace):
        return trace
    path = Path(trace)
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(record: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    return write


def step_record(
    step: int,
    pending: int,
    tree: DraftTree,
    accepted: list[int],
    emitted: list[Emitted],
    times: StepTimes,
    controller: Controller,
) -> dict[str, Any]:
    """One line of the trace."""
    return {
        "step": step,
        "pending": pending,
        "tokens": list(tree.tokens),
        "parents": list(tree.parents),
        "sources": list(tree.sources),
        "scores": [round(score, 4) for score in tree.scores],
        "accepted": accepted,
        "emitted": [e.token for e in emitted],
        "emitted_sources": [e.source for e in emitted],
        "states": [e.state for e in emitted],
        "level": controller.level.name.lower(),
        "seconds": {"draft": times.draft, "verify": times.verify, "rest": times.rest},
    }
