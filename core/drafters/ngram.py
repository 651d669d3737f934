"""Drafts from what was already said: longest-suffix matches in prompt, history and earlier replies (P0, no training).

An incremental index of n-grams over everything the session has seen; per step only the new tokens are added and
the last few looked up. Every match votes for its continuation, so the tree carries count-based probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..tree import ROOT, DraftTree
from ..tree_sampling import Continuations, best_first, importance_sampled
from .base import DraftView, Outcome
from .calibration import Calibration
from .counts import MAX_ORDER, CountStore, next_probabilities

ORDERS = (8, 4, 2, 1)
SEPARATOR = -1
MAX_CANDIDATES = 24
MAX_MATCH = 32
MAX_TOKENS = 200_000
"""Bound of a session's history: about 60 MB of index; the older half is dropped beyond it."""

PRIORS = {1: 0.12, 2: 0.25, 3: 0.4, 4: 0.5, 6: 0.6, 8: 0.75, 12: 0.85, 16: 0.92, 24: 0.95}
"""Chance that the target goes on like a match of at least that length, before anything was observed."""


class NgramIndex:
    """Where each n-gram (n in ORDERS) of a growing token list ended."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._ends: dict[int, dict[tuple[int, ...], list[int]]] = {n: {} for n in ORDERS}
        self._run = 0
        """Tokens since the last separator: no n-gram reaches over one."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens; constant work for each."""
        corpus = self.tokens
        for token in tokens:
            corpus.append(token)
            self._run = 0 if token == SEPARATOR else self._run + 1
            end = len(corpus) - 1
            for n, ends in self._ends.items():
                if self._run >= n:
                    ends.setdefault(tuple(corpus[end + 1 - n :]), []).append(end)
        if len(corpus) > MAX_TOKENS:
            self._rebuild(corpus[-MAX_TOKENS // 2 :])

    def _rebuild(self, tokens: list[int]) -> None:
        self.tokens, self._run = [], 0
        self._ends = {n: {} for n in ORDERS}
        self.extend(tokens)

    def matches(self) -> list[tuple[int, int]]:
        """(end, length) of the best earlier matches of the last tokens: longest orders first, latest first."""
        corpus = self.tokens
        last = len(corpus) - 1
        found: dict[int, int] = {}
        for n in ORDERS:
            if self._run < n or len(found) >= MAX_CANDIDATES:
                continue
            for end in reversed(self._ends[n].get(tuple(corpus[-n:]), ())):
                if end != last and end not in found:
                    found[end] = self._match_length(end, last)
                    if len(found) >= MAX_CANDIDATES:
                        break
            if n > 1 and found:
                break
        return list(found.items())

    def _match_length(self, end: int, last: int) -> int:
        corpus = self.tokens
        length = 0
        while length < MAX_MATCH and end - length >= 0:
            token = corpus[end - length]
            if token != corpus[last - length] or token == SEPARATOR:
                break
            length += 1
        return length


@dataclass(frozen=True)
class _Votes:
    """Matches that agree so far: where each continues, and how long each is by now.

    ``recent`` are the last tokens of the context, for the store of counts.
    """

    places: tuple[tuple[int, int], ...]
    recent: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        return max((length for _, length in self.places), default=0)


class _MatchSource:
    """The matches as a continuation source, mixed with a store of counts where there is one.

    What the matches do not claim is left to the store: p = m * vote + (1 - m) * p_store, where m is
    the calibrated chance that the target goes on like a match of that length.
    """

    def __init__(
        self,
        index: NgramIndex,
        calibration: Calibration,
        banned: frozenset[int],
        store: CountStore | None = None,
    ) -> None:
        self._tokens = index.tokens
        self._calibration = calibration
        self._banned = banned
        self._store = store
        recent = tuple(index.tokens[-MAX_ORDER:]) if store is not None else ()
        self._root = _Votes(tuple((end + 1, length) for end, length in index.matches()), recent)

    def root(self) -> _Votes:
        return self._root

    def continuations(self, context: _Votes) -> Continuations:
        votes = self._votes(context)
        matched = self._calibration.estimate(context.length) if votes else 0.0
        total = sum(votes.values())
        mixed = {token: matched * vote / total for token, vote in votes.items()}
        if self._store is not None:
            for token, prob in next_probabilities(self._store, context.recent):
                if token not in self._banned:
                    mixed[token] = mixed.get(token, 0.0) + (1.0 - matched) * prob
        ordered = sorted(mixed.items(), key=lambda item: -item[1])[:8]
        return Continuations(
            np.array([token for token, _ in ordered], dtype=np.int64),
            np.array([prob for _, prob in ordered]),
        )

    def _votes(self, context: _Votes) -> dict[int, float]:
        votes: dict[int, float] = {}
        longest = context.length
        for rank, (place, length) in enumerate(context.places):
            if place >= len(self._tokens):
                continue
            token = self._tokens[place]
            if token == SEPARATOR or token in self._banned:
                continue
            # A shorter match halves its vote per token it lacks; later matches count a little more.
            votes[token] = votes.get(token, 0.0) + 0.5 ** (longest - length) * 0.95**rank
        return votes

    def extend(self, context: _Votes, token: int) -> _Votes:
        agreeing = (
            (place + 1, length + 1)
            for place, length in context.places
            if place < len(self._tokens) and self._tokens[place] == token
        )
        recent = (*context.recent, token)[-MAX_ORDER:] if self._store is not None else ()
        return _Votes(tuple(agreeing), recent)


class NgramState:
    """The n-gram drafter's memory of one session."""

    def __init__(self, drafter: NgramDrafter) -> None:
        self._drafter = drafter
        self._index = NgramIndex()
        self._calibration = Calibration(PRIORS)
        self._synced = 0
        self._tail: list[int] = []
        self._lengths: dict[tuple[int, ...], int] = {}

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        self._catch_up(view.tokens)
        source = _MatchSource(self._index, self._calibration, self._drafter.banned, self._drafter.store)
        depth = min(self._drafter.max_depth, view.remaining)
        if view.proposal is not None:
            tree = importance_sampled(source, self._drafter.name, budget, depth, view.proposal)
        else:
            tree = best_first(source, self._drafter.name, budget, depth, view.row_cost)
        self._remember(source.root().length, tree)
        return tree

    def observe(self, outcome: Outcome) -> None:
        """Count, for every visited position we spoke at, whether one of our guesses was right."""
        tree = outcome.tree
        visited = [ROOT, *outcome.accepted][: len(outcome.emitted)]
        for step, node in enumerate(visited):
            path = () if node == ROOT else tuple(tree.path_tokens(node))
            length = self._lengths.get(path)
            ours = [i for i, parent in enumerate(tree.parents) if parent == node and (self._guess(tree, i))]
            if length is not None and ours:
                hit = any(tree.tokens[i] == outcome.emitted[step] for i in ours)
                self._calibration.record(length, hit)

    def _guess(self, tree: DraftTree, node: int) -> bool:
        return tree.sources[node] == self._drafter.name

    def _remember(self, length: int, tree: DraftTree) -> None:
        self._lengths = {(): length}
        for node in range(len(tree)):
            path = tuple(tree.path_tokens(node))
            self._lengths[path] = length + len(path)

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Add what is new; after an edit of the history, add the edited part behind a separator."""
        known = self._synced
        if known > len(tokens) or list(tokens[known - len(self._tail) : known]) != self._tail:
            self._index.extend([SEPARATOR])
            known = 0
        self._index.extend(tokens[known:])
        self._synced = len(tokens)
        self._tail = list(tokens[max(0, self._synced - 16) : self._synced])


@dataclass(frozen=True)
class NgramDrafter:
    """Guesses that the text goes on as it did before. ``banned`` ids (picture placeholders) are never drafted."""

    banned: frozenset[int] = frozenset()
    max_depth: int = 24
    name: str = "ngram"
    store: CountStore | None = None
    needs_hidden: bool = False
    keeps_to_constraint: bool = False

    def open(self) -> NgramState:
        return NgramState(self)
