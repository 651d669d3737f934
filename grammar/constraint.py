"""The grammar as a constraint: a cursor over llguidance whose mask always leaves a way to the end.

The mask is one object in every arm (EXACTNESS.md, "Grammar"): llguidance's mask ∩ digit cap ∩ no control ids
∩ closing budget. llguidance turns canonically forced text into a single-token mask, which Rule A skips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from llguidance import LLMatcher

from mmspec_agent.core.constraint import TokenMask, Veto, Words
from mmspec_agent.core.errors import ConstraintError, SchemaError

from .machine import END, NUMBER, START, STRING, JsonState
from .shape import Node, OneOf, walk
from .shape_json import String
from .vocabulary import Vocabulary
from .witness import completion, growth

MAX_DIGITS: Final = 24
"""Longest number in characters; bounds, enums and constants that need more are honoured."""

MAX_EXPONENT: Final = 2
"""Digits of an exponent: 1e99 is the largest power, so every number stays finite."""

_CANDIDATES: Final = 48
_VAST_ENUM: Final = 6000
_WALKED_TOKENS: Final = 400
"""Tokens of completions that are written out to find what fits near the end of the budget."""

_SPELLING_SLACK: Final = 6


@dataclass(frozen=True)
class GrammarPlan:
    """A compiled grammar over one vocabulary, shared by all replies (ConstraintPlan).

    ``shape`` finishes texts (None: by search); ``wrapped``: the JSON stands inside other text;
    ``controls``: control ids the grammar itself writes; ``seed``: what was written before the grammar starts,
    for the state names; ``hints``: per tool name (or "") the schema of what is written, for drafting.
    """

    vocabulary: Vocabulary
    grammar: str
    shape: Node | None = None
    is_json: bool = True
    wrapped: bool = False
    controls: tuple[int, ...] = ()
    seed: bytes = b""
    unenforced: tuple[tuple[str, str], ...] = ()
    hints: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def compile(cls, vocabulary: Vocabulary, grammar: str, shape: Node | None = None, **more: Any) -> GrammarPlan:
        """A plan for an llguidance grammar; SchemaError with the engine's words if it does not compile."""
        plan = cls(vocabulary, grammar, shape, **more)
        matcher = plan._matcher
        if matcher.is_error():
            raise SchemaError(f"The grammar does not compile: {matcher.get_error().strip().splitlines()[0][:300]}")
        plan.start  # noqa: B018  (fails early when nothing can ever be complete)
        return plan

    @cached_property
    def _matcher(self) -> Any:
        return LLMatcher(self.vocabulary.engine, self.grammar, log_level=0)

    @cached_property
    def start(self) -> tuple[int, ...]:
        """A shortest whole reply, as tokens."""
        found = completion(self.vocabulary, self.shape, b"", self._matcher, self.mask_of)
        if found is None:
            raise SchemaError("No finite text was found that the grammar accepts; bound its recursion.")
        return found

    @property
    def minimum_tokens(self) -> int:
        """Tokens of ``start``."""
        return len(self.start)

    @cached_property
    def growth(self) -> int:
        """Most tokens that one token adds to the shortest completion."""
        return growth(self.vocabulary, self.shape)

    def tail(self, text: bytes) -> bytes | None:
        """A short suffix that completes ``text``, as the shape knows it; None where it knows none."""
        known = self._tails.get(text)
        if known is None:
            if len(self._tails) > 1024:
                self._tails.clear()
            known = self._tails[text] = (None if self.shape is None else self.shape.read(text, 0).tail,)
        return known[0]

    @cached_property
    def _tails(self) -> dict[bytes, tuple[bytes | None]]:
        return {}

    @cached_property
    def free_strings(self) -> bool:
        """Whether a string that takes almost any text closes the same way after any: no expressions, no vast enums."""
        if self.shape is None:
            return False
        nodes = list(walk(self.shape))
        patterns = any(isinstance(node, String) and node.pattern is not None for node in nodes)
        return not patterns and not any(isinstance(node, OneOf) and len(node.texts) > _VAST_ENUM for node in nodes)

    @cached_property
    def allowed(self) -> Words:
        """Everything but control ids the grammar does not name."""
        return self.vocabulary.not_control | TokenMask.of(self.controls, self.vocabulary.size).words

    def mask_of(self, matcher: Any) -> TokenMask:
        """llguidance's mask without control ids."""
        words = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint32)
        return TokenMask(words[: len(self.allowed)] & self.allowed, self.vocabulary.size)

    def open(self, max_new_tokens: int) -> GrammarCursor:
        """A cursor for a reply of ``max_new_tokens``; ConstraintError if even the shortest does not fit."""
        if max_new_tokens < self.minimum_tokens:
            raise ConstraintError(
                f"max_new_tokens={max_new_tokens} is below the {self.minimum_tokens} tokens of the shortest reply "
                "this grammar allows; raise it, or ask for less in the schema."
            )
        return GrammarCursor(self, self._matcher.deep_copy(), max_new_tokens, self.start)


class GrammarCursor:
    """One position of one reply (Constraint)."""

    __slots__ = ("_bound", "_mask", "_matcher", "_witness", "done", "plan", "remaining", "scan", "text")

    def __init__(self, plan: GrammarPlan, matcher: Any, remaining: int, witness: tuple[int, ...] | None) -> None:
        self.plan = plan
        self.text = b""
        self.scan = JsonState()
        self.remaining = remaining
        self.done = False
        self._matcher = matcher
        self._witness = witness
        self._bound = len(witness) if witness is not None else 0
        self._mask: TokenMask | None = None
        if plan.seed:
            self.scan = self._scanned(plan.seed)

    @property
    def grammar(self) -> Self:
        """This cursor; wrappers answer with the grammar inside them."""
        return self

    @property
    def state(self) -> str:
        """Name of the JSON state, "TEXT" for grammars that are not JSON (G1)."""
        return self.scan.name if self.plan.is_json else "TEXT"

    @property
    def pointer(self) -> str:
        """JSON pointer of the value being written."""
        return self.scan.pointer

    @property
    def held_back(self) -> int:
        return 0

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is a whole reply."""
        return self.done or bool(self._matcher.is_accepting())

    def veto(self, token: int) -> Veto | None:
        return None

    def fork(self) -> GrammarCursor:
        copy = GrammarCursor.__new__(GrammarCursor)
        copy.plan, copy.text, copy.scan = self.plan, self.text, self.scan
        copy.remaining, copy.done = self.remaining, self.done
        copy._matcher = self._matcher.deep_copy()
        copy._witness, copy._bound, copy._mask = self._witness, self._bound, self._mask
        return copy

    def advance(self, token: int) -> None:
        if self.done:
            raise ConstraintError(f"Token {token} comes after the end of the reply; it has to be cut.")
        if not self.mask().allows(token):
            raise ConstraintError(f"Token {token} ({self._spell(token)!r}) is not legal after {self.text[-40:]!r}.")
        self._move(token)

    def _spell(self, token: int) -> bytes:
        return self.plan.vocabulary.spelling[token] if 0 <= token < self.plan.vocabulary.size else b""

    def _move(self, token: int) -> None:
        free = self._in_free_string()
        self._mask = None
        self.remaining -= 1
        if token in self.plan.vocabulary.eos_ids and self._matcher.is_accepting():
            self.done = True
            return
        self._matcher.consume_token(token)
        spelled = self._spell(token)
        self.text += spelled
        if token not in self.plan.vocabulary.controls:
            self.scan = self._scanned(spelled)
        self._follow(token, free and self.scan.name == STRING)

    def _in_free_string(self) -> bool:
        """Whether this is a string that takes almost any text, so that plain text never changes how to close."""
        return self.scan.name == STRING and self._is_free(self.mask())

    def _is_free(self, mask: TokenMask) -> bool:
        vocabulary = self.plan.vocabulary
        if self.scan.name != STRING or not self.plan.free_strings:
            return False
        return _count(mask.words & vocabulary.inside_string) * 5 > vocabulary.plain_count

    def _scanned(self, data: bytes) -> JsonState:
        state = self.scan
        if not self.plan.wrapped:
            return state.feed(data)
        while data:
            if state.name in (START, END) and not (state.name == START and state.frame):
                begin = min((at for at in (data.find(b"{"), data.find(b"[")) if at >= 0), default=-1)
                if begin < 0:
                    return state
                data, state = data[begin:], JsonState()
            state, data = _feed_until_end(state, data)
        return state

    def _follow(self, token: int, free: bool) -> None:
        """Keep the witness, or its bound, in step; a pure function of the tokens taken."""
        witness = self._witness
        if witness and witness[0] == token:
            self._witness, self._bound = witness[1:], len(witness) - 1
        elif not self._stays_open(token, free):
            self._witness = None
            self._bound += self.plan.growth
        if self._witness is None and self.remaining < self._bound + self.plan.growth:
            self._witness = self._complete(self._matcher, self.text)
            if self._witness is not None:
                self._bound = len(self._witness)

    def _stays_open(self, token: int, free: bool) -> bool:
        """Whether ``token`` was plain text after which the string closes as it would have before it."""
        plan, witness = self.plan, self._witness
        if witness is not None and not (witness and self._spell(witness[0]).startswith(b'"')):
            return False
        return free and TokenMask(plan.vocabulary.inside_string, plan.vocabulary.size).allows(token)

    def _complete(self, matcher: Any, text: bytes) -> tuple[int, ...] | None:
        plan = self.plan
        return completion(plan.vocabulary, plan.shape, text, matcher, plan.mask_of, max(self.remaining, 0) + 64)

    @property
    def witness(self) -> tuple[int, ...]:
        """A short completion from here, as tokens."""
        found = self._witness if self._witness is not None else self._complete(self._matcher, self.text)
        return found or ()

    def mask(self) -> TokenMask:
        if self._mask is None:
            self._mask = self._compute_mask()
        return self._mask

    def _compute_mask(self) -> TokenMask:
        vocabulary = self.plan.vocabulary
        if self.done or self._matcher.is_stopped():
            return TokenMask.of(vocabulary.eos_ids[:1], vocabulary.size)
        mask = self._capped(self.plan.mask_of(self._matcher))
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
        legal = [t for t in vocabulary.eos_ids if mask.allows(t)] if self._matcher.is_accepting() else []
        legal += witness[:1]
        if self.remaining <= len(witness):
            return TokenMask.of(legal, vocabulary.size)
        words = TokenMask.of(legal, vocabulary.size).words
        tried = mask.tokens()
        if self._is_free(mask):
            words = words | (mask.words & vocabulary.inside_string)
            tried = tried[~TokenMask(vocabulary.inside_string, vocabulary.size).bools()[tried]]
        if len(tried) > _CANDIDATES:
            tried = np.intersect1d(tried, vocabulary.single_ascii)
        return TokenMask(
            words | TokenMask.of(self._fitting(tried.tolist(), legal), vocabulary.size).words, vocabulary.size
        )

    def _fitting(self, tokens: Sequence[int], known: Sequence[int]) -> list[int]:
        """Those after which a completion of the remaining length exists; at most a few need a walk."""
        fitting, walks = [], _WALKED_TOKENS // (len(self._witness or ()) + 8)
        for token in tokens:
            if token in known or token in self.plan.vocabulary.eos_ids:
                continue
            text = self.text + self._spell(token)
            if self._surely_fits(text):
                fitting.append(token)
                continue
            if walks <= 0:
                continue
            walks -= 1
            after = self._matcher.deep_copy()
            found = self._complete(after, text) if after.consume_token(token) else None
            if found is not None and len(found) <= self.remaining - 1:
                fitting.append(token)
        return fitting

    def _surely_fits(self, text: bytes) -> bool:
        """Whether the shape's own way to finish is short enough even if it is spelled badly."""
        plan = self.plan
        tail = plan.tail(text)
        return tail is not None and len(plan.vocabulary.tokenize(tail)) + _SPELLING_SLACK < self.remaining

    def after_bytes(self, data: bytes) -> GrammarCursor | None:
        """This cursor past ``data`` that was written before the grammar began; None if it is not legal."""
        if data:
            tokens = self.plan.vocabulary.tokenize(data)
            if self._matcher.try_consume_tokens(tokens) < len(tokens):
                return None
            self.text, self.scan, self._mask = self.text + data, self._scanned(data), None
            self._witness = self._complete(self._matcher, self.text)
            if self._witness is None or len(self._witness) > self.remaining:
                return None
            self._bound = len(self._witness)
        return self

    def forced_run(self, limit: int) -> list[int]:
        run: list[int] = []
        here = self
        while len(run) < limit:
            single = here.mask().single() if not here.done else None
            if single is None:
                break
            if here is self:
                here = self.fork()
            run.append(single)
            here._move(single)
        return run


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
