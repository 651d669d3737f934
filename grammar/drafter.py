"""The grammar's own drafter: forced runs, boundaries, values from the conversation, chained (SYSTEM.md G2, G3, G7)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

from mmspec_agent.core.drafters.base import DraftView, Outcome, RowCost
from mmspec_agent.core.tree import ROOT, DraftTree, TreeBuilder

from .auto import cursor_of
from .constraint import GrammarCursor, GrammarPlan
from .hints import Hints
from .proposals import ENDINGS, PRIORS, Earlier, Guess, Proposer
from .reading import CallReader
from .values import Conversation
from .vocabulary import Vocabulary

NAME: Final = "grammar"
_LEAST_SCORE: Final = 0.02
_PRIOR_WEIGHT: Final = 10.0
_MOST_FORCED: Final = 24
_MOST_DEPTH: Final = 64
_APART: Final = {"stop": 0.3, "full": 0.8, "end": 0.6}
"""Endings without text of their own, each with its part of the prior: learned by what they end."""


class _Chain(NamedTuple):
    """Tokens to hang below ``parent``, or none: then it is the parent itself that may be gone on from.

    ``cursor`` is this chain's own; it stands at the parent once it took ``taken``, which it does when the
    chain's turn comes: most trees are full before all of their leaves were looked behind.
    """

    parent: int
    depth: int
    cursor: GrammarCursor
    tokens: tuple[int, ...]
    kind: str
    after: tuple[Guess, ...] = ()
    taken: int | None = None


class GrammarDrafter:
    """Drafts from the constraint itself and the conversation; silent where nothing is constrained."""

    name = NAME
    needs_hidden = False
    keeps_to_constraint = True

    def open(self) -> GrammarDraftState:
        """A state with an empty history."""
        return GrammarDraftState()


class Rates:
    """Chance of each kind of guess, learned from outcomes on top of its prior."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def chance(self, kind: str, prior: float | None = None) -> float:
        """Estimated acceptance of a guess of this kind."""
        hits, tries = self._seen.get(kind, (0.0, 0.0))
        if prior is None:
            prior = PRIORS.get(kind, 0.9 if kind.endswith("+") else 0.3)
        return (hits + prior * _PRIOR_WEIGHT) / (tries + _PRIOR_WEIGHT)

    def note(self, kind: str, hit: bool) -> None:
        """Count one tried guess; old ones fade."""
        hits, tries = self._seen.get(kind, (0.0, 0.0))
        self._seen[kind] = (hits * 0.995 + hit, tries * 0.995 + 1.0)


class GrammarDraftState:
    """One session's drafting (DraftState)."""

    def __init__(self) -> None:
        self.rates = Rates()
        self.earlier = Earlier()
        self._reply: tuple[int, int] | None = None
        self._proposer: Proposer | None = None
        self._plan: GrammarPlan | None = None
        self._noted = 0

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        """A tree of at most ``budget`` nodes, the likeliest first."""
        cursor = cursor_of(view.constraint)
        if cursor is None or cursor.done or budget <= 0:
            return DraftTree()
        proposer = self._proposer_for(view, cursor.plan)
        budget = min(budget, max(0, view.remaining))
        return _Growth(proposer, self.rates, budget, view.remaining, view.row_cost).grow(cursor.fork())

    def observe(self, outcome: Outcome) -> None:
        """Learn which kinds of guesses were right where they were tried."""
        tree, accepted = outcome.tree, set(outcome.accepted)
        for node in range(len(tree)):
            parent = tree.parents[node]
            kind = tree.sources[node].removeprefix(NAME + ":")
            if kind != tree.sources[node] and kind != "forced" and (parent == ROOT or parent in accepted):
                self.rates.note(kind, node in accepted)

    def _proposer_for(self, view: DraftView, plan: GrammarPlan) -> Proposer:
        reply = (view.prompt_length, hash(tuple(view.tokens[: view.prompt_length])))
        if self._proposer is None or self._reply != reply or self._plan is not plan:
            segments = _segments(plan.vocabulary, view.tokens[: view.prompt_length])
            self._learn_history(segments, plan)
            hints = {name: Hints(schema) for name, schema in plan.hints.items()}
            self._proposer = Proposer(Conversation(segments), self.earlier, hints)
            self._reply, self._plan = reply, plan
        return self._proposer

    def _learn_history(self, segments: Sequence[str], plan: GrammarPlan) -> None:
        """Calls of earlier turns stand in the prompt; those not seen yet are noted, oldest first."""
        if "" in plan.hints:
            return
        calls = [call for text in reversed(segments[:-1]) for call in _calls_in(text, plan.hints)]
        for tool, arguments in calls[self._noted :]:
            self.earlier.note(tool, arguments)
        self._noted = max(self._noted, len(calls))


class _Growth:
    """Best-first growth of one tree."""

    def __init__(self, proposer: Proposer, rates: Rates, budget: int, remaining: int, row_cost: RowCost) -> None:
        self.row_cost = row_cost
        self.proposer = proposer
        self.rates = rates
        self.budget = budget
        self.remaining = min(remaining, _MOST_DEPTH)
        self.builder = TreeBuilder()
        self._order = count()
        self._queue: list[tuple[float, int, _Chain]] = []

    def grow(self, cursor: GrammarCursor) -> DraftTree:
        self._expand(ROOT, 0, cursor, 1.0, ())
        gained = 1.0
        while self._queue and len(self.builder) < self.budget:
            negative, _, chain = heapq.heappop(self._queue)
            before = len(self.builder)
            if not self.row_cost.pays(-negative, gained, before):
                break
            self._hang(chain, -negative)
            gained -= negative * (len(self.builder) - before)
        return self.builder.build()

    def _push(self, chain: _Chain, score: float) -> None:
        if score >= _LEAST_SCORE and chain.depth < self.remaining:
            heapq.heappush(self._queue, (-score, next(self._order), chain))

    def _hang(self, chain: _Chain, score: float) -> None:
        """Add a chain's first token, if it is legal, and queue what follows it."""
        if chain.taken is not None:
            chain.cursor.advance(chain.taken)
        if not chain.tokens:
            self._expand(chain.parent, chain.depth, chain.cursor, score, chain.after)
            return
        token, rest = chain.tokens[0], chain.tokens[1:]
        if not chain.cursor.mask().allows(token):
            return
        before = len(self.builder)
        node = self.builder.add(chain.parent, token, f"{NAME}:{chain.kind}", score)
        if len(self.builder) == before and not rest and not chain.after:
            return
        kind, factor = chain.kind, 1.0
        if rest and kind != "forced":
            kind = kind.removesuffix("+") + "+"
            factor = self.rates.chance(kind)
        self._push(_Chain(node, chain.depth + 1, chain.cursor, rest, kind, chain.after, token), score * factor)

    def _expand(self, node: int, depth: int, cursor: GrammarCursor, score: float, after: tuple[Guess, ...]) -> None:
        """Queue everything that may follow a node."""
        if cursor.done:
            return
        forced = cursor.forced_run(min(_MOST_FORCED, self.budget - len(self.builder)))
        if forced:
            self._push(_Chain(node, depth, cursor, tuple(forced), "forced"), score)
            return
        if after:
            self._end(node, depth, cursor, score, after)
            return
        for guess in self.proposer.guesses(cursor):
            self._offer(node, depth, cursor, score, guess)

    def _end(self, node: int, depth: int, cursor: GrammarCursor, score: float, ways: tuple[Guess, ...]) -> None:
        """Every token that begins one of the ways a value may end; models spell closings in more than one way."""
        for token, kind, chance in _endings(cursor, ways, self.rates):
            if score * chance >= _LEAST_SCORE:
                self._push(_Chain(node, depth, cursor.fork(), (token,), kind), score * chance)

    def _offer(self, node: int, depth: int, cursor: GrammarCursor, score: float, guess: Guess) -> None:
        chance = score * self.rates.chance(guess.kind)
        if chance < _LEAST_SCORE:
            return
        if not guess.boundary:
            tokens = tuple(cursor.plan.vocabulary.tokenize(guess.text))
            if guess.kind in ENDINGS:
                self._end(node, depth, cursor, score, (guess,))
            else:
                self._push(_Chain(node, depth, cursor.fork(), tokens, guess.kind), chance)
            return
        head, ways = _with_boundary(cursor, guess)
        if head:
            self._push(_Chain(node, depth, cursor.fork(), head, guess.kind, ways), chance)
        elif ways:
            self._end(node, depth, cursor, score if guess.kind in _APART else chance, ways)


def _with_boundary(cursor: GrammarCursor, guess: Guess) -> tuple[tuple[int, ...], tuple[Guess, ...]]:
    """A value's tokens up to where its end merges with what follows, and the ways it may end from there."""
    vocabulary = cursor.plan.vocabulary
    value = guess.text.encode()
    tail = cursor.plan.tail(cursor.text + value)
    if tail is None:
        return (), ()
    ending = tail.decode("utf-8", "ignore")
    quote = '"' if ending.startswith('"') else ""
    follows = ending[len(quote) :]
    ways = [(follows, "next" if follows[:1] == "," else "close")]
    if follows[:1] in ("}", "]"):
        ways.append((', "', "more") if follows[:1] == "}" else (", ", "item"))
    spelled = [vocabulary.tokenize(guess.text + quote + way) for way, _ in ways]
    common, length = 0, 0
    while all(common < len(tokens) for tokens in spelled) and len({tokens[common] for tokens in spelled}) == 1:
        size = len(vocabulary.spelling[spelled[0][common]])
        if length + size > len(value):
            break
        length += size
        common += 1
    context = guess.kind if guess.kind in _APART else ""
    left = value[length:].decode("utf-8", "ignore")
    return tuple(spelled[0][:common]), tuple(Guess(left + quote + way, kind, False, context) for way, kind in ways)


def _endings(cursor: GrammarCursor, ways: tuple[Guess, ...], rates: Rates) -> list[tuple[int, str, float]]:
    """(token, kind, chance) of the legal tokens that begin any of ``ways``; chances sum to one at most."""
    vocabulary, mask = cursor.plan.vocabulary, cursor.mask()
    found: dict[int, tuple[str, float]] = {}
    context = ways[0].context + "".join(sorted({way.kind[0] for way in ways}))
    for way in ways:
        text = way.text.encode()[:12]
        canonical = vocabulary.tokenize(text)[:1]
        for end in range(1, len(text) + 1):
            token = vocabulary.id_of(text[:end])
            if token is None or token in found or not mask.allows(token):
                continue
            kind = f"{context}:{text[:end].decode('utf-8', 'ignore')}"
            prior = PRIORS.get(way.kind, 0.5) * _APART.get(way.context, 1.0) * (0.7 if [token] == canonical else 0.25)
            found[token] = (kind, rates.chance(kind, prior))
    whole = max(1.0, sum(chance for _, chance in found.values()))
    return [(token, kind, chance / whole) for token, (kind, chance) in found.items()]


def _segments(vocabulary: Vocabulary, prompt: Sequence[int]) -> list[str]:
    """The prompt's messages, latest first, cut at control tokens; role names are left out."""
    parts: list[list[int]] = [[]]
    for token in prompt:
        if token in vocabulary.controls:
            parts.append([])
        else:
            parts[-1].append(token)
    texts = [vocabulary.decode(part).decode("utf-8", "replace").strip() for part in parts]
    kept = []
    for text in reversed(texts):
        head, _, body = text.partition("\n")
        body = body if head in ("user", "assistant", "system", "tool") else text
        if body and body not in ("user", "assistant", "system", "tool"):
            kept.append(body)
    return kept


def _calls_in(text: str, names: Mapping[str, object]) -> list[tuple[str, Mapping[str, object]]]:
    from .families import HERMES, LLAMA3

    found: list[tuple[str, Mapping[str, object]]] = []
    for family in (HERMES, LLAMA3):
        reader = CallReader(family, list(names))
        reader.feed(text)
        found += [(call.name, call.arguments) for call in reader.reply.calls]
    return found
