"""Positions in a reply's grammar: what holds after some tokens, worked out once for drafts and target alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mmspec_agent.core.constraint import TokenMask, Words

from .machine import END, NUMBER, START, STRING, JsonState
from .witness import completion

if TYPE_CHECKING:
    from .constraint import GrammarPlan

MAX_DIGITS: Final = 24
"""Longest number in characters; bounds, enums and constants that need more are honoured."""

MAX_EXPONENT: Final = 2
"""Digits of an exponent: 1e99 is the largest power, so every number stays finite."""

_CANDIDATES: Final = 48
_WALKED_TOKENS: Final = 160
"""Tokens of completions that are written out to find what fits near the end of the budget."""

_SPELLING_SLACK: Final = 6
_FAR: Final = 1 << 30


class Position:
    """What holds after some tokens of a reply. It never changes; what can follow is kept with it once known.

    Cursors of drafts and of the target walk the same positions, so that no mask is computed twice. A position
    knows those after it and none before it: what lies behind every cursor is freed.
    ``remaining``: tokens the reply may still have. ``is_done``: nothing may follow.
    """

    __slots__ = ("_bound", "_mask", "_next", "_witness", "is_done", "matcher", "plan", "remaining", "scan", "text")

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
        self._witness: tuple[int, ...] | None = None
        self._bound = 0
        self._mask: TokenMask | None = None
        self._next: dict[int, Position] = {}

    @classmethod
    def first(cls, plan: GrammarPlan, matcher: Any, remaining: int, witness: tuple[int, ...]) -> Position:
        """The beginning of a reply; ``witness``: tokens of a whole one."""
        scan = scanned(plan, JsonState(), plan.seed) if plan.seed else JsonState()
        start = cls(plan, matcher, b"", scan, remaining)
        start._witness, start._bound = witness, len(witness)
        return start

    def past(self, data: bytes) -> Position | None:
        """This position past ``data`` that was written before the grammar began; None if it is not legal."""
        tokens, matcher = self.plan.vocabulary.tokenize(data), self.matcher.deep_copy()
        if matcher.try_consume_tokens(tokens) < len(tokens):
            return None
        after = Position(self.plan, matcher, self.text + data, scanned(self.plan, self.scan, data), self.remaining)
        witness = after._complete(matcher, after.text)
        if witness is None or len(witness) > self.remaining:
            return None
        after._witness, after._bound = witness, len(witness)
        return after

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
        after._follow(self, token)
        return after

    def _follow(self, before: Position, token: int) -> None:
        """Keep the witness, or its bound, in step; a pure function of the tokens taken."""
        witness, growth = before._witness, self.plan.growth
        if witness and witness[0] == token:
            self._witness, self._bound = witness[1:], len(witness) - 1
        elif before._stays_open(token, self.scan):
            self._witness, self._bound = witness, before._bound
        else:
            self._bound = before._bound + growth
        if self._witness is None and self.remaining < self._bound + growth:
            self._bound = min(self._bound, self._written_out())
            if self.remaining < self._bound + growth:
                self._find_witness()

    def _written_out(self) -> int:
        """Most tokens of the shape's own way to finish, even if it is spelled badly."""
        tail = self.plan.tail(self.text)
        return _FAR if tail is None else self.plan.vocabulary.spelled_length(tail) + _SPELLING_SLACK

    def _find_witness(self) -> None:
        self._witness = self._complete(self.matcher, self.text)
        if self._witness is not None:
            self._bound = len(self._witness)

    def _stays_open(self, token: int, after: JsonState) -> bool:
        """Whether ``token`` is plain text after which the string closes as it would have before it."""
        plan, witness = self.plan, self._witness
        if self.scan.name != STRING or after.name != STRING:
            return False
        if witness is not None and not (witness and plan.vocabulary.spelling[witness[0]].startswith(b'"')):
            return False
        return plan.vocabulary.is_plain(token) and self._is_free(self.mask)

    def _is_free(self, mask: TokenMask) -> bool:
        """Whether this is a string that takes almost any text, so that plain text never changes how to close."""
        vocabulary = self.plan.vocabulary
        if self.scan.name != STRING or not self.plan.free_strings:
            return False
        return _count(mask.words & vocabulary.inside_string) * 5 > vocabulary.plain_count

    def _complete(self, matcher: Any, text: bytes) -> tuple[int, ...] | None:
        plan = self.plan
        return completion(plan.vocabulary, plan.shape, text, matcher, plan.mask_of, max(self.remaining, 0) + 64)

    @property
    def witness(self) -> tuple[int, ...]:
        """A short completion from here, as tokens."""
        found = self._witness if self._witness is not None else self._complete(self.matcher, self.text)
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
        if self.remaining >= self._bound + self.plan.growth or self._witness is None:
            return mask
        return mask if mask.single() is not None else self._narrowed(mask)

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

    def _narrowed(self, mask: TokenMask) -> TokenMask:
        """What still leaves room to close: the witness's token, plain text in a string, what is proven to fit."""
        witness, vocabulary = self._witness, self.plan.vocabulary
        assert witness is not None
        legal = [t for t in vocabulary.eos_ids if mask.allows(t)] if self.matcher.is_accepting() else []
        legal += witness[:1]
        if self.remaining <= len(witness):
            return TokenMask.of(legal, vocabulary.size)
        words, tried = TokenMask.of(legal, vocabulary.size).words, mask.words
        if self._is_free(mask):
            words = words | (tried & vocabulary.inside_string)
            tried = tried & ~vocabulary.inside_string
        if _count(tried) > _CANDIDATES:
            tried = tried & vocabulary.single_ascii
        fitting = self._fitting(TokenMask(tried, vocabulary.size).tokens().tolist(), legal)
        return TokenMask(words | TokenMask.of(fitting, vocabulary.size).words, vocabulary.size)

    def _fitting(self, tokens: Sequence[int], known: Sequence[int]) -> list[int]:
        """Those after which a completion of the remaining length exists; at most a few need a walk."""
        fitting, walks = [], _WALKED_TOKENS // (len(self._witness or ()) + 8)
        for token in tokens:
            if token in known or token in self.plan.vocabulary.eos_ids:
                continue
            text = self.text + self.plan.vocabulary.spelling[token]
            if self._surely_fits(text):
                fitting.append(token)
                continue
            if walks <= 0:
                continue
            walks -= 1
            after = self.matcher.deep_copy()
            found = self._complete(after, text) if after.consume_token(token) else None
            if found is not None and len(found) <= self.remaining - 1:
                fitting.append(token)
        return fitting

    def _surely_fits(self, text: bytes) -> bool:
        """Whether the shape's own way to finish is short enough even if it is spelled badly."""
        plan = self.plan
        tail = plan.tail(text)
        return tail is not None and plan.vocabulary.spelled_length(tail) + _SPELLING_SLACK < self.remaining


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


def _count(words: Words) -> int:
    return int.from_bytes(words.tobytes(), "little").bit_count()


def _too_long(number: bytes) -> bool:
    digits = number[: len(number) - len(number.lstrip(b"0123456789.eE+-"))] or number
    mantissa, _, exponent = digits.lower().partition(b"e")
    return len(mantissa) > MAX_DIGITS or len(exponent.lstrip(b"+-")) > MAX_EXPONENT
