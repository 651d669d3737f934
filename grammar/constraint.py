"""The grammar as a constraint: a cursor over llguidance whose mask always leaves a way to the end.

The mask is one object in every arm of a comparison: llguidance's mask ∩ digit cap ∩ no control ids
∩ closing budget. llguidance turns canonically forced text into a single-token mask, which Rule A skips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from llguidance import LLMatcher

from mmspec_agent.core.constraint import TokenMask, Veto, Words
from mmspec_agent.core.errors import ConstraintError, SchemaError

from .growth import growth
from .machine import JsonState
from .position import Position
from .regex import TooIntricate
from .shape import FAILED, Node, Reading
from .vocabulary import Vocabulary
from .witness import completion

_MOST_READINGS: Final = 1024
_ENDLESS: Final = 1 << 20


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
        vocabulary.warm_up()  # once a vocabulary, so no reply pays for it
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
        """Most tokens that one token adds to the shortest completion of one way to read the text."""
        return growth(self.vocabulary, self.shape)

    def reading(self, text: bytes) -> Reading:
        """How ``text`` may be completed, as the shape knows it."""
        known = self._readings.get(text)
        if known is None:
            if len(self._readings) >= _MOST_READINGS:
                self._readings.clear()
            try:
                known = FAILED if self.shape is None else self.shape.read(text, 0)
            except TooIntricate:  # no way to the end was found within the bound on work
                known = FAILED
            self._readings[text] = known
        return known

    def tail(self, text: bytes) -> bytes | None:
        """A short suffix that completes ``text``, as the shape knows it; None where it knows none."""
        return self.reading(text).tail

    @cached_property
    def _readings(self) -> dict[bytes, Reading]:
        return {}

    @cached_property
    def allowed(self) -> Words:
        """Everything but control ids the grammar does not name."""
        return self.vocabulary.not_control | TokenMask.of(self.controls, self.vocabulary.size).words

    def mask_of(self, matcher: Any) -> TokenMask:
        """llguidance's mask without control ids."""
        words = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint32)
        return TokenMask(words[: len(self.allowed)] & self.allowed, self.vocabulary.size)

    def accepts(self, text: bytes) -> bool:
        """Whether ``text`` is a whole reply."""
        at = Position.first(self, self._matcher.deep_copy(), _ENDLESS, self.start).past(text)
        return at is not None and (at.is_done or bool(at.matcher.is_accepting()))

    def open(self, max_new_tokens: int) -> GrammarCursor:
        """A cursor for a reply of ``max_new_tokens``; ConstraintError if even the shortest does not fit."""
        if max_new_tokens < self.minimum_tokens:
            raise ConstraintError(
                f"max_new_tokens={max_new_tokens} is below the {self.minimum_tokens} tokens of the shortest reply "
                "this grammar allows; raise it, or ask for less in the schema."
            )
        return GrammarCursor(Position.first(self, self._matcher.deep_copy(), max_new_tokens, self.start))


class GrammarCursor:
    """A place in one reply (Constraint): forks share all that is known about the positions they pass."""

    __slots__ = ("_at",)

    def __init__(self, at: Position) -> None:
        self._at = at

    @property
    def grammar(self) -> Self:
        """This cursor; wrappers answer with the grammar inside them."""
        return self

    @property
    def plan(self) -> GrammarPlan:
        """What this is a cursor of."""
        return self._at.plan

    @property
    def text(self) -> bytes:
        """All that was written."""
        return self._at.text

    @property
    def scan(self) -> JsonState:
        """Where in the JSON text this is."""
        return self._at.scan

    @property
    def remaining(self) -> int:
        """Tokens the reply may still have."""
        return self._at.remaining

    @property
    def done(self) -> bool:
        """Whether the reply has ended."""
        return self._at.is_done

    @property
    def state(self) -> str:
        """Name of the JSON state, "TEXT" for grammars that are not JSON (G1)."""
        return self._at.scan.name if self._at.plan.is_json else "TEXT"

    @property
    def pointer(self) -> str:
        """JSON pointer of the value being written."""
        return self._at.scan.pointer

    @property
    def held_back(self) -> int:
        return 0

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is a whole reply."""
        return self._at.is_done or bool(self._at.matcher.is_accepting())

    @property
    def witness(self) -> tuple[int, ...]:
        """A short completion from here, as tokens."""
        return self._at.witness

    def veto(self, token: int) -> Veto | None:
        return None

    def fork(self) -> GrammarCursor:
        return GrammarCursor(self._at)

    def advance(self, token: int) -> None:
        if self._at.is_done:
            raise ConstraintError(f"Token {token} comes after the end of the reply; it has to be cut.")
        if not self._at.mask.allows(token):
            vocabulary = self._at.plan.vocabulary
            spelled = vocabulary.spelling[token] if 0 <= token < vocabulary.size else b""
            raise ConstraintError(f"Token {token} ({spelled!r}) is not legal after {self._at.text[-40:]!r}.")
        self._at = self._at.after(token)

    def mask(self) -> TokenMask:
        return self._at.mask

    def after_bytes(self, data: bytes) -> GrammarCursor | None:
        """A cursor past ``data`` that was written before the grammar began; None if it is not legal."""
        after = self._at.past(data) if data else self._at
        return None if after is None else GrammarCursor(after)

    def forced_run(self, limit: int) -> list[int]:
        return self._at.forced(limit)
