"""Phrases in decoded text: folding, matching, and how token ids spell text (SYSTEM.md C12)."""

from __future__ import annotations

import threading
import unicodedata
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import ahocorasick

from .errors import OptionError

MAX_BYTES: Final = 500_000
"""Largest list of phrases, in UTF-8 bytes of their folded forms."""


_INVISIBLE: Final = frozenset("\u200b\u200c\u200d\u2060\ufeff\u00ad")


def fold(text: str) -> str:
    """``text`` as phrases are compared: compatibility forms, full width, case and runs of blanks folded."""
    return "".join(folded for folded, _ in folded_characters(text, " "))


def folded_characters(text: str, before: str) -> list[tuple[str, int]]:
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
class Speller:
    """Bytes of every id; ids are decoded one by one, so that half characters stay bytes."""

    spelling: tuple[bytes, ...]

    @classmethod
    def of(cls, tokenizer: Any) -> Speller:
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
            plain.append(("".join(c for c, _ in folded_characters(text, "x")), token))
            after_blank.append(("".join(c for c, _ in folded_characters(text, " ")), token))
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
_SPELLERS: weakref.WeakKeyDictionary[Any, Speller] = weakref.WeakKeyDictionary()


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


def open_bytes(data: bytes) -> int:
    """Bytes at the end that begin a character they do not finish."""
    for back in range(1, min(3, len(data)) + 1):
        lead = data[-back]
        if lead >= 0xC0:
            need = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return back if back < need else 0
        if lead < 0x80:
            return 0
    return 0
