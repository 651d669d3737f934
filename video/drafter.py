"""The last answer of a stream as the draft of the next.

A caption changes by a word when the picture changes by a thing. So the previous answers are kept, the reply so far is
found again in each of them, by its last tokens rather than by its length, and what followed there is proposed. Wrong
guesses cost time only: the target verifies them on the real frame.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple, Protocol

from mmspec_agent.core.drafters.base import DraftView, Outcome
from mmspec_agent.core.tree import EMPTY, ROOT, DraftTree, TreeBuilder

from .align import Alignment, Answer, Place, State, align

NAME = "previous-answer"
_MAX_ANSWERS = 4
_MAX_TOKENS = 2048
_MAX_TOPICS = 8
_MIN_SCORE = 0.05
_SIDE_NODES = 4
_PAYS = 0.4


class Offer(Protocol):
    """What the drafter wants to know of a gate's decision."""

    @property
    def hit(self) -> bool: ...

    @property
    def scene_break(self) -> bool: ...

    @property
    def crosses_gap(self) -> bool: ...


class Rate:
    """A running share of successes, starting from a prior; recent trials weigh more."""

    def __init__(self, prior: float, weight: float = 4.0, memory: float = 40.0) -> None:
        self._hits = prior * weight
        self._trials = weight
        self._memory = memory

    @property
    def value(self) -> float:
        """The share, strictly between 0 and 1."""
        return (self._hits + 0.05) / (self._trials + 0.1)

    def add(self, hit: bool) -> None:
        """One more trial."""
        keep = 1.0 if self._trials < self._memory else 1.0 - 1.0 / self._memory
        self._hits = self._hits * keep + hit
        self._trials = self._trials * keep + 1.0


Verdict = Literal["still", "changed", "break"]
"""What the gate said of the frame: one rate of right guesses is kept for each."""

_OFFERED_AT_FIRST: dict[Verdict, float] = {"still": 0.5, "changed": 0.5, "break": 0.3}
_PRIORS: dict[State, float] = {"start": 0.7, "strong": 0.85, "weak": 0.5, "resync": 0.4, "skip": 0.2}


class Acceptance:
    """Calibrated chances, one per way of having found the place: of the first guess, and of each one behind it."""

    def __init__(self) -> None:
        self._first = {state: Rate(prior) for state, prior in _PRIORS.items()}
        self._next = {state: Rate(0.85) for state in _PRIORS}
        self.overall = Rate(0.5, weight=2.0)
        self.after = {verdict: Rate(prior, weight=2.0) for verdict, prior in _OFFERED_AT_FIRST.items()}

    def scores(self, state: State, length: int) -> list[float]:
        """Chance that a guess of each depth is reached and right; cut where it is no longer worth a node."""
        scores: list[float] = []
        score = self._first[state].value
        step = self._next[state].value
        while len(scores) < length and score >= _MIN_SCORE:
            scores.append(score)
            score *= step
        return scores

    def learn(self, state: State, guessed: Sequence[int], actual: Sequence[int], verdict: Verdict = "changed") -> None:
        """``actual`` tokens followed where ``guessed`` were proposed, or would have been."""
        for depth, (guess, token) in enumerate(zip(guessed, actual)):
            rate = self._next[state] if depth else self._first[state]
            rate.add(guess == token)
            self.overall.add(guess == token)
            self.after[verdict].add(guess == token)
            if guess != token:
                return


class Pending(NamedTuple):
    """What was foreseen at a place of the reply, to be compared with what came: learned from, offered or not."""

    at: int
    state: State
    guessed: tuple[int, ...]


class Topic:
    """What is remembered for one question: its last answers, and how well they foretold the next."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque(maxlen=_MAX_ANSWERS)
        self.acceptance = Acceptance()
        self.pending: Pending | None = None
        self.verdict: Verdict = "changed"

    def catch_up(self, reply: Sequence[int]) -> None:
        """Compare what was foreseen with what the reply has become."""
        pending, self.pending = self.pending, None
        if pending is not None and len(reply) > pending.at:
            self.acceptance.learn(pending.state, pending.guessed, reply[pending.at :], self.verdict)


def _verdict_of(decision: Offer | None) -> Verdict:
    if decision is not None and decision.hit:
        return "still"
    return "break" if decision is not None and decision.scene_break else "changed"


class PreviousAnswerDrafter:
    """One per stream: ``set_offer`` before each answer, ``remember`` after it; ``open`` for the engine.

    Several questions on a stream are kept apart by ``topic``. Memory is bounded: 8 topics of 4 answers of 2,048 tokens.
    """

    name = NAME
    needs_hidden = False
    keeps_to_constraint = False

    def __init__(self) -> None:
        self._topics: OrderedDict[Hashable, Topic] = OrderedDict()
        self._topic: Hashable = None
        self._offer: Offer | None = None

    def open(self) -> PreviousAnswerState:
        """A state for one reply or many; what is remembered stays with the drafter."""
        return PreviousAnswerState(self)

    def set_offer(self, decision: Offer | None, topic: Hashable = None) -> None:
        """The gate's word on the frame about to be answered; a gap in the stream forgets every answer.

        Without a decision (None) the last answer is offered as on a miss: while it pays.
        """
        self._topic, self._offer = topic, decision
        memory = self._memory(topic)
        memory.pending, memory.verdict = None, _verdict_of(decision)
        if decision is not None and decision.crosses_gap:
            self.clear()

    def remember(self, tokens: Sequence[int], topic: Hashable = None) -> None:
        """The finished answer, end-of-text token included, so that the end is drafted too."""
        if tokens:
            memory = self._memory(topic)
            memory.catch_up(tokens)
            memory.answers.appendleft(Answer(tuple(tokens[:_MAX_TOKENS])))

    def clear(self) -> None:
        """Forget all answers; how well they foretold the next ones is kept."""
        for topic in self._topics.values():
            topic.answers.clear()

    def acceptance(self, topic: Hashable = None) -> float:
        """Running share of right guesses, whether they were offered or not."""
        return self._memory(topic).acceptance.overall.value

    @property
    def topic(self) -> Topic:
        """Memory of the question in hand."""
        return self._memory(self._topic)

    @property
    def offers(self) -> bool:
        """Whether guesses are to be made: on a hit always, across a gap never, otherwise while they pay.

        What the gate takes for another scene may be the same one behind a moving camera, so that its answers stay:
        how often they did after such a verdict decides, and a draft that is wrong costs one rejected block.
        """
        offer = self._offer
        if offer is not None and (offer.hit or offer.crosses_gap):
            return offer.hit
        topic = self.topic
        return topic.acceptance.after[topic.verdict].value >= _PAYS

    def _memory(self, topic: Hashable) -> Topic:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = Topic()
            while len(self._topics) > _MAX_TOPICS:
                self._topics.popitem(last=False)
        self._topics.move_to_end(topic)
        return found


class PreviousAnswerState:
    """The drafter within one session."""

    def __init__(self, drafter: PreviousAnswerDrafter) -> None:
        self._drafter = drafter

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        """The continuation in each remembered answer, the last one's in full, others where they differ."""
        reply = view.tokens[view.prompt_length :]
        topic = self._drafter.topic
        topic.catch_up(reply)
        room = min(budget, view.remaining)
        found = [(answer, align(answer, reply)) for answer in topic.answers]
        if not found or room <= 0:
            return EMPTY
        answer, place = found[0]
        topic.pending = Pending(len(reply), place.state, answer.tokens[place.at : place.at + 64])
        if not self._drafter.offers:
            return EMPTY
        return self._tree(topic.acceptance, found, room, budget)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to do: what came of a guess is read off the committed tokens, offered or not."""

    def _tree(
        self, acceptance: Acceptance, found: list[tuple[Answer, Alignment]], depth: int, budget: int
    ) -> DraftTree:
        builder = TreeBuilder()
        for rank, (answer, place) in enumerate(found):
            places = [Place(place.state, place.at), *(place.others if rank == 0 else ())]
            for side, (state, at) in enumerate(places):
                tokens = answer.tokens[at : at + depth]
                scores = acceptance.scores(state, len(tokens))
                if rank or side:
                    # The main line was right that often; only the rest is left for the alternatives.
                    scores = [score * (1.0 - scores[0]) / (1 + rank) for score in scores]
                self._add(builder, tokens, scores, main=not (rank or side))
        return builder.build().trim(budget)

    def _add(self, builder: TreeBuilder, tokens: Sequence[int], scores: Sequence[float], main: bool) -> None:
        node, fresh = ROOT, 0
        for token, score in zip(tokens, scores):
            before = len(builder)
            node = builder.add(node, token, NAME, score)
            fresh += len(builder) > before
            if not main and (fresh >= _SIDE_NODES or score < _MIN_SCORE):
                return
