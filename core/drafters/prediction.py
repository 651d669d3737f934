"""Drafts from a text that the caller expects to come back, mostly unchanged (OpenAI API, "Predicted Outputs").

The drafter follows the expected tokens as the answer goes along them. Where the answer leaves them it offers to go on
behind what was replaced, and before what was inserted, and it finds its place again by the last tokens said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..tree import ROOT, DraftTree, TreeBuilder
from .base import DraftView, Outcome

MAX_DEPTH = 32
SCORES = (0.5, 0.75, 0.9)
"""Chance of the next expected token after so many expected ones in a row; of the last, after more."""
REALIGNED_SCORE = 0.3
DECAY = 0.97
MATCH_TOKENS = (3, 2, 1)
"""A lost place is found by the last tokens said: by three, else by two, else by one that is there once only."""


@dataclass(frozen=True)
class PredictionDrafter:
    """Offers ``tokens``, the answer that is expected."""

    tokens: tuple[int, ...]
    name: str = "prediction"
    needs_hidden: bool = False
    keeps_to_constraint: bool = False

    def open(self) -> PredictionState:
        """A state for one reply."""
        return PredictionState(self.tokens)


@dataclass
class PredictionState:
    """Where the answer is in the expected tokens; how many of those offered were ``accepted`` or ``rejected``."""

    tokens: tuple[int, ...]
    accepted: int = 0
    rejected: int = 0
    _at: int = 0
    """The next expected token."""
    _run: int = len(SCORES)
    """Expected tokens in a row so far; an answer is expected to begin as predicted."""
    _strayed: int = 0
    """Tokens said since the answer left the expected ones."""
    _seen: int = 0
    _offered: list[tuple[int, ...]] = field(default_factory=list)

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        reply = view.tokens[view.prompt_length :]
        for length in range(self._seen + 1, len(reply) + 1):
            self._follow(reply[:length])
        self._seen = len(reply)
        depth = min(view.remaining, MAX_DEPTH, budget)
        self._offered = [chain for start in self._starts() if (chain := self.tokens[start : start + depth])]
        builder = TreeBuilder()
        for chain in self._offered:
            room = budget - len(builder)
            builder.add_chain(ROOT, chain[:room], "prediction", self._score, DECAY)
        return builder.build()

    @property
    def _score(self) -> float:
        return REALIGNED_SCORE if self._strayed else SCORES[min(self._run, len(SCORES)) - 1]

    def _starts(self) -> list[int]:
        """Where the answer may go on: at the next expected token, or behind those that were replaced."""
        return [self._at] if not self._strayed else [self._at + self._strayed, self._at]

    def _follow(self, reply: Sequence[int]) -> None:
        token = reply[-1]
        for start in self._starts():
            if start < len(self.tokens) and self.tokens[start] == token:
                self._run = self._run + 1 if not self._strayed else 1
                self._at, self._strayed = start + 1, 0
                return
        self._run = 0
        found = self._find(reply)
        if found is None:
            self._strayed += 1
        else:
            self._at, self._strayed, self._run = found, 0, 1

    def _find(self, reply: Sequence[int]) -> int | None:
        """Behind the nearest place, ahead first, where the expected tokens hold the last ones said."""
        for count in MATCH_TOKENS:
            last = tuple(reply[-count:])
            ends = [
                end
                for end in range(count, len(self.tokens) + 1)
                if self.tokens[end - 1] == last[-1] and self.tokens[end - count : end] == last
            ]
            if ends and (count > 1 or len(ends) == 1):
                return min(ends, key=lambda end: (end <= self._at, abs(end - self._at)))
        return None

    def observe(self, outcome: Outcome) -> None:
        offered: set[int] = set()
        for chain in self._offered:
            node = ROOT
            for token in chain:
                child = outcome.tree.child(node, token)
                if child is None:
                    break
                offered.add(node := child)
        accepted = len(offered.intersection(outcome.accepted))
        self.accepted += accepted
        self.rejected += len(offered) - accepted
