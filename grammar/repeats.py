"""No call twice in one reply: the reply ends behind a call that repeats an earlier one of it."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mmspec_agent.core.constraint import Constraint, ConstraintPlan, TokenMask, Veto

from .forced import forced_steps
from .reading import CallReader, ToolCall, read_reply
from .vocabulary import Vocabulary

_MOST_KNOWN: Final = 256


def call_key(name: str, arguments: Any) -> str:
    """What two calls have in common that are the same: the name, and the arguments as JSON values."""
    return json.dumps([name, arguments], sort_keys=True, ensure_ascii=False)


def without_repeats(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls without those that repeat an earlier one."""
    first: dict[str, ToolCall] = {}
    for call in calls:
        first.setdefault(call_key(call.name, call.arguments), call)
    return tuple(first.values())


@dataclass(frozen=True)
class UnrepeatedPlan:
    """``calls``, of which behind a repeated call nothing but the end of the reply is legal (ConstraintPlan)."""

    vocabulary: Vocabulary
    calls: ConstraintPlan
    reader: Callable[[], CallReader]
    _known: OrderedDict[bytes, bool] = field(default_factory=OrderedDict, compare=False)

    @property
    def sections(self) -> tuple[ConstraintPlan, ...]:
        """What has to be satisfiable by itself."""
        return tuple(getattr(self.calls, "sections", (self.calls,)))

    @property
    def unenforced(self) -> tuple[tuple[str, str], ...]:
        """What the calls' grammar leaves to a later check."""
        return tuple(getattr(self.calls, "unenforced", ()))

    @property
    def minimum_tokens(self) -> int:
        return self.calls.minimum_tokens

    def open(self, max_new_tokens: int) -> UnrepeatedCursor:
        return UnrepeatedCursor(self, self.calls.open(max_new_tokens))

    def repeats(self, text: bytes) -> bool:
        """Whether the last whole call in ``text`` is one that came before it."""
        known = self._known.get(text)
        if known is None:
            calls = read_reply(self.reader(), text.decode("utf-8", "replace")).calls
            known = self._known[text] = len(without_repeats(calls)) < len(calls)
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return known


class UnrepeatedCursor:
    """A position in a reply of different calls (Constraint)."""

    __slots__ = ("_ends", "inner", "plan", "text")

    def __init__(self, plan: UnrepeatedPlan, inner: Constraint) -> None:
        self.plan = plan
        self.inner = inner
        self.text = b""
        self._ends = False

    @property
    def grammar(self) -> Any:
        """The grammar inside, if there is one."""
        return getattr(self.inner, "grammar", None)

    @property
    def witness(self) -> tuple[int, ...]:
        """A short completion from here."""
        return tuple(getattr(self.inner, "witness", ()))

    @property
    def state(self) -> str:
        return self.inner.state

    @property
    def held_back(self) -> int:
        return self.inner.held_back

    def veto(self, token: int) -> Veto | None:
        return self.inner.veto(token)

    def fork(self) -> UnrepeatedCursor:
        copy = UnrepeatedCursor(self.plan, self.inner.fork())
        copy.text, copy._ends = self.text, self._ends
        return copy

    def advance(self, token: int) -> None:
        self.inner.advance(token)
        if token in self.plan.vocabulary.eos_ids:
            return
        spelled = self.plan.vocabulary.spelling[token]
        self.text += spelled
        # A call ends with its object, so that only a closing brace can complete a repeated one.
        self._ends = self._ends or (b"}" in spelled and self.plan.repeats(self.text))

    def mask(self) -> TokenMask | None:
        mask = self.inner.mask()
        if not self._ends or self.grammar is None:
            return mask
        vocabulary = self.plan.vocabulary
        if mask is not None and (ends := [end for end in vocabulary.eos_ids if mask.allows(end)]):
            return TokenMask.of(ends, vocabulary.size)
        return TokenMask.of(self.grammar.witness[:1], vocabulary.size)

    def forced_run(self, limit: int) -> list[int]:
        ends = self.plan.vocabulary.eos_ids
        return forced_steps(self, limit, lambda _: None, lambda _, run: bool(run) and run[-1] in ends)
