"""A schema as a union of branches, each a list of facts about values of one type.

Every keyword says something about one type, so a schema is read once a type. What it demands becomes facts,
alternatives become branches (a disjunctive normal form), and ``not`` turns facts around. Subschemas of members
and items are not read here: they are named by ``Part`` and read when their turn comes, so recursion ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from mmspec_agent.core.errors import SchemaError

from .document import Document, place_of, pointer_of
from .facts import Branch, Branches, Fact, Part, Refused, unevaluated
from .keywords import KEYWORDS, Keyword

TRUE: Final[Branches] = ((),)
FALSE: Final[Branches] = ()
MAX_BRANCHES: Final = 600
"""Alternatives of one value at most; schemas that multiply out to more are refused."""


class Refusal(NamedTuple):
    """A keyword that cannot be enforced, the pointer of the schema that holds it, and why."""

    pointer: str
    keyword: str
    why: str


class Circle(SchemaError):
    """A reference that leads to nothing but itself."""


class Reader:
    """Reads the subschemas of a document into branches; ``refusals`` are collected and left out.

    ``is_empty``: whether nothing fits a branch, as far as is seen; set by whoever knows.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.refusals: dict[tuple[str, str], Refusal] = {}
        self.is_empty: Callable[[Branch, str], bool] = lambda branch, kind: False
        self._known: dict[tuple[Part, str], Branches] = {}
        self._open: list[tuple[Part, str]] = []

    def goal(self, parts: Iterable[Part], kind: str) -> Branches:
        """The branches of what fits all of some subschemas."""
        found = TRUE
        for part in parts:
            found = self.both(found, self.part(part, kind))
        return found

    def part(self, part: Part, kind: str) -> Branches:
        """The branches of a subschema (or, not positive, of its opposite) for values of one type."""
        key = (part, kind)
        known = self._known.get(key)
        if known is not None:
            return known
        if key in self._open:
            raise Circle(
                f"The schema is impossible: $ref at {place_of(part.pointer or '')} runs in a circle, back to itself "
                "without a member or item between. Let it refer to something."
            )
        self._open.append(key)
        try:
            found = self._read(part, kind)
        finally:
            self._open.pop()
        self._known[key] = found
        return found

    def _read(self, part: Part, kind: str) -> Branches:
        if part.pointer is None:
            return TRUE if part.positive else FALSE
        schema = self.document.at(part.pointer)
        if isinstance(schema, bool):
            return TRUE if schema is part.positive else FALSE
        if part.positive:
            return self._all_of(part.pointer, schema, kind)
        found = FALSE
        for _, keyword in self._keywords(schema):
            found = self.either(found, _silent(keyword(self, part.pointer, schema, kind, False)))
        return found

    def _all_of(self, pointer: str, schema: dict[str, Any], kind: str) -> Branches:
        found, later = TRUE, []
        for name, keyword in self._keywords(schema):
            if name.startswith("unevaluated"):
                later.append(name)
                continue
            try:
                found = self.both(found, keyword(self, pointer, schema, kind, True))
            except Refused as error:
                self.refuse(pointer, error.keyword or name, str(error))
                found = self.both(found, self._instead(pointer, name, schema, kind))
        for name in later:
            if (name == "unevaluatedProperties") is (kind == "object") and kind in ("object", "array"):
                found = self._unevaluated(pointer, name, found)
        return found

    def _keywords(self, schema: dict[str, Any]) -> Iterator[tuple[str, Keyword]]:
        if self.document.refs_stand_alone and isinstance(schema.get("$ref"), str):
            yield "$ref", KEYWORDS["$ref"]
            return
        for name in schema:
            if name in KEYWORDS:
                yield name, KEYWORDS[name]

    def _instead(self, pointer: str, name: str, schema: dict[str, Any], kind: str) -> Branches:
        """What is enforced of a keyword that cannot be: of ``oneOf``, that one branch fits at least."""
        if name != "oneOf":
            return TRUE
        found = FALSE
        for index in range(len(schema["oneOf"])):
            found = self.either(found, self.part(Part(pointer + pointer_of(("oneOf", index))), kind))
        return found

    def refuse(self, pointer: str, keyword: str, why: str) -> None:
        """Note that a keyword cannot be enforced."""
        self.refusals.setdefault((pointer, keyword), Refusal(pointer, keyword, why))

    def both(self, left: Branches, right: Branches) -> Branches:
        """What is in both unions. Refused if there are too many branches."""
        if left == TRUE:
            return right
        if right == TRUE:
            return left
        if len(left) * len(right) > MAX_BRANCHES * 8:
            raise Refused(f"it multiplies out to more than {MAX_BRANCHES} alternatives")
        found = [tuple(dict.fromkeys((*a, *b))) for a in left for b in right]
        kept = _absorbed([branch for branch in found if not _contradicts(branch)])
        if len(kept) > MAX_BRANCHES:
            raise Refused(f"it multiplies out to more than {MAX_BRANCHES} alternatives")
        return kept

    def either(self, *options: Branches) -> Branches:
        """What is in one of some unions. Refused if there are too many branches."""
        found = _absorbed([branch for option in options for branch in option])
        if len(found) > MAX_BRANCHES:
            raise Refused(f"it has more than {MAX_BRANCHES} alternatives")
        return found

    def _unevaluated(self, pointer: str, name: str, found: Branches) -> Branches:
        part = Part(pointer + pointer_of((name,)))
        try:
            return tuple((*branch, unevaluated(part, name, branch)) for branch in found)
        except Refused as error:
            self.refuse(pointer, name, str(error))
            return found


def _absorbed(branches: list[Branch]) -> Branches:
    """Without branches that ask for all that another asks for, and more."""
    kept: list[tuple[Branch, frozenset[Fact]]] = []
    for branch in dict.fromkeys(branches):
        facts = frozenset(branch)
        if any(other <= facts for _, other in kept):
            continue
        kept = [(b, other) for b, other in kept if not facts <= other]
        kept.append((branch, facts))
    return tuple(branch for branch, _ in kept)


def _contradicts(branch: Branch) -> bool:
    """A name both required and forbidden, or a constant beside another: seen at a glance."""
    need = {one.value for one in branch if one.name == "required"}
    return any(one.name == "forbidden" and one.value in need for one in branch)


def _silent(branches: Branches) -> Branches:
    """Facts that hold because something does not fit evaluate no members or items."""
    return tuple(tuple(one._replace(evaluates=False) for one in branch) for branch in branches)
