"""Positions in a reply's grammar: what holds after some tokens, worked out once for drafts and target alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mmspec_agent.core.constraint import TokenMask

from .closing import narrowed
from .machine import END, NUMBER, START, JsonState
from .witness import completion

if TYPE_CHECKING:
    from .constraint import GrammarPlan

MAX_DIGITS: Final = 24
"""Longest number in characters; bounds, enums and constants that need more are honoured."""

MAX_EXPONENT: Final = 2
"""Digits of an exponent: 1e99 is the largest power, so every number stays finite."""

_FAR: Final = 1 << 30

TIGHT: Final = 6
"""Tokens to spare below which the way to the end is spelled out exactly; otherwise its canonical tokens are counted."""


class Position:
    """What holds after some tokens of a reply. It never changes; what can follow is kept with it once known.

    Cursors of drafts and of the target walk the same positions, so that no mask is computed twice. A position
    knows those after it and none before it: what lies behind every cursor is freed.
    ``remaining``: tokens the reply may still have. ``is_done``: nothing may follow. ``near``: some token may leave
    too few of them. ``spelled``: tokens of a way to the end that the masks allow, where it was spelled out.

    Everything follows from the tokens taken: no mask depends on which positions were looked at before.
    """

    __slots__ = (
        "_bound",
        "_mask",
        "_next",
        "is_done",
        "matcher",
        "near",
        "plan",
        "remaining",
        "scan",
        "spelled",
        "text",
    )

    def __init__(
        self,
        plan: GrammarPlan,
        matcher: Any,
        text: bytes,
        scan: JsonState,
        remaining: int,
        is_done: bool = False,
    ) -> None:
        self.plan = plan
        self.matcher = matcher
        self.text = text
        self.scan = scan
        self.remaining = remaining
        self.is_done = is_done
        self.spelled: tuple[int, ...] | None = None
        self.near = True
        self._bound = 0
        self._mask: TokenMask | None = None
        self._next: dict[int, Position] = {}

    @classmethod
    def first(cls, plan: GrammarPlan, matcher: Any, remaining: int, witness: tuple[int, ...]) -> Position:
        """The beginning of a reply; ``witness``: tokens of a whole one."""
        scan = scanned(plan, JsonState(), plan.seed) if plan.seed else JsonState()
        start = cls(plan, matcher, b"", scan, remaining)
        start._begin(witness)
        return start

    def past(self, data: bytes) -> Position | None:
        """This position past ``data`` that was written before the grammar began; None if it is not legal."""
        tokens, matcher = self.plan.vocabulary.tokenize(data), self.matcher.deep_copy()
        if matcher.try_consume_tokens(tokens) < len(tokens):
            return None
        after = Position(self.plan, matcher, self.text + data, scanned(self.plan, self.scan, data), self.remaining)
        witness = after.completed()
        if witness is None or len(witness) > self.remaining:
            return None
        after._begin(witness)
        return after

    def _begin(self, witness: tuple[int, ...]) -> None:
        self.spelled, self._bound = witness, len(witness)
        self._measure()

    def after(self, token: int) -> Position:
        """The position after ``token``, which has to be legal here."""
        found = self._next.get(token)
        if found is None:
            found = self._next[token] = self._moved(token)
        return found

    def _moved(self, token: int) -> Position:
        plan, vocabulary = self.plan, self.plan.vocabulary
        if token in vocabulary.eos_ids and self.matcher.is_accepting():
            return Position(plan, self.matcher, self.text, self.scan, self.remaining - 1, is_done=True)
        matcher = self.matcher.deep_copy()
        matcher.consume_token(token)
        spelled = vocabulary.spelling[token]
        scan = self.scan if token in vocabulary.controls else scanned(plan, self.scan, spelled)
        after = Position(plan, matcher, self.text + spelled, scan, self.remaining - 1)
        after._arrive(self, token)
        return after

    def _arrive(self, before: Position, token: int) -> None:
        """Find out how near the end of the budget is."""
        self._bound = before._bound + self.plan.growth
        if before.spelled and before.spelled[0] == token:
            self.spelled = before.spelled[1:]
        self._measure()
        if self.near and self.spelled is None and self.remaining < self._needed() + TIGHT:
            self.spelled = self.completed()

    def _measure(self) -> None:
        """Whether any token may leave too few: by the bound so far, then by what the shape knows."""
        room, growth = self.remaining - 1, self.plan.growth
        if room < self._bound + growth:
            reading = self.plan.reading(self.text)
            if reading.tail is not None:
                self._bound = self.plan.vocabulary.spelled_length(reading.longest) + TIGHT
        self.near = room < self._bound + growth

    def _needed(self) -> int:
        """Tokens of the shape's way to the end, spelled canonically; far too many where it knows none."""
        tail = self.plan.tail(self.text)
        return _FAR if tail is None else self.plan.vocabulary.spelled_length(tail)

    def completed(self) -> tuple[int, ...] | None:
        """A short completion from here as tokens, spelled out as the masks allow; None if none is found.

        One that fits is looked for first, just as before the token that led here was let through: a search that
        may go further can find a longer one first.
        """
        plan, room = self.plan, max(self.remaining, 0)
        for limit in (room, room + 64):
            found = completion(plan.vocabulary, plan.shape, self.text, self.matcher, plan.mask_of, limit)
            if found is not None:
                return found
        return None

    @property
    def witness(self) -> tuple[int, ...]:
        """A short completion from here, as tokens."""
        found = self.spelled if self.spelled is not None else self.completed()
        return found or ()

    def forced(self, limit: int) -> list[int]:
        """Up to ``limit`` tokens each of which is the only legal one at its place."""
        run: list[int] = []
        here = self
        while len(run) < limit and not here.is_done:
            # The engine knows text it forces as a whole; each of these tokens is alone in its mask.
            some = here.matcher.compute_ff_tokens()[: limit - len(run)] if here._mask is None else []
            if not some and (single := here.mask.single()) is not None:
                some = [single]
            if not some:
                break
            for token in some:
                if here._mask is None:
                    here._mask = TokenMask.only(token, self.plan.vocabulary.size)
                here = here.after(token)
            run += some
        return run

    @property
    def mask(self) -> TokenMask:
        """The legal tokens; never empty."""
        if self._mask is None:
            self._mask = self._compute_mask()
        return self._mask

    def _compute_mask(self) -> TokenMask:
        vocabulary = self.plan.vocabulary
        if self.is_done or self.matcher.is_stopped():
            return TokenMask.of(vocabulary.eos_ids[:1], vocabulary.size)
        mask = self._capped(self.plan.mask_of(self.matcher))
        return narrowed(self, mask) if self.near and mask.single() is None else mask

    def _capped(self, mask: TokenMask) -> TokenMask:
        """Without tokens that would take a number past the digit cap, unless nothing else is legal."""
        if not self.plan.is_json:
            return mask
        scan, vocabulary = self.scan, self.plan.vocabulary
        begun = scan.piece if scan.name == NUMBER else b""
        exponent = b"e" in begun.lower()
        if not exponent and len(begun) + vocabulary.longest_number <= MAX_DIGITS and not vocabulary.writes_exponents:
            return mask
        over = [i for i, s in vocabulary.numeric if mask.allows(i) and _too_long(begun + s)]
        if not over:
            return mask
        capped = TokenMask(mask.words & ~TokenMask.of(over, mask.vocab_size).words, mask.vocab_size)
        return mask if capped.is_empty else capped


def scanned(plan: GrammarPlan, state: JsonState, data: bytes) -> JsonState:
    """The JSON state after ``data``; in wrapped grammars what stands between JSON values is passed over."""
    if not plan.wrapped:
        return state.feed(data)
    while data:
        if state.name in (START, END) and not (state.name == START and state.frame):
            begin = min((at for at in (data.find(b"{"), data.find(b"[")) if at >= 0), default=-1)
            if begin < 0:
                return state
            data, state = data[begin:], JsonState()
        state, data = _feed_until_end(state, data)
    return state


def _feed_until_end(state: JsonState, data: bytes) -> tuple[JsonState, bytes]:
    """Feed up to the end of one JSON value; the rest is other text."""
    after = state.feed(data)
    if after.name != END:
        return after, b""
    for at in range(1, len(data) + 1):
        state = state.feed(data[at - 1 : at])
        if state.name == END:
            return state, data[at:]
    return state, b""


def _too_long(number: bytes) -> bool:
    digits = number[: len(number) - len(number.lstrip(b"0123456789.eE+-"))] or number
    mantissa, _, exponent = digits.lower().partition(b"e")
    return len(mantissa) > MAX_DIGITS or len(exponent.lstrip(b"+-")) > MAX_EXPONENT
