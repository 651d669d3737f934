"""Regular languages as expressions with intersection and complement, read by derivatives.

The derivative of a language by a character is what may follow that character (Brzozowski 1964, "Derivatives of
regular expressions"). Expressions are compared by structure, so a language has finitely many derivatives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from .charset import ALL, DIGITS, CharSet


class Regular:
    """An expression; ``nullable``: whether it admits the empty text. Made by the functions below only.

    ``kind`` and ``parts``: chars (set), then (first, rest), either (options), both (all), never (one),
    repeat (one, least, most or None), multiple (see there).
    """

    __slots__ = ("_hash", "kind", "nullable", "parts")

    def __init__(self, kind: str, parts: tuple[Any, ...], nullable: bool) -> None:
        self.kind = kind
        self.parts = parts
        self.nullable = nullable
        self._hash = hash((kind, parts))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Regular) or self._hash != other._hash:
            return False
        return self.kind == other.kind and self.parts == other.parts

    def __repr__(self) -> str:
        return f"Regular({self.kind}, {self.parts!r})"


EMPTY: Final = Regular("empty", (), True)
NOTHING: Final = Regular("nothing", (), False)


def chars(members: CharSet) -> Regular:
    """One character of a set."""
    return Regular("chars", (members,), False) if members else NOTHING


def text(word: str) -> Regular:
    """A fixed text."""
    return then(*(chars(CharSet.only(char)) for char in word))


def then(*parts: Regular) -> Regular:
    """One after another."""
    whole = EMPTY
    for part in reversed(parts):
        if part is NOTHING or whole is NOTHING:
            return NOTHING
        if part is EMPTY:
            continue
        if whole is EMPTY:
            whole = part
        elif part.kind == "then":
            whole = then(part.parts[0], then(part.parts[1], whole))
        else:
            whole = Regular("then", (part, whole), part.nullable and whole.nullable)
    return whole


def either(*options: Regular) -> Regular:
    """Any of the options."""
    flat: dict[Regular, None] = {}
    letters = CharSet(())
    for option in _flat("either", options):
        if option == ANYTHING:
            return ANYTHING
        if option.kind == "chars":
            letters = letters | option.parts[0]
        elif option is not NOTHING:
            flat[option] = None
    found = [*([chars(letters)] if letters else []), *flat]
    if EMPTY in flat and any(part.nullable for part in found if part is not EMPTY):
        found.remove(EMPTY)
    if not found:
        return NOTHING
    return found[0] if len(found) == 1 else Regular("either", tuple(found), any(p.nullable for p in found))


def both(*parts: Regular) -> Regular:
    """What is in all of the parts."""
    flat: dict[Regular, None] = {}
    for part in _flat("both", parts):
        if part is NOTHING:
            return NOTHING
        if part != ANYTHING:
            flat[part] = None
    if not flat:
        return ANYTHING
    if EMPTY in flat:
        return EMPTY if all(part.nullable for part in flat) else NOTHING
    if any(never(part) in flat for part in flat):
        return NOTHING
    found = tuple(flat)
    return found[0] if len(found) == 1 else Regular("both", found, all(part.nullable for part in found))


def never(part: Regular) -> Regular:
    """Every text that ``part`` does not admit."""
    if part.kind == "never":
        inner: Regular = part.parts[0]
        return inner
    if part is NOTHING:
        return ANYTHING
    return NOTHING if part == ANYTHING else Regular("never", (part,), not part.nullable)


def repeat(part: Regular, least: int = 0, most: int | None = None) -> Regular:
    """``part`` from ``least`` to ``most`` times."""
    if part.nullable:
        least = 0
    if most == 0 or part is EMPTY or (part is NOTHING and least == 0):
        return EMPTY
    if part is NOTHING:
        return NOTHING
    if least == most == 1:
        return part
    if part.kind == "repeat" and part.parts[1:] == (0, None):
        return part
    return Regular("repeat", (part, least, most), least == 0)


def multiple(of: int, places: int, pointed: bool = False, remainder: int = 0, left: int | None = None) -> Regular:
    """Digits of a multiple of ``of`` / 10 ** ``places``, with a point or without.

    The rest is state: whether the point was written, what the digits so far leave, and the places still missing.
    """
    left = places if left is None else left
    return Regular("multiple", (of, places, pointed, remainder, left), remainder * 10**left % of == 0)


def _multiple_after(state: Regular, char: str) -> Regular:
    of, places, pointed, remainder, left = state.parts
    if char == ".":
        return NOTHING if pointed else multiple(of, places, True, remainder, places)
    if char not in DIGITS:
        return NOTHING
    if not pointed or left:
        return multiple(of, places, pointed, (remainder * 10 + int(char)) % of, left - pointed)
    return state if char == "0" else NOTHING


def _flat(kind: str, parts: Iterable[Regular]) -> Iterable[Regular]:
    for part in parts:
        if part.kind == kind:
            yield from part.parts
        else:
            yield part


ANY_CHAR: Final = Regular("chars", (ALL,), False)
ANYTHING: Final = Regular("repeat", (ANY_CHAR, 0, None), True)


def derivative(whole: Regular, char: str) -> Regular:
    """What may follow ``char``."""
    kind, parts = whole.kind, whole.parts
    if kind == "chars":
        return EMPTY if char in parts[0] else NOTHING
    if kind == "then":
        first, rest = parts
        after = then(derivative(first, char), rest)
        return either(after, derivative(rest, char)) if first.nullable else after
    if kind == "either":
        return either(*(derivative(part, char) for part in parts))
    if kind == "both":
        return both(*(derivative(part, char) for part in parts))
    if kind == "never":
        return never(derivative(parts[0], char))
    if kind == "repeat":
        part, least, most = parts
        again = repeat(part, max(least - 1, 0), None if most is None else most - 1)
        return then(derivative(part, char), again)
    if kind == "multiple":
        return _multiple_after(whole, char)
    return NOTHING


def first_sets(whole: Regular) -> set[CharSet]:
    """Sets of characters among which the first character is told apart."""
    kind, parts = whole.kind, whole.parts
    if kind == "chars":
        return {parts[0]}
    if kind == "then":
        return first_sets(parts[0]) | (first_sets(parts[1]) if parts[0].nullable else set())
    if kind in ("either", "both"):
        return {members for part in parts for members in first_sets(part)}
    if kind in ("never", "repeat"):
        return first_sets(parts[0])
    return {CharSet.only(char) for char in "0123456789."} if kind == "multiple" else set()


def classes(whole: Regular) -> list[CharSet]:
    """A partition of all characters: those of one class have the same derivative."""
    cells = [ALL]
    for members in sorted(first_sets(whole), key=lambda s: (len(s.ranges), s.ranges)):
        cells = [part for cell in cells for part in (cell & members, cell - members) if part]
    return cells
