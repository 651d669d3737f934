"""A reasoning section before an answer in a form: the section is free, and is closed before the form begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from mmspec_agent.core.constraint import Constraint, ConstraintPlan, TokenMask, Veto
from mmspec_agent.core.errors import ConstraintError

from .auto import everything
from .constraint import GrammarCursor
from .forced import forced_steps
from .sections import Section
from .vocabulary import Vocabulary

REASONING: Final = "REASONING"
_MOST_GAP: Final = 4
"""Bytes of white space between the section and the answer, at most."""

_START, _INSIDE, _GAP, _ANSWER = range(4)


@dataclass(frozen=True)
class ReasonedPlan:
    """An optional reasoning section, then ``answer`` (ConstraintPlan).

    ``is_open``: the prompt has opened the section, so that the reply begins inside it; otherwise the reply may
    open one. An answer that has to be there is kept room for: the section is closed in time.
    """

    vocabulary: Vocabulary
    answer: ConstraintPlan
    section: Section
    is_open: bool = False

    @property
    def sections(self) -> tuple[ConstraintPlan, ...]:
        """What takes over behind the section."""
        return (self.answer,)

    @property
    def unenforced(self) -> tuple[tuple[str, str], ...]:
        """What the answer's grammar leaves to a later check."""
        return tuple(getattr(self.answer, "unenforced", ()))

    @cached_property
    def closing(self) -> tuple[int, ...]:
        """Tokens that end the section."""
        control = self.vocabulary.control(self.section.closer)
        return (control,) if control is not None else tuple(self.vocabulary.tokenize(self.section.closer))

    @property
    def minimum_tokens(self) -> int:
        return self.answer.minimum_tokens + (len(self.closing) if self.is_open and self.answer.minimum_tokens else 0)

    @cached_property
    def ending(self) -> tuple[tuple[int, ...], ...]:
        """Per overlap k the ids that complete a closer of which k bytes are written, with more than space behind."""
        closer, spelling = self.section.closer.encode(), self.vocabulary.spelling
        whole = tuple(i for i, s in enumerate(spelling) if closer in s and s.partition(closer)[2].strip())
        parts = [
            tuple(i for i, s in enumerate(spelling) if s.startswith(closer[k:]) and s[len(closer) - k :].strip())
            for k in range(1, len(closer))
        ]
        return (whole, *parts)

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """Ids that begin the section from its start: its control id, or plain ids that spell a part of its opener."""
        opener = self.section.opener.encode()
        return tuple(i for i, s in enumerate(self.vocabulary.spelling) if s and _continues(b"", s, opener))

    @cached_property
    def spaces(self) -> tuple[int, ...]:
        """Ids of white space that may stand between section and answer."""
        spelled = enumerate(self.vocabulary.spelling)
        return tuple(i for i, s in spelled if s and len(s) <= _MOST_GAP and not s.strip(b" \n\r\t"))

    def open(self, max_new_tokens: int) -> ReasonedCursor:
        if max_new_tokens < self.minimum_tokens:
            why = (
                f": the prompt ends inside a reasoning section, which {self.section.closer!r} has to close first. "
                "Raise it, or switch reasoning off by an option of the chat template (chat_template_kwargs)."
                if self.is_open
                else "; raise it, or ask for less."
            )
            shortest = f"the {self.minimum_tokens} tokens of the shortest reply"
            raise ConstraintError(f"max_new_tokens={max_new_tokens} is below {shortest}{why}")
        return ReasonedCursor(self, max_new_tokens)


def _continues(written: bytes, more: bytes, opener: bytes) -> bool:
    """Whether ``written + more`` is a part of the opener, or the opener with white space behind it."""
    text = written + more
    return opener.startswith(text) or (text.startswith(opener) and not text[len(opener) :].strip())


class ReasonedCursor:
    """A position in the section, or in the answer behind it (Constraint)."""

    __slots__ = ("_answer", "_closing", "_mask", "_opening", "_phase", "_tail", "done", "plan", "remaining")

    def __init__(self, plan: ReasonedPlan, remaining: int) -> None:
        self.plan = plan
        self.remaining = remaining
        self.done = False
        self._phase = _INSIDE if plan.is_open else _START
        self._answer: Constraint | None = None if plan.is_open else plan.answer.open(remaining)
        self._opening: bytes | None = b""
        self._tail = b""
        self._closing: tuple[int, ...] = ()
        self._mask: tuple[TokenMask | None] | None = None

    @property
    def grammar(self) -> GrammarCursor | None:
        """The answer's cursor once it has begun."""
        return None if self._answer is None or self._phase == _INSIDE else getattr(self._answer, "grammar", None)

    @property
    def state(self) -> str:
        return REASONING if self._answer is None or self._phase == _INSIDE else self._answer.state

    @property
    def witness(self) -> tuple[int, ...]:
        """A short way to the end from here."""
        if self._answer is not None and self._phase != _INSIDE:
            return tuple(getattr(self._answer, "witness", ()))
        closing = self._closing or self.plan.closing
        if len(closing) > 1 and (overlap := self._overlap()):
            return tuple(self.plan.vocabulary.tokenize(self.plan.section.closer.encode()[overlap:]))
        return closing

    @property
    def held_back(self) -> int:
        return 0 if self._answer is None else self._answer.held_back

    def veto(self, token: int) -> Veto | None:
        return None if self._answer is None else self._answer.veto(token)

    def fork(self) -> ReasonedCursor:
        copy = ReasonedCursor.__new__(ReasonedCursor)
        for name in ReasonedCursor.__slots__:
            setattr(copy, name, getattr(self, name))
        if self._answer is not None:
            copy._answer = self._answer.fork()
        return copy

    def advance(self, token: int) -> None:
        if self.done:
            raise ConstraintError(f"Token {token} comes after the end of the reply; it has to be cut.")
        mask = self.mask()
        if mask is not None and not mask.allows(token):
            raise ConstraintError(f"Token {token} is not legal here.")
        self._mask = None
        self.remaining -= 1
        spelled = self.plan.vocabulary.spelling[token] if token < self.plan.vocabulary.size else b""
        if self._phase == _START:
            self._at_start(token, spelled)
        elif self._phase == _INSIDE:
            self._inside(token, spelled)
        else:
            self._behind(token, spelled)
        if token in self.plan.vocabulary.eos_ids:
            self.done = True

    def _at_start(self, token: int, spelled: bytes) -> None:
        opener = self.plan.section.opener.encode()
        written = self._opening
        opens = written is not None and self._may_open() and _continues(written.lstrip(), spelled, opener)
        if self._answer is not None and _allows(self._answer.mask(), token):
            self._answer.advance(token)
        else:
            self._answer = None
        if not opens or written is None:
            blank = written is not None and not (written + spelled).strip()
            self._opening = written if blank and self._answer is not None else None
            self._phase = _START if self._opening is not None else _ANSWER
            return
        self._opening = written.lstrip() + spelled
        if self._opening.startswith(opener):
            self._phase, self._answer, self._opening = _INSIDE, None, None

    def _inside(self, token: int, spelled: bytes) -> None:
        if self._closing:
            self._closing = self._closing[1:]
        closer = self.plan.section.closer.encode()
        self._tail += spelled
        found = self._tail.find(closer)
        if found >= 0:
            self._answer = self.plan.answer.open(self.remaining)
            self._phase, self._tail = _GAP, self._tail[found + len(closer) :]
        else:
            self._tail = self._tail[-len(closer) :]

    def _behind(self, token: int, spelled: bytes) -> None:
        assert self._answer is not None
        if self._phase == _GAP and not _allows(self._answer.mask(), token):
            self._tail += spelled
            self._answer = self.plan.answer.open(self.remaining)
            return
        self._phase = _ANSWER
        self._answer.advance(token)

    def mask(self) -> TokenMask | None:
        if self._mask is None:
            self._mask = (self._inside_mask() if self._phase == _INSIDE else self._outside_mask(),)
        return self._mask[0]

    def _outside_mask(self) -> TokenMask | None:
        answer = None if self._answer is None else self._answer.mask()
        size = self.plan.vocabulary.size
        if self._answer is not None and answer is None:
            return None
        more: Sequence[int] = ()
        if self._phase == _START and self._opening is not None and self._may_open():
            more = self._openings(self._opening.lstrip())
        elif self._phase == _GAP and self.remaining > self.plan.answer.minimum_tokens + 1:
            room = _MOST_GAP - len(self._tail)
            more = [t for t in self.plan.spaces if len(self.plan.vocabulary.spelling[t]) <= room]
        extra = TokenMask.of(more, size)
        return extra if answer is None else TokenMask(answer.words | extra.words, size) if more else answer

    def _openings(self, written: bytes) -> Sequence[int]:
        if not written:
            return self.plan.opening
        opener, spelling = self.plan.section.opener.encode(), self.plan.vocabulary.spelling
        return [i for i, s in enumerate(spelling) if s and _continues(written, s, opener)]

    def _may_open(self) -> bool:
        """Whether there is room to open the section, close it again, and answer."""
        opener = len(self.plan.section.opener.encode()) - len((self._opening or b"").lstrip())
        return self.remaining > opener + len(self.plan.closing) + self.plan.answer.minimum_tokens + 2

    def _inside_mask(self) -> TokenMask | None:
        plan, size = self.plan, self.plan.vocabulary.size
        if plan.answer.minimum_tokens:
            if not self._closing and self.remaining <= len(plan.closing) + plan.answer.minimum_tokens + 1:
                self._closing = plan.closing
            if self._closing:
                return TokenMask.of(self._closing[:1], size)
        banned = list(plan.vocabulary.eos_ids) if plan.answer.minimum_tokens else []
        overlap = self._overlap()
        banned += plan.ending[0] if not overlap else (*plan.ending[0], *plan.ending[overlap])
        return TokenMask(everything(size) & ~TokenMask.of(banned, size).words, size) if banned else None

    def _overlap(self) -> int:
        closer = self.plan.section.closer.encode()
        lengths = range(min(len(closer) - 1, len(self._tail)), 0, -1)
        return next((k for k in lengths if self._tail.endswith(closer[:k])), 0)

    def forced_run(self, limit: int) -> list[int]:
        return forced_steps(
            self, limit, lambda here: here._answer if here._phase == _ANSWER else None, lambda here, _: here.done
        )


def _allows(mask: TokenMask | None, token: int) -> bool:
    return mask is None or mask.allows(token)
