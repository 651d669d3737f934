"""The drafter's side of a step: what it sees, what it returns, what it is told afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from ..constraint import Constraint
from ..noise import ReplyNoise
from ..tree import DraftTree


class RowCost(NamedTuple):
    """What verifying one more guess costs, in plain steps: growing a tree beyond it wastes the drafter's time."""

    per_row: float = 0.0

    def pays(self, score: float, gained: float, rows: int) -> bool:
        """Whether a guess of ``score`` raises the rate of a step that has ``rows`` guesses and gains ``gained``."""
        return score * (1.0 + self.per_row * rows) > self.per_row * gained


@dataclass(frozen=True)
class Proposal:
    """How children are drawn in rejection mode: from w ∝ p^``beta`` (C4), with the noise of ``noise``."""

    beta: float
    noise: ReplyNoise
    index: int
    """Index in the reply of the token that the root's children guess."""


@dataclass(frozen=True)
class DraftView:
    """What a drafter may look at when it proposes.

    Everything in it is a copy or cannot be written to: what a drafter does to it changes no answer.

    ``tokens``: prompt and reply so far, committed, pending ones included; ``prompt_length`` of them are the prompt.
    ``constraint``: a fork at the current position, or None; fork it again before moving it. ``noise`` is the noise the
    target's own draw will use, ``leaves`` what other drafters proposed in this step already. ``hidden`` [rows, width]:
    hidden states of the last verified path, only for drafters that need them.
    """

    tokens: Sequence[int]
    prompt_length: int
    constraint: Constraint | None = None
    noise: ReplyNoise | None = None
    leaves: DraftTree | None = None
    hidden: torch.Tensor | None = None
    remaining: int = 1 << 30
    """How many more tokens the reply may have: deeper guesses are wasted."""
    row_cost: RowCost = RowCost()  # noqa: RUF009  (an immutable value)
    """The controller will cut guesses that do not pay; best-first growth may stop at the first of them."""
    proposal: Proposal | None = None
    """Set in rejection mode: children should be drawn, and the draws recorded as trials."""


class Outcome(NamedTuple):
    """What became of a step: the verified tree, the accepted nodes in order, the tokens emitted."""

    tree: DraftTree
    accepted: tuple[int, ...]
    emitted: tuple[int, ...]


class DraftState(Protocol):
    """A drafter's state in one session."""

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        """At most ``budget`` guesses; an empty tree if there is nothing to say."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn from a step's outcome; called after every verified tree."""
        ...


class Drafter(Protocol):
    """A source of guesses. Wrong guesses cost time, never the answer."""

    @property
    def name(self) -> str:
        """Label of its nodes in statistics and trace."""
        ...

    @property
    def needs_hidden(self) -> bool:
        """Whether the target has to hand over hidden states."""
        ...

    @property
    def keeps_to_constraint(self) -> bool:
        """Whether its trees are already legal under ``view.constraint`` and extended by forced runs."""
        ...

    def open(self) -> DraftState:
        """A state for a new session; sessions share nothing."""
        ...
