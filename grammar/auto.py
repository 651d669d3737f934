"""Free text that may turn into a tool call: the grammar starts where the sampled opener completes (SYSTEM.md G4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from mmspec_agent.core.constraint import TokenMask, Veto, Words
from mmspec_agent.core.errors import ConstraintError

from .constraint import GrammarCursor, GrammarPlan
from .forced import forced_steps
from .vocabulary import Vocabulary

TEXT: Final = "TEXT"


@dataclass(frozen=True)
class AutoPlan:
    """Free text, then ``calls`` once ``trigger`` has been written (ConstraintPlan).

    The call is never begun so late that it could not end.
    """

    vocabulary: Vocabulary
    calls: GrammarPlan
    trigger: bytes

    @property
    def sections(self) -> tuple[GrammarPlan, ...]:
        """What takes over once the trigger is written."""
        return (self.calls,)

    @property
    def unenforced(self) -> tuple[tuple[str, str], ...]:
        """What the calls' grammar leaves to a later check."""
        return self.calls.unenforced

    @property
    def minimum_tokens(self) -> int:
        return 0

    @cached_property
    def finishing(self) -> tuple[tuple[int, ...], ...]:
        """Per overlap k the ids that complete a trigger of which k bytes are written (k = 0: contain all of it)."""
        trigger, spelling = self.trigger, self.vocabulary.spelling
        whole = tuple(i for i, s in enumerate(spelling) if trigger in s)
        parts = [tuple(i for i, s in enumerate(spelling) if s.startswith(trigger[k:])) for k in range(1, len(trigger))]
        return (whole, *parts)

    def open(self, max_new_tokens: int) -> AutoCursor:
        return AutoCursor(self, max_new_tokens)


class AutoCursor:
    """A position in free text, or in the call that began in it (Constraint)."""

    __slots__ = ("_inner", "_mask", "done", "plan", "remaining", "text")

    def __init__(self, plan: AutoPlan, remaining: int) -> None:
        self.plan = plan
        self.remaining = remaining
        self.text = b""
        self.done = False
        self._inner: GrammarCursor | None = None
        self._mask: tuple[TokenMask | None] | None = None

    @property
    def grammar(self) -> GrammarCursor | None:
        """The call's cursor once it has begun."""
        return self._inner

    @property
    def state(self) -> str:
        return TEXT if self._inner is None else self._inner.state

    @property
    def held_back(self) -> int:
        return self._overlap if self._inner is None else 0

    @property
    def is_complete(self) -> bool:
        """Whether the reply may end here."""
        return self._inner is None or self._inner.is_complete

    def veto(self, token: int) -> Veto | None:
        return None

    def fork(self) -> AutoCursor:
        copy = AutoCursor.__new__(AutoCursor)
        for name in AutoCursor.__slots__:
            setattr(copy, name, getattr(self, name))
        if self._inner is not None:
            copy._inner = self._inner.fork()
        return copy

    @property
    def _overlap(self) -> int:
        trigger = self.plan.trigger
        for k in range(min(len(trigger) - 1, len(self.text)), 0, -1):
            if self.text.endswith(trigger[:k]):
                return k
        return 0

    def advance(self, token: int) -> None:
        if self.done:
            raise ConstraintError(f"Token {token} comes after the end of the reply; it has to be cut.")
        if self._inner is not None:
            self._inner.advance(token)
            self.done = self._inner.done
            return
        mask = self.mask()
        if mask is not None and not mask.allows(token):
            raise ConstraintError(f"Token {token} is not legal after {self.text[-40:]!r}.")
        self._mask = None
        self.remaining -= 1
        if token in self.plan.vocabulary.eos_ids:
            self.done = True
            return
        before = len(self.text)
        self.text += self.plan.vocabulary.spelling[token]
        self._watch(before)

    def _watch(self, before: int) -> None:
        plan = self.plan
        found = self.text.find(plan.trigger, max(0, before - len(plan.trigger)))
        if found >= 0:
            self._inner = self._begun(self.text[found + len(plan.trigger) :], self.remaining)

    def _begun(self, overrun: bytes, remaining: int) -> GrammarCursor | None:
        """The call's cursor after bytes that came in the same token as the trigger's end."""
        calls = self.plan.calls
        if remaining < calls.minimum_tokens:
            return None
        return calls.open(remaining).after_bytes(overrun)

    def mask(self) -> TokenMask | None:
        if self._inner is not None:
            return self._inner.mask()
        if self._mask is None:
            self._mask = (self._text_mask(),)
        return self._mask[0]

    def _text_mask(self) -> TokenMask | None:
        plan, size = self.plan, self.plan.vocabulary.size
        if self.done:
            return TokenMask.of(plan.vocabulary.eos_ids[:1], size)
        banned = [t for t in self._completing() if not self._may_begin(t)]
        return TokenMask(everything(size) & ~TokenMask.of(banned, size).words, size) if banned else None

    def _completing(self) -> Sequence[int]:
        finishing, overlap = self.plan.finishing, self._overlap
        return finishing[0] if not overlap else (*finishing[0], *finishing[overlap])

    def _may_begin(self, token: int) -> bool:
        text = self.text[-len(self.plan.trigger) :] + self.plan.vocabulary.spelling[token]
        found = text.find(self.plan.trigger)
        return found < 0 or self._begun(text[found + len(self.plan.trigger) :], self.remaining - 1) is not None

    def forced_run(self, limit: int) -> list[int]:
        return forced_steps(self, limit, lambda here: here._inner, lambda here, _: here.done)


def everything(size: int) -> Words:
    """The words of a mask that allows all of ``size`` tokens."""
    words = np.full((size + 31) // 32, 0xFFFFFFFF, dtype=np.uint32)
    if size % 32:
        words[-1] = np.uint32((1 << (size % 32)) - 1)
    return words


def cursor_of(constraint: Any) -> GrammarCursor | None:
    """The grammar inside a constraint, whatever wraps it; None in free text or without one."""
    found = getattr(constraint, "grammar", None)
    return found if isinstance(found, GrammarCursor) else None
