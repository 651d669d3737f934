"""The legal tokens near the end of a budget: those after which the reply can still be closed in time.

The shape says how a text would be closed, the engine whether that is legal; both are asked for every token that is
let through. The work for one mask is bounded: where there are more tokens than it pays for, fewer are let through,
never one too many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mmspec_agent.core.constraint import TokenMask, Words

from .machine import KEY_NAME, STRING
from .witness import completion

if TYPE_CHECKING:
    from .position import Position

MAX_CANDIDATES: Final = 64
"""Tokens looked at for one mask; of more only those of one ASCII character are."""

MAX_CHECKED_TOKENS: Final = 3000
"""Tokens of completions that the engine reads for one mask."""

MAX_SPELLED_TOKENS: Final = 160
"""Tokens of completions that are spelled out one by one for one mask."""

SPARE: Final = 4
"""Tokens to spare with which a completion fits for sure, although the masks may spell it in other tokens."""


def narrowed(at: Position, mask: TokenMask) -> TokenMask:
    """The part of ``mask`` that leaves room to close; ``mask`` itself where no way to the end is known."""
    vocabulary = at.plan.vocabulary
    known = [t for t in vocabulary.eos_ids if mask.allows(t)] if at.matcher.is_accepting() else []
    known += at.spelled[:1] if at.spelled else ()
    words = TokenMask.of(known, vocabulary.size).words
    if at.spelled is None or len(at.spelled) < at.remaining:
        tried, candidates = mask.words & ~words, _Candidates(at)
        if at.scan.name in (STRING, KEY_NAME) and at.plan.reading(at.text).plain:
            if (tried & vocabulary.inside_string).any() and _plain_fits(at):
                words = words | (tried & vocabulary.inside_string)
            tried = (tried & ~vocabulary.inside_string) | (tried & candidates.towards_the_end())
        words = words | TokenMask.of(list(candidates.fitting(tried)), vocabulary.size).words
    if not words.any():
        found = at.completed()
        return mask if not found else TokenMask.of(found[:1], vocabulary.size)
    return TokenMask(words, vocabulary.size)


def _plain_fits(at: Position) -> bool:
    """Whether one more token of plain text fits in a string where it changes nothing of how the text is closed."""
    reading, room = at.plan.reading(at.text), at.remaining - 1
    if at.spelled is not None and reading.dearest is None:
        return len(at.spelled) <= room
    if at.plan.vocabulary.spelled_length(reading.longest) + SPARE > room:
        return False
    return any(_is_legal(at, way) for way in dict.fromkeys((reading.tail, reading.longest)) if way is not None)


def _is_legal(at: Position, way: bytes) -> bool:
    """Whether the engine takes ``way`` for one to the end."""
    tokens = [*at.plan.vocabulary.tokenize(way), at.plan.vocabulary.eos_ids[0]]
    return bool(at.matcher.validate_tokens(tokens) == len(tokens))


class _Candidates:
    """The tokens tried for one mask, and what work is left for them."""

    def __init__(self, at: Position) -> None:
        self.at = at
        self.room = at.remaining - 1
        self.checked = MAX_CHECKED_TOKENS
        self.spelled = MAX_SPELLED_TOKENS

    def fitting(self, tried: Words) -> Iterator[int]:
        """Those after which a completion fits."""
        vocabulary = self.at.plan.vocabulary
        if int.from_bytes(tried.tobytes(), "little").bit_count() > MAX_CANDIDATES:
            tried = tried & (vocabulary.single_ascii | self.towards_the_end())
        for token in TokenMask(tried, vocabulary.size).tokens().tolist():
            if token not in vocabulary.eos_ids and self._fits(token):
                yield token

    def towards_the_end(self) -> Words:
        """The tokens that begin the ways to the end."""
        vocabulary, reading = self.at.plan.vocabulary, self.at.plan.reading(self.at.text)
        if not reading.tail:
            return TokenMask.of((), vocabulary.size).words
        firsts = [vocabulary.tokenize(way)[0] for way in (reading.tail, reading.longest)]
        firsts += [t for way in (reading.tail, reading.longest) if (t := vocabulary.id_of(way[:1])) is not None]
        return TokenMask.of(firsts, vocabulary.size).words

    def _fits(self, token: int) -> bool:
        at, vocabulary = self.at, self.at.plan.vocabulary
        tail = at.plan.tail(at.text + vocabulary.spelling[token])
        if tail is None:
            return at.plan.shape is None and self._spells_out(token)
        length = vocabulary.spelled_length(tail)
        if length > self.room or self.checked < length:
            return False
        if length + SPARE > self.room:
            return self._spells_out(token)
        self.checked -= length + 2
        ways = [token, *vocabulary.tokenize(tail), vocabulary.eos_ids[0]]
        return bool(at.matcher.validate_tokens(ways) == len(ways))

    def _spells_out(self, token: int) -> bool:
        """Whether a completion behind ``token``, written out as the masks allow, fits; for a few tokens only."""
        if self.spelled <= 0:
            return False
        at, plan = self.at, self.at.plan
        matcher = at.matcher.deep_copy()
        if not matcher.consume_token(token):
            return False
        text = at.text + plan.vocabulary.spelling[token]
        found = completion(plan.vocabulary, plan.shape, text, matcher, plan.mask_of, self.room)
        self.spelled -= len(found or ()) + 8
        return found is not None and len(found) <= self.room
