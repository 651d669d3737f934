"""Phrases that are never emitted, however they are tokenised (SYSTEM.md C12).

One matcher works on decoded text, for target and drafts alike. In free text the drawn token that would complete
a phrase is replaced by the refusal and the reply ends; where a grammar rules, such a token is masked instead.
"""

from __future__ import annotations

import threading
import unicodedata
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Self

import ahocorasick

from .constraint import Constraint, ConstraintPlan, TokenMask, Veto
from .errors import ConstraintConflict, ConstraintError, OptionError

MAX_BYTES: Final = 500_000
"""Largest list of phrases, in UTF-8 bytes of their folded forms."""

FREE_STATES: Final = frozenset({"TEXT", "REASONING"})
_INVISIBLE: Final = frozenset("\u200b\u200c\u200d\u2060\ufeff\u00ad")


def fold(text: str) -> str:
    """``text`` as phrases are compared: compatibility forms, full width, case and runs of blanks folded."""
    return "".join(folded for folded, _ in _folded(text, " "))


def _folded(text: str, before: str) -> list[tuple[str, int]]:
    """Folded characters with the index of the character they come from.

    Folding works character by character, so that it never depends on where a token ends. ``before``: the folded
    character in front, since a blank after a blank says nothing new.
    """
    out: list[tuple[str, int]] = []
    last = before
    for index, char in enumerate(text):
        if char in _INVISIBLE:
            continue
        for piece in _fold_character(char):
            piece = " " if piece.isspace() else piece
            if piece == " " and last == " ":
                continue
            out.append((piece, index))
            last = piece
    return out


@lru_cache(maxsize=8192)
def _fold_character(char: str) -> str:
    # Decomposed, so that an accent is the same whether it comes with its letter or after it.
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())


@dataclass(frozen=True)
class PhraseMatcher:
    """Aho-Corasick over folded text; positions are states of the automaton, kept as the folded tail."""

    phrases: tuple[str, ...]

    @classmethod
    def of(cls, phrases: Iterable[str]) -> PhraseMatcher:
        """A matcher; OptionError for a phrase that folds to nothing or a list over 500 KB."""
        folded: dict[str, str] = {}
        for phrase in phrases:
            key = fold(phrase).strip()
            if not key:
                raise OptionError(f"Banned phrase {phrase!r} has no visible character; it would match everywhere.")
            folded.setdefault(key, phrase)
        size = sum(len(key.encode()) for key in folded)
        if size > MAX_BYTES:
            raise OptionError(f"The banned phrases have {size:,} bytes; accepted are up to {MAX_BYTES:,}.")
        return cls(tuple(folded))

    @cached_property
    def _automaton(self) -> Any:
        automaton = ahocorasick.Automaton()
        for phrase in self.phrases:
            automaton.add_word(phrase, phrase)
        if self.phrases:
            automaton.make_automaton()
        return automaton

    @cached_property
    def longest(self) -> int:
        """Characters of the longest phrase."""
        return max(map(len, self.phrases), default=0)

    @cached_property
    def last_characters(self) -> frozenset[str]:
        """Characters a phrase may end with: text without one of them completes nothing."""
        return frozenset(phrase[-1] for phrase in self.phrases)

    def find(self, tail: str, text: str) -> str | None:
        """The first phrase that folded ``text`` completes after the folded ``tail``."""
        if not self.phrases or self.last_characters.isdisjoint(text):
            return None
        for end, phrase in self._automaton.iter(tail + text):
            if end >= len(tail):
                return str(phrase)
        return None

    def open_length(self, tail: str) -> int:
        """Characters at the end of ``tail`` that may still grow into a phrase."""
        return next((len(tail) - start for start in self._open_at(tail)), 0)

    def rests(self, tail: str) -> set[str]:
        """What would complete a phrase that ``tail`` has begun."""
        return {
            phrase[len(tail) - start :]
            for start in self._open_at(tail)
            for phrase in self._automaton.keys(tail[start:])
        }

    def _open_at(self, tail: str) -> Iterator[int]:
        if not self.phrases:
            return
        for start in range(max(0, len(tail) - self.longest + 1), len(tail)):
            begun = tail[start:]
            if self._automaton.match(begun) and any(phrase != begun for phrase in self._automaton.keys(begun)):
                yield start


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
        plan = CompliancePlan(self.matcher, _Speller.of(tokenizer), refusal, fold(self.refusal), ids, inner)
        plan.check()
        return plan


@dataclass(frozen=True)
class _Speller:
    """Bytes of every id; ids are decoded one by one, so that half characters stay bytes."""

    spelling: tuple[bytes, ...]

    @classmethod
    def of(cls, tokenizer: Any) -> _Speller:
        with _LOCK:
            if tokenizer not in _SPELLERS:
                _SPELLERS[tokenizer] = cls(spellings(tokenizer))
            return _SPELLERS[tokenizer]

    @cached_property
    def folded(self) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """(folded text, id) sorted by text, after a visible character and after a blank."""
        plain: list[tuple[str, int]] = []
        after_blank: list[tuple[str, int]] = []
        for token, spelled in enumerate(self.spelling):
            text = spelled.decode("utf-8", "ignore")
            plain.append(("".join(c for c, _ in _folded(text, "x")), token))
            after_blank.append(("".join(c for c, _ in _folded(text, " ")), token))
        return sorted(plain), sorted(after_blank)

    def beginning_with(self, text: str, after_blank: bool) -> Iterator[int]:
        """Ids whose folded text begins with ``text``."""
        index = self.folded[after_blank]
        for at in range(bisect_left(index, (text, -1)), len(index)):
            if not index[at][0].startswith(text):
                return
            yield index[at][1]

    @cached_property
    def partial(self) -> tuple[int, ...]:
        """Ids that begin with the rest of a character."""
        return tuple(i for i, s in enumerate(self.spelling) if s and 0x80 <= s[0] < 0xC0)


_LOCK = threading.Lock()
_SPELLERS: weakref.WeakKeyDictionary[Any, _Speller] = weakref.WeakKeyDictionary()


def spellings(tokenizer: Any) -> tuple[bytes, ...]:
    """Bytes of each id of a Hugging Face tokenizer (byte-level BPE, byte fallback, or plain pieces)."""
    table = _byte_table()
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    byte_level = any(piece is not None and "\u0120" in piece for piece in pieces)
    added = {token: str(text) for token, text in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    found = []
    for token, piece in enumerate(pieces):
        if token in added or piece is None:
            found.append(added.get(token, "").encode())
        elif byte_level:
            found.append(bytes(table[c] for c in piece) if all(c in table for c in piece) else piece.encode())
        elif len(piece) == 6 and piece.startswith("<0x"):
            found.append(bytes([int(piece[3:5], 16)]))
        else:
            found.append(piece.replace("\u2581", " ").encode())
    return tuple(found)


def _byte_table() -> dict[str, int]:
    """GPT-2's printable stand-ins of bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


@dataclass(frozen=True)
class CompliancePlan:
    """Compliance around another plan, or alone (ConstraintPlan)."""

    matcher: PhraseMatcher
    speller: _Speller
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
        """Raise ConstraintError if the inner constraint itself forces a banned phrase."""
        if self.inner is None:
            return
        cursor = self.open(self.inner.minimum_tokens + 4096)
        try:
            for token in getattr(self.inner, "start", ()) or cursor.forced_run(2048):
                mask = cursor.mask()
                if mask is not None and not mask.allows(token):
                    return  # only this way is barred, there are others
                cursor.advance(token)
        except ConstraintConflict as error:
            raise ConstraintError(f"The schema forces a banned phrase: {error}") from None

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
        half = _open_bytes(data)
        return data[: len(data) - half].decode("utf-8", "replace"), data[len(data) - half :]

    def _completes(self, token: int) -> str | None:
        if token in self.plan.eos_ids:
            return None
        text, _ = self._decoded(token)
        return self.plan.matcher.find(self._tail, "".join(c for c, _ in _folded(text, self._tail[-1:] or self._blank)))

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
        folded = _folded(text, self._tail[-1:] or self._blank)
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
        if not banned:
            return mask
        left = TokenMask(mask.words & ~TokenMask.of(banned, mask.vocab_size).words, mask.vocab_size)
        if left.is_empty:
            phrase = self._completes(banned[0])
            raise ConstraintConflict(
                f"Everything the grammar allows here would complete the banned phrase {phrase!r}; "
                "change the schema or the list of phrases."
            )
        return left

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


def _open_bytes(data: bytes) -> int:
    """Bytes at the end that begin a character they do not finish."""
    for back in range(1, min(3, len(data)) + 1):
        lead = data[-back]
        if lead >= 0xC0:
            need = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return back if back < need else 0
        if lead < 0x80:
            return 0
    return 0
