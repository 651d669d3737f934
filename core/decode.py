"""The loop: draft, verify, accept, commit (SYSTEM.md C1–C9; EXACTNESS.md)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from .accept import Choice, coupled, rejection
from .constraint import Constraint
from .controller import Controller, StepTimes
from .drafters.base import Drafter, DraftState, DraftView, Outcome, Proposal
from .drafting import checked, cut_illegal, cut_tokens, extend_forced
from .errors import Cancelled, DrafterWarning
from .sampling import Draw, Sampler, probabilities
from .stats import DecodeStats
from .target import StepResult, TargetSequence
from .trace import step_record
from .tree import EMPTY, ROOT, DraftTree, merge

FORCED_RUN_LIMIT = 64

LIKELY = 0.25
"""Least estimated acceptance of a guess that may share the forward of a free answer's first token, which someone
waits to read; a form is read when it is whole."""


class Emitted(NamedTuple):
    """One token of the reply: who paid for it, the constraint's state it was written in, what was kept of it."""

    token: int
    source: str
    state: str
    draw: Draw


class Step(NamedTuple):
    """What one forward brought."""

    emitted: tuple[Emitted, ...]
    finish: str | None
    record: dict[str, Any]


class Ask(NamedTuple):
    """Asks for the token after ``node``, from the logits of ``result``; ``at`` tokens came before it."""

    result: StepResult
    node: int
    at: int


StopRule = Callable[[Draw], str | None]
"""Called once per emitted token, after it was appended to the id buffer; a reason ends the reply."""


@dataclass
class Request:
    """One reply to decode. ``tokens`` is the sequence so far; the loop appends to it."""

    tokens: list[int]
    sampler: Sampler
    stop: StopRule
    max_new_tokens: int
    constraint: Constraint | None = None
    mode: str = "coupled"
    beta: float = 0.7
    gamma: float = 1.0
    cancelled: Callable[[], bool] | None = None
    chunk: int = 512
    skip_forced: bool = True
    placeholder_ids: frozenset[int] = frozenset()
    vocab_size: int = 1 << 31


@dataclass
class OpenDrafter:
    """A drafter and its state in the session."""

    drafter: Drafter
    state: DraftState
    failed: bool = False

    @classmethod
    def of(cls, drafter: Drafter) -> OpenDrafter:
        """Opened for a new session; one that fails to open fails again, and is dropped, where it is asked."""
        try:
            return cls(drafter, drafter.open())
        except Exception as error:  # as in Decoder._ask
            return cls(drafter, _Unopened(error))

    @property
    def needs_hidden(self) -> bool:
        """Whether hidden states have to be computed for it."""
        try:
            return bool(getattr(self.drafter, "needs_hidden", False))
        except Exception:  # as in Decoder._ask
            return False

    @property
    def name(self) -> str:
        """The drafter's label, whatever asking for it brings."""
        try:
            return str(self.drafter.name)
        except Exception:  # as in Decoder._ask
            return type(self.drafter).__name__


@dataclass
class _Unopened:
    """State of a drafter that raised when it was opened."""

    error: Exception

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        raise self.error

    def observe(self, outcome: Outcome) -> None:
        raise self.error


@dataclass
class Decoder:
    """Decodes one request on one sequence."""

    sequence: TargetSequence
    request: Request
    drafters: Sequence[OpenDrafter]
    controller: Controller
    stats: DecodeStats = field(default_factory=DecodeStats)
    trace: Callable[[dict[str, Any]], None] | None = None

    def __post_init__(self) -> None:
        self._prompt_length = len(self.request.tokens)
        self._index = 0
        # At temperature 0 the law is a point: the coupled rule is the ratio test, and needs no draws.
        self._ratio_test = self.request.mode == "rejection" and not self.request.sampler.processing.greedy

    def steps(self) -> Iterator[Step]:
        """One item per forward, until the reply ends or the context is full. Closing early loses nothing."""
        turns = self.turns()
        given: Draw | None = None
        while True:
            try:
                turn = turns.send(given)
            except StopIteration:
                return
            given = None
            if isinstance(turn, Ask):
                given = self._drawn(turn)
            else:
                yield turn

    def _drawn(self, ask: Ask) -> Draw:
        constraint = self.request.constraint
        mask = constraint.mask() if constraint is not None else None
        return self.request.sampler.draw(ask.result, ask.node, ask.at, mask)

    def turns(self) -> Generator[Ask | Step, Draw | None, None]:
        """``steps`` with every choice left to the caller: an ``Ask`` is answered by sending the ``Draw``.

        So several rows of a batch can be decoded side by side, each with its own drafts, while processors see
        all rows at the same place, as in a plain batch.
        """
        self.controller.begin_reply()
        finish: str | None = None
        while finish is None:
            self._prefill()
            started = time.perf_counter()
            pending = self.request.tokens[self.sequence.length :]
            if self._index and len(pending) > self.sequence.max_rows:
                return  # the context is full: what was said stands, nothing more can follow
            tree = self._draft(len(pending))
            drafted = time.perf_counter()
            tree, result = self._verify(pending, tree)
            verified = time.perf_counter()
            accepted, emitted, finish = yield from self._walk(tree, result)
            self._commit(len(pending), tree, accepted, emitted)
            times = StepTimes(drafted - started, verified - drafted, time.perf_counter() - verified)
            record = self._account(len(pending), tree, accepted, emitted, times)
            yield Step(tuple(emitted), finish, record)

    def _prefill(self) -> None:
        """Bring all but the last chunk into the cache, so that the step's own forward carries the rest."""
        tokens, chunk = self.request.tokens, self.request.chunk
        if self.sequence.length >= len(tokens):
            self.sequence.truncate(len(tokens) - 1)
        started = time.perf_counter()
        self.sequence.settle(len(tokens))
        while (rest := len(tokens) - self.sequence.length) > (together := min(chunk, self.sequence.span(rest))):
            self._check_cancelled()
            self.sequence.prefill(tokens[self.sequence.length : self.sequence.length + together])
        self._check_cancelled()
        self.stats.prefill_seconds += time.perf_counter() - started

    def _check_cancelled(self) -> None:
        if self.request.cancelled is not None and self.request.cancelled():
            raise Cancelled("the request was cancelled; what was decoded so far is kept in the session")

    def _draft(self, pending: int) -> DraftTree:
        remaining = self.request.max_new_tokens - self._index - 1
        room = min(self.sequence.max_rows - pending, remaining, self.sequence.draft_room(pending))
        budget = self.controller.budget(pending) if self.drafters and room > 0 else 0
        if budget <= 0:
            return EMPTY
        trees: list[DraftTree] = []
        seen = tuple(self.request.tokens)
        for drafter in self.drafters:
            if not drafter.failed:
                leaves = merge(trees, budget)  # never a tree that is shared
                trees.append(self._ask(drafter, self._view(seen, leaves, room), budget))
        tree = self.controller.choose(self._within(merge(trees, budget), room), pending, budget)
        if self._index or self.request.constraint is not None:
            return tree
        return tree.select([node for node in range(len(tree)) if tree.scores[node] >= LIKELY])

    def _within(self, tree: DraftTree, depth: int) -> DraftTree:
        """Nodes past the model's context or the reply's end are cut."""
        if tree.depth <= depth:
            return tree
        return tree.select([node for node in range(len(tree)) if tree.depths[node] <= depth])

    def _view(self, tokens: tuple[int, ...], leaves: DraftTree, remaining: int) -> DraftView:
        request = self.request
        constraint = request.constraint.fork() if request.constraint is not None else None
        noise = replace(request.sampler.noise)
        return DraftView(
            tokens,
            self._prompt_length,
            constraint,
            noise,
            leaves,
            remaining=remaining,
            row_cost=self.controller.row_cost,
            proposal=Proposal(request.beta, noise, self._index) if self._ratio_test else None,
        )

    def _ask(self, drafter: OpenDrafter, view: DraftView, budget: int) -> DraftTree:
        """A drafter's tree, made legal; a drafter that raises is dropped, the answer is unaffected."""
        try:
            tree = checked(drafter.state.propose(view, budget), self.request.vocab_size)
            tree = cut_tokens(tree, self.request.placeholder_ids)
            if self.request.constraint is not None and not getattr(drafter.drafter, "keeps_to_constraint", False):
                tree = cut_illegal(tree, self.request.constraint)
                tree = extend_forced(tree, self.request.constraint, budget)
        except Exception as error:  # any failure of a guesser must leave the reply as it was
            self._drop(drafter, error)
            return EMPTY
        return tree

    def _drop(self, drafter: OpenDrafter, error: Exception) -> None:
        drafter.failed = True
        name = drafter.name
        self.stats.dropped_drafters.append(f"{name}: {type(error).__name__}: {error}")
        self.controller.changes[f"drafter {name} failed"] += 1
        warnings.warn(
            f"drafter {name!r} raised {type(error).__name__}: {error}; it is left out of this reply",
            DrafterWarning,
            stacklevel=2,
        )

    def _verify(self, pending: Sequence[int], tree: DraftTree) -> tuple[DraftTree, StepResult]:
        """One forward; out of memory steps the ladder down and tries again with a smaller tree."""
        while True:
            try:
                return tree, self.sequence.verify(pending, tree, self._needs_hidden)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error) or not len(tree):
                    raise
                stepped = self.controller.out_of_memory()
                tree = self.controller.choose(tree, len(pending), len(tree) // 2) if stepped else tree.trim(0)

    @property
    def _needs_hidden(self) -> bool:
        return any(d.needs_hidden for d in self.drafters if not d.failed)

    def _walk(
        self, tree: DraftTree, result: StepResult
    ) -> Generator[Ask, Draw | None, tuple[list[int], list[Emitted], str | None]]:
        """Down the tree with the target's own tokens; the last one is the bonus token, then what it forces."""
        accepted: list[int] = []
        emitted: list[Emitted] = []
        node = ROOT
        while True:
            choice, draw = yield from self._choose(tree, result, node)
            finish = self._veto(choice.token, emitted)
            if finish is not None:
                return accepted, emitted, finish
            source = "target" if choice.child is None else tree.sources[choice.child]
            if choice.child is not None:
                accepted.append(choice.child)
            finish = self._emit(draw, source, emitted)
            if finish is not None:
                return accepted, emitted, finish
            if choice.child is None:
                return accepted, emitted, self._emit_forced(emitted)
            node = choice.child

    def _choose(
        self, tree: DraftTree, result: StepResult, node: int
    ) -> Generator[Ask, Draw | None, tuple[Choice, Draw]]:
        request = self.request
        if self._ratio_test and node in tree.trials:
            mask = request.constraint.mask() if request.constraint is not None else None
            scores = request.sampler.scores(result.row(node), mask)
            choice = rejection(tree, node, probabilities(scores), request.sampler.noise, self._index, request.gamma)
            return choice, request.sampler.kept(choice.token, scores, result.row(node))
        draw = yield Ask(result, node, self._index)
        assert draw is not None, "an Ask is answered with a Draw"
        return coupled(tree, node, draw.token), draw

    def _veto(self, token: int, emitted: list[Emitted]) -> str | None:
        constraint = self.request.constraint
        veto = constraint.veto(token) if constraint is not None else None
        if veto is None:
            return None
        self.stats.notes["veto"] = veto.reason
        for replacement in veto.replacement:
            emitted.append(Emitted(replacement, "refusal", "REFUSAL", Draw(replacement)))
            self.request.sampler.ids.append(replacement)
        return "content_filter"

    def _emit(self, draw: Draw, source: str, emitted: list[Emitted]) -> str | None:
        constraint = self.request.constraint
        state = "TEXT"
        if constraint is not None:
            constraint.advance(draw.token)
            state = constraint.state
        self.request.sampler.ids.append(draw.token)
        emitted.append(Emitted(draw.token, source, state, draw))
        self._index += 1
        return self.request.stop(draw)

    def _emit_forced(self, emitted: list[Emitted]) -> str | None:
        """Rule A: tokens that are the only legal ones follow without a forward of their own."""
        constraint, sampler = self.request.constraint, self.request.sampler
        if constraint is None or not self.request.skip_forced:
            return None
        if not sampler.processing.keeps_support or sampler.processing.keep_scores:
            return None
        limit = min(FORCED_RUN_LIMIT, self.request.max_new_tokens - self._index)
        for token in constraint.forced_run(limit):
            if constraint.veto(token) is not None:
                return self._veto(token, emitted)
            finish = self._emit(sampler.forced(token), "forced", emitted)
            if finish is not None:
                return finish
        return None

    def _commit(self, pending: int, tree: DraftTree, accepted: list[int], emitted: list[Emitted]) -> None:
        # Tokens first: if a signal falls between the two, the cache is merely behind.
        self.request.tokens.extend(e.token for e in emitted)
        self.sequence.commit(pending, accepted)
        if not len(tree):
            return
        outcome = Outcome(tree, tuple(accepted), tuple(e.token for e in emitted))
        for drafter in self.drafters:
            if not drafter.failed:
                try:
                    drafter.state.observe(outcome)
                except Exception as error:  # as in _ask
                    self._drop(drafter, error)

    def _account(
        self, pending: int, tree: DraftTree, accepted: list[int], emitted: list[Emitted], times: StepTimes
    ) -> dict[str, Any]:
        stats, first = self.stats, self.stats.forwards == 0
        stats.forwards += 1
        stats.emitted += len(emitted)
        stats.rows += pending + len(tree)
        stats.drafted += len(tree)
        stats.accepted += len(accepted)
        stats.proposed.update(tree.sources)
        stats.sources.update(e.source for e in emitted)
        stats.forced += sum(e.source == "forced" for e in emitted)
        if first:
            stats.first_emitted, stats.first_rows = len(emitted), stats.rows
            stats.prefilled_tokens = self._prompt_length - stats.reused_tokens
            stats.prefill_seconds += times.total
        else:
            stats.draft_seconds += times.draft
            stats.verify_seconds += times.verify
            stats.rest_seconds += times.rest
        self.controller.observe(tree, pending, len(accepted), len(emitted), times)
        stats.ladder = self.controller.changes.copy()
        record = step_record(stats.forwards, pending, tree, accepted, emitted, times, self.controller)
        if self.trace is not None:
            self.trace(record)
        return record


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
