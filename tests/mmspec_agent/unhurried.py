"""Controllers that measure nothing, for tests that count forwards."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec_agent.core.controller import Controller, StepTimes
from mmspec_agent.core.tree import DraftTree


@dataclass
class Unhurried(Controller):
    """Verifies what the drafters offer: how many forwards a call takes must not depend on how busy the machine is."""

    def budget(self, pending: int = 1) -> int:
        return 24

    def choose(self, tree: DraftTree, pending: int, room: int) -> DraftTree:
        return tree.trim(min(24, room))


def cost(rows: int) -> float:
    """Seconds of a forward on a machine where 64 rows cost what two plain steps do."""
    return 0.02 * (1 + (rows - 1) / 63)


@dataclass
class OnPaper(Controller):
    """Decides as the engine's does, by what ``cost`` says instead of a clock; drafting takes no time."""

    def observe(self, tree: DraftTree, pending: int, accepted: int, emitted: int, times: StepTimes) -> None:
        on_paper = StepTimes(0.0, cost(pending + len(tree)), 0.0)
        super().observe(tree, pending, accepted, emitted, on_paper)
