"""What branches of a schema are made of: facts about a value of one type, and the subschemas they name."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, NamedTuple

from .regular import Regular

TYPES: Final = ("null", "boolean", "number", "string", "array", "object")
"""Types a value has one of; an integer is a number."""


class Part(NamedTuple):
    """A subschema by pointer, or its opposite; without a pointer anything, or nothing."""

    pointer: str | None
    positive: bool = True


ANY: Final = Part(None)
NEVER: Final = Part(None, False)


class Fact(NamedTuple):
    """One demand. ``evaluates``: members or items it speaks of count as evaluated."""

    name: str
    value: Hashable = None
    evaluates: bool = True


class Members(NamedTuple):
    """Subschemas of an object's members; ``rest``: of those not named (None: nothing is said of them).

    ``listed``: properties are listed; ``speaks``: the schema says what becomes of others.
    """

    named: tuple[tuple[str, Part], ...] = ()
    patterns: tuple[tuple[Regular, Part], ...] = ()
    rest: Part | None = None
    listed: bool = False
    speaks: bool = False


class Items(NamedTuple):
    """Subschemas of an array's items: the first ones by place, then ``rest`` (None: nothing is said of them)."""

    first: tuple[Part, ...] = ()
    rest: Part | None = None


Branch = tuple[Fact, ...]
Branches = tuple[Branch, ...]


class Refused(Exception):
    """A keyword that has no grammar as it stands; the text says why, ``keyword`` which if it is not the one read."""

    def __init__(self, why: str, keyword: str | None = None) -> None:
        super().__init__(why)
        self.keyword = keyword


def fact(name: str, value: Hashable = None) -> Branches:
    """One branch of one fact."""
    return ((Fact(name, value),),)


def required(name: str) -> Fact:
    """A member that has to be there."""
    return Fact("required", name)


def forbidden(name: str) -> Fact:
    """A member that must not be there."""
    return Fact("forbidden", name)


def type_of(value: Any) -> str:
    """The type of a JSON value, one of TYPES."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "number"


def unevaluated(part: Part, keyword: str, branch: Branch) -> Fact:
    """``unevaluatedProperties`` or ``unevaluatedItems`` behind the facts of a branch."""
    if keyword == "unevaluatedProperties":
        rules = [one.value for one in branch if one.evaluates and isinstance(one.value, Members)]
        named = dict.fromkeys(name for rule in rules for name, _ in rule.named)
        patterns = dict.fromkeys(pattern for rule in rules for pattern, _ in rule.patterns)
        rest = ANY if any(rule.rest is not None for rule in rules) else part
        return Fact(
            "members", Members(tuple((n, ANY) for n in named), tuple((p, ANY) for p in patterns), rest, False, True)
        )
    if any(one.name == "contains" and one.evaluates for one in branch):
        raise Refused("'contains' evaluates items too")
    items = [one.value for one in branch if one.evaluates and isinstance(one.value, Items)]
    count = max((len(rule.first) for rule in items), default=0)
    rest = ANY if any(rule.rest is not None for rule in items) else part
    return Fact("items", Items((ANY,) * count, rest))
