"""A controller that measures nothing, for tests that count forwards."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec_agent.core.controller import Controller
from mmspec_agent.core.tree import DraftTree


@dataclass
class Unhurried(Controller):
    """Verifies what the drafters offer: how many forwards a call takes must not depend on how busy the machine is."""

    def budget(self) -> int:
        return 24

    def choose(self, tree: DraftTree, pending: int, room: int) -> DraftTree:
        return tree.trim(min(24, room))
