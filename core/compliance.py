"""Phrases that are never emitted, however they are tokenised (SYSTEM.md C12).

One matcher works on decoded text, for target and drafts alike. In free text the drawn token that would complete
a phrase is replaced by the refusal and the reply ends; where a grammar rules, such a token is masked instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

from .constraint import Constraint, ConstraintPlan, TokenMask, Veto
from .errors import ConstraintConflict, ConstraintError, OptionError
from .phrases import PhraseMatcher, Speller, fold, folded_characters, open_bytes

_FEW: Final = 48
_AHEAD: Final = 48
_TRIES: Final = 60
FREE_STATES: Final = frozenset({"TEXT", "REASONING"})


@dataclass(frozen=True)
class ComplianceProcessor:
    """Bans ``phrases``; ``refusal`` is what the reply ends with when one was about to be written."""

    phrases: Sequence[str]
    refusal: str = "I'm sorry, but I can't help with that."

    @cached_property
    def matcher(self) -> PhraseMatcher:
        """The matcher shared by all replies."""
        return PhraseMatcher.of(self.phrases)

    def check(self) -> None:
        """Raise OptionError if the list is unusable or the refusal itself holds a banned phrase."""
        hit = self.matcher.find(" ", fold(self.refusal) + " ")
        if hit is not None:
            raise OptionError(f"The refusal holds the banned phrase {hit!r}; write another refusal.")

    def plan(self, tokenizer: Any, inner: ConstraintPlan | None = None, eos_ids: Sequence[int] = ()) -> CompliancePlan:
        """The constraint of one request around ``inner``; raises OptionError and ConstraintError."""
        self.check()
        ids = tuple(eos_ids) or ((tokenizer.eos_token_id,) if tokenizer.eos_token_id is not None else ())
        refusal = tuple(tokenizer.encode(self.refusal, add_special_tokens=False))
        plan = CompliancePlan(self.matcher, Speller.of(tokenizer), refusal, fold(self.refusal), ids, inner)
        plan.check()
        return plan


@dataclass(frozen=True)
class CompliancePlan:
    """Compliance around another plan, or alone (ConstraintPlan)."""

    matcher: PhraseMatcher
    speller: Speller
    refusal: tuple[int, ...]
    refusal_text: str
    eos_ids: tuple[int, ...]
    inner: ConstraintPlan | None = None

    @cached_property
    def whole(self) -> tuple[int, ...]:
        """Ids that spell a phrase completely."""
        find = self.matcher.find
        return tuple(token for text, token in self.speller.folded[0] if find("", text) is not None)

    @property
    def minimum_tokens(self) -> int:
        return 0 if self.inner is None else self.inner.minimum_tokens

    def check(self) -> None:
        """Raise ConstraintError if the inner constraint, or one that takes over inside it, forces a banned phrase."""
        if self.inner is None:
            return
        for section in getattr(self.inner, "sections", ()):
            replace(self, inner=section).check()
        first: str | None = None
        todo = [self.open(self.inner.minimum_tokens + 4096)]
        for _ in range(_TRIES):
            if not todo:
                break
            here = todo.pop()
            try:
                mask = here.mask()
            except ConstraintConflict as error:
                first = first or str(error)
                continue
            if mask is None or any(mask.allows(end) for end in self.eos_ids):
                return
            todo += here.ways(mask)
        raise ConstraintError(f"The schema forces a banned phrase: {first or 'no reply without one was found'}")

    def open(self, max_new_tokens: int) -> ComplianceCursor:
        inner = None if self.inner is None else self.inner.open(max_new_tokens)
        return ComplianceCursor(self, inner)


class ComplianceCursor:
    """One position of one reply under compliance (Constraint)."""

    __slots__ = ("_blank", "_half", "_mask", "_raw_lengths", "_tail", "inner", "plan")

    def __init__(self, plan: CompliancePlan, inner: Constraint | None) -> None:
        self.plan = plan
        self.inner = inner
        self._tail = ""
        self._raw_lengths: tuple[int, ...] = ()
        self._half = b""
        self._blank = " "
        self._mask: tuple[TokenMask | None] | None = None

    @property
    def grammar(self) -> Any:
        """The grammar inside, if there is one."""
        return getattr(self.inner, "grammar", None)

    @property
    def state(self) -> str:
        return "TEXT" if self.inner is None else self.inner.state

    @property
    def _is_free(self) -> bool:
        return self.inner is None or self.state in FREE_STATES

    @property
    def held_back(self) -> int:
        """Raw characters at the end that may still become a phrase, or that the inner constraint holds back."""
        own = 0
        if self._is_free:
            count = self.plan.matcher.open_length(self._tail)
            own = sum(self._raw_lengths[len(self._raw_lengths) - count :]) if count else 0
        return max(own, 0 if self.inner is None else self.inner.held_back)

    def fork(self) -> Self:
        copy = type(self).__new__(type(self))
        for name in ComplianceCursor.__slots__:
            setattr(copy, name, getattr(self, name))
        copy.inner = None if self.inner is None else self.inner.fork()
        return copy

    def _decoded(self, token: int) -> tuple[str, bytes]:
        """Whole characters that ``token`` completes, and the bytes of one that it leaves open."""
        spelling = self.plan.speller.spelling
        data = self._half + (spelling[token] if 0 <= token < len(spelling) else b"")
        half = open_bytes(data)
        return data[: len(data) - half].decode("utf-8", "replace"), data[len(data) - half :]

    def _completes(self, token: int) -> str | None:
        if token in self.plan.eos_ids:
            return None
        text, _ = self._decoded(token)
        return self.plan.matcher.find(
            self._tail, "".join(c for c, _ in folded_characters(text, self._tail[-1:] or self._blank))
        )

    def advance(self, token: int) -> None:
        if not self._is_free:
            hit = self._completes(token)
            if hit is not None:
                raise ConstraintError(f"Token {token} would complete the banned phrase {hit!r}.")
        if self.inner is not None:
            self.inner.advance(token)
        self._mask = None
        if token in self.plan.eos_ids:
            return
        text, self._half = self._decoded(token)
        folded = folded_characters(text, self._tail[-1:] or self._blank)
        # Raw characters per folded one: streaming holds back what the reader would see.
        starts = [index for _, index in folded]
        lengths = (
            [after - before for before, after in zip(starts, [*starts[1:], len(text)], strict=True)] if folded else []
        )
        keep = max(self.plan.matcher.longest, 1)
        self._tail = (self._tail + "".join(c for c, _ in folded))[-keep:]
        self._raw_lengths = (*self._raw_lengths, *lengths)[-keep:]

    def veto(self, token: int) -> Veto | None:
        inner = None if self.inner is None else self.inner.veto(token)
        if inner is not None or not self._is_free:
            return inner
        hit = self._completes(token)
        if hit is None:
            return None
        # With what is written already the refusal itself might complete a phrase; then the reply just ends.
        clean = self.plan.matcher.find(self._tail, self.plan.refusal_text) is None
        return Veto(self.plan.refusal if clean else (), f"banned phrase: {hit}")

    def mask(self) -> TokenMask | None:
        if self._mask is None:
            self._mask = (self._compute_mask(),)
        return self._mask[0]

    def _compute_mask(self) -> TokenMask | None:
        mask = None if self.inner is None else self.inner.mask()
        if mask is None or self._is_free:
            return mask
        banned = [token for token in self._suspects(mask) if self._completes(token) is not None]
        banned += [token for token in self._few(mask) if token not in banned and self._leads_into_phrase(token)]
        if not banned:
            return mask
        left = TokenMask(mask.words & ~TokenMask.of(banned, mask.vocab_size).words, mask.vocab_size)
        if left.is_empty:
            raise ConstraintConflict(
                "Everything the grammar allows here would complete a banned phrase "
                f"({', '.join(map(repr, self._named(banned)))}); change the schema or the list of phrases."
            )
        return left

    def ways(self, mask: TokenMask) -> list[ComplianceCursor]:
        """Cursors behind some legal tokens, the one that ends soonest last."""
        tokens = [int(token) for token in mask.tokens()[:4]]
        soonest = list(getattr(self.inner, "witness", ()))[:1]
        forks = []
        for token in [t for t in tokens if t not in soonest] + [t for t in soonest if mask.allows(t)]:
            fork = self.fork()
            fork.advance(token)
            forks.append(fork)
        return forks

    def _few(self, mask: TokenMask) -> list[int]:
        """The legal tokens where the grammar leaves a small choice: a key, a member of an enum."""
        if not self.plan.matcher.phrases or mask.single() is not None:
            return []
        tokens = mask.tokens()
        return [int(token) for token in tokens] if len(tokens) <= _FEW else []

    def _leads_into_phrase(self, token: int) -> bool:
        """Whether the text that is forced after ``token`` would complete a phrase."""
        return self._forced_phrase(token) is not None

    def _forced_phrase(self, token: int) -> str | None:
        if self.inner is None or token in self.plan.eos_ids:
            return None
        inner = self.inner.fork()
        inner.advance(token)
        spelling = self.plan.speller.spelling
        run = [token, *(t for t in inner.forced_run(_AHEAD) if t not in self.plan.eos_ids)]
        data = self._half + b"".join(spelling[t] for t in run if t < len(spelling))
        folded = folded_characters(data.decode("utf-8", "ignore"), self._tail[-1:] or self._blank)
        return self.plan.matcher.find(self._tail, "".join(c for c, _ in folded))

    def _named(self, tokens: Sequence[int]) -> list[str]:
        found = {self._completes(token) or self._forced_phrase(token) for token in tokens[:_FEW]}
        return sorted(phrase for phrase in found if phrase is not None)[:4]

    def _suspects(self, mask: TokenMask) -> list[int]:
        """Legal tokens that may complete a phrase: holding a whole one, or the rest of one that was begun."""
        speller = self.plan.speller
        found = set(self.plan.whole)
        for rest in self.plan.matcher.rests(self._tail):
            found.update(speller.beginning_with(rest, (self._tail[-1:] or self._blank) == " "))
        if self._half:
            found.update(speller.partial)
        return [token for token in sorted(found) if token < mask.vocab_size and mask.allows(token)]

    def forced_run(self, limit: int) -> list[int]:
        """The inner run, as long as no token of it completes a phrase; singletons made by masking count too."""
        run: list[int] = []
        here = self
        while len(run) < limit:
            mask = here.mask()
            single = None if mask is None else mask.single()
            if single is None or here.veto(single) is not None or (run and run[-1] in self.plan.eos_ids):
                break
            if here is self:
                here = self.fork()
            run.append(single)
            here.advance(single)
        return run
