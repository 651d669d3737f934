"""The step trace: one JSON line a step, to a file or a callback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
