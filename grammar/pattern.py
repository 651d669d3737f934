"""From a parsed pattern to the regular language of the texts in which it is found.

Assertions (``^ $ \\b (?=…) (?!…)``) say something about what is before or behind a place. A pattern is therefore
read from its end: each part is given what may follow it, told apart by what stands before (the beginning, a word
character, another character), and answers with the same for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from .charset import ALL, WORD
from .ecma import PatternError, Syntax, parse
from .regular import (
    ANY_CHAR,
    ANYTHING,
    EMPTY,
    NOTHING,
    Regular,
    both,
    chars,
    either,
    never,
    repeat,
    then,
)  # fmt: skip

_UNROLLED: Final = 200


class _Rest(NamedTuple):
    """Languages of all that may follow a place, by what is before it."""

    begin: Regular
    word: Regular
    other: Regular

    def each(self, change: Callable[[Regular], Regular]) -> _Rest:
        return _Rest(*map(change, self))

    @property
    def is_one(self) -> bool:
        return self.begin == self.word == self.other


_FREE: Final = _Rest(ANYTHING, ANYTHING, ANYTHING)
_END: Final = _Rest(EMPTY, EMPTY, EMPTY)
_BEGINS_WORD: Final = then(chars(WORD), ANYTHING)


@lru_cache(maxsize=512)
def searched(pattern: str) -> Regular:
    """Texts in which the pattern is found somewhere. Raises PatternError."""
    return _language(("cat", (("rep", ("set", ALL), 0, None), parse(pattern))), _FREE)


@lru_cache(maxsize=512)
def whole_match(pattern: str) -> Regular:
    """Texts that the pattern matches from end to end. Raises PatternError."""
    return _language(parse(pattern), _END)


def _language(syntax: Syntax, rest: _Rest) -> Regular:
    try:
        return _before(syntax, rest).begin
    except RecursionError:
        raise PatternError("the pattern is nested too deeply") from None


def _before(syntax: Syntax, rest: _Rest) -> _Rest:
    kind = syntax[0]
    if kind == "set":
        word, other = chars(syntax[1] & WORD), chars(syntax[1] - WORD)
        if rest.word == rest.other:
            one = then(chars(syntax[1]), rest.word)
        else:
            one = either(then(word, rest.word), then(other, rest.other))
        return _Rest(one, one, one)
    if kind == "cat":
        plain = _plain(syntax)
        if plain is not None:
            return _plain_before(plain, rest)
        for part in reversed(syntax[1]):
            rest = _before(part, rest)
        return rest
    if kind == "alt":
        options = [_before(option, rest) for option in syntax[1]]
        return _Rest(*(either(*same) for same in zip(*options, strict=True)))
    if kind == "rep":
        return _repeated(syntax, rest)
    if kind == "look":
        ahead = _before(syntax[2], _FREE)
        return _Rest(*(both(never(a) if syntax[1] else a, r) for a, r in zip(ahead, rest, strict=True)))
    return _at(kind, syntax, rest)


def _at(kind: str, syntax: Syntax, rest: _Rest) -> _Rest:
    """Assertions about the place itself."""
    if kind == "begin":
        return _Rest(rest.begin, NOTHING, NOTHING)
    if kind == "end":
        return rest.each(lambda one: EMPTY if one.nullable else NOTHING)
    here = [_BEGINS_WORD, never(_BEGINS_WORD), _BEGINS_WORD]
    if syntax[1]:
        here = [never(one) for one in here]
    return _Rest(*(both(a, r) for a, r in zip(here, rest, strict=True)))


def _repeated(syntax: Syntax, rest: _Rest) -> _Rest:
    _, inner, least, most = syntax
    plain = _plain(inner)
    if plain is not None:
        return _plain_before(repeat(plain, least, most), rest)
    if inner[0] == "look":  # repeating an assertion adds nothing
        return _before(inner, rest) if least else rest
    if most is None:
        tempered = _tempered(inner, least, rest)
        if tempered is not None:
            return tempered
        raise PatternError("an assertion inside a repetition without an end is not supported")
    if most > _UNROLLED:
        raise PatternError(f"an assertion repeated more than {_UNROLLED} times is not supported")
    whole = rest
    for count in range(most, 0, -1):
        whole = _before(inner, whole)
        if count - 1 >= least:
            whole = _Rest(*(either(a, b) for a, b in zip(whole, rest, strict=True)))
    return whole


def _tempered(inner: Syntax, least: int, rest: _Rest) -> _Rest | None:
    """``(?:(?!word).)*`` up to the end of the text: nowhere may ``word`` begin. None for other repetitions."""
    parts: Any = inner[1] if inner[0] == "cat" else ()
    if len(parts) != 2 or parts[0][:2] != ("look", True) or parts[1][0] != "set" or rest != _END:
        return None
    word = _plain(parts[0][2])
    if word is None or word.nullable:
        return None
    free = both(repeat(chars(parts[1][1]), least, None), never(then(ANYTHING, word, ANYTHING)))
    return _Rest(free, free, free)


def _plain_before(plain: Regular, rest: _Rest) -> _Rest:
    if rest.is_one:
        return rest.each(lambda one: then(plain, one))
    if rest.word == rest.other:
        ends = then(_not_empty(plain), rest.word)
    else:
        word = both(plain, then(ANYTHING, chars(WORD)))
        other = both(plain, then(ANYTHING, chars(ALL - WORD)))
        ends = either(then(word, rest.word), then(other, rest.other))
    return rest.each(lambda one: either(ends, one) if plain.nullable else ends)


def _not_empty(plain: Regular) -> Regular:
    if not plain.nullable:
        return plain
    if plain.kind == "repeat" and not plain.parts[0].nullable:
        part, _, most = plain.parts
        return repeat(part, 1, most)
    return both(plain, then(ANY_CHAR, ANYTHING))


def _plain(syntax: Syntax) -> Regular | None:
    """The language of a part without assertions; None with them."""
    kind = syntax[0]
    if kind == "set":
        return chars(syntax[1])
    if kind in ("cat", "alt"):
        parts = [_plain(part) for part in syntax[1]]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return then(*known) if kind == "cat" else either(*known)
    if kind == "rep":
        inner = _plain(syntax[1])
        return None if inner is None else repeat(inner, syntax[2], syntax[3])
    return None
