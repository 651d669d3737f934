"""Runs of tokens that are the only legal ones, for constraints that hand over to another one on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mmspec_agent.core.constraint import Constraint

Cursor = TypeVar("Cursor", bound=Constraint)


def forced_steps(
    cursor: Cursor,
    limit: int,
    heir: Callable[[Cursor], Constraint | None],
    is_done: Callable[[Cursor, list[int]], bool],
) -> list[int]:
    """At most ``limit`` tokens that have to follow ``cursor``, which is not moved.

    ``heir`` is the constraint that rules alone from a position on, if there is one; ``is_done`` says that
    nothing follows a position and the run that led to it.
    """
    run: list[int] = []
    here = cursor
    while len(run) < limit and not is_done(here, run):
        inner = heir(here)
        if inner is not None:
            return [*run, *inner.forced_run(limit - len(run))]
        mask = here.mask()
        single = None if mask is None else mask.single()
        if single is None:
            break
        here = here.fork() if here is cursor else here
        run.append(single)
        here.advance(single)
    return run
