"""Drafters of a stream see question and answer, not thousands of placeholders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmspec_agent.core.drafters.base import Drafter, DraftState, DraftView, Outcome
from mmspec_agent.core.tree import DraftTree

_FRESH_AFTER = 64
"""Replies after which a drafter starts anew, so that hours of stream cost it neither memory nor time."""


@dataclass
class TailDrafter:
    """A drafter shown only what stands behind the frames. ``base``: rows before the question, set for each reply."""

    inner: Drafter
    base: int = 0

    @property
    def name(self) -> str:
        """Label of its nodes."""
        return self.inner.name

    @property
    def needs_hidden(self) -> bool:
        """As the drafter within."""
        return self.inner.needs_hidden

    @property
    def keeps_to_constraint(self) -> bool:
        """As the drafter within."""
        return self.inner.keeps_to_constraint

    def open(self) -> _TailState:
        """A state around the inner drafter's."""
        return _TailState(self)


class _TailState:
    def __init__(self, drafter: TailDrafter) -> None:
        self._drafter = drafter
        self._inner: DraftState = drafter.inner.open()
        self._reply: int | None = None
        self._replies = 0

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        """The inner drafter's tree for question and answer alone."""
        base = self._drafter.base
        self._renew(view.tokens, view.prompt_length)
        return self._inner.propose(
            replace(view, tokens=view.tokens[base:], prompt_length=view.prompt_length - base), budget
        )

    def observe(self, outcome: Outcome) -> None:
        """Handed on."""
        self._inner.observe(outcome)

    def _renew(self, tokens: Sequence[int], prompt_length: int) -> None:
        """Count replies by their list of tokens; open the inner drafter again after many."""
        if self._reply == id(tokens) and len(tokens) > prompt_length:
            return
        self._reply = id(tokens)
        self._replies += 1
        if self._replies > _FRESH_AFTER:
            self._inner, self._replies = self._drafter.inner.open(), 0
