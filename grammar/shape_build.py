"""From the branches of a schema to the shape of its documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from .arrays import array_node
from .branches import Circle, Reader
from .checking import Checker
from .facts import ANY, NEVER, TYPES, Branch, Fact, Part, Refused
from .keywords import KEYWORDS
from .lark import is_writable
from .numbers import NumberError, NumberRange
from .objects import member_goal, object_node
from .regex import Automaton, TooIntricate
from .regular import ANYTHING, NOTHING, Regular, both
from .shape import Choice, Literal, Node, OneOf, Reference
from .shape_values import Anything, Number, String

if TYPE_CHECKING:
    from .schema import JsonSchema

Goal = tuple[Part, ...]
"""Subschemas all of which a value has to fit."""

MAX_NODES: Final = 20_000
"""Different values a grammar describes at most."""

_SAYS: Final = frozenset(KEYWORDS)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


class Builder:
    """Makes the node of each goal once; a goal met inside itself is a Reference."""

    def __init__(self, reader: Reader, checker: Checker, separators: tuple[str, str], close_objects: bool) -> None:
        self.reader = reader
        self.checker = checker
        self.separators = separators
        self.close_objects = close_objects
        self._known: dict[Goal, Node] = {}
        self._open: dict[Goal, Reference] = {}
        self._empty: dict[tuple[Branch, str], bool] = {}
        reader.is_empty = self.is_empty

    @property
    def written_separators(self) -> tuple[bytes, bytes]:
        """Item and key separator as bytes."""
        return self.separators[0].encode(), self.separators[1].encode()

    def node(self, goal: Iterable[Part]) -> Node:
        """The values that fit all of ``goal``."""
        parts = self.settled(goal)
        if parts in self._known:
            return self._known[parts]
        if parts in self._open:
            return self._open[parts]
        if len(self._known) > MAX_NODES:
            raise Refused(f"it describes more than {MAX_NODES} different values")
        reference = self._open[parts] = Reference(str(len(self._known)))
        try:
            node = self._built(parts)
        finally:
            del self._open[parts]
        reference.target = node
        self._known[parts] = node
        return node

    def settled(self, goal: Iterable[Part]) -> Goal:
        """A goal with plain references followed and repetitions left out."""
        found: dict[Part, None] = {}
        for part in goal:
            part = self._followed(part)
            if part == NEVER:
                return (NEVER,)
            if part != ANY:
                found[part] = None
        return (NEVER,) if any(Part(p.pointer, not p.positive) in found for p in found) else tuple(found)

    def _followed(self, part: Part) -> Part:
        document, seen = self.reader.document, set()
        while part.pointer is not None and part not in seen:
            seen.add(part)
            schema = document.at(part.pointer)
            if isinstance(schema, bool) or not schema:
                return ANY if bool(schema is not False) is part.positive else NEVER
            says = [key for key in schema if key in _SAYS]
            if not says:
                return ANY if part.positive else NEVER
            if says != ["$ref"] and not ("$ref" in says and document.refs_stand_alone):
                return part
            part = Part(document.target(part.pointer, schema["$ref"]), part.positive)
        return part

    def _built(self, goal: Goal) -> Node:
        branches = {kind: self.branches(goal, kind) for kind in TYPES}
        if all(found == ((),) for found in branches.values()):
            return Anything(self.written_separators)
        nodes = [self.branch(goal, branch, kind) for kind, found in branches.items() for branch in found]
        options = list({id(n): n for node in nodes if node is not None for n in _spread(node)}.values())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def branches(self, goal: Goal, kind: str) -> tuple[Branch, ...]:
        """The branches of a goal; a product that is too large is refused where its largest part stands."""
        try:
            return self.reader.goal(goal, kind)
        except Refused as error:
            worst = max(goal, key=lambda part: len(self.reader.part(part, kind)))
            self.reader.refuse(worst.pointer or "", self.combining(worst), str(error))
            return self.reader.part(worst, kind)

    def combining(self, part: Part) -> str:
        """The keyword of a subschema that makes most of it."""
        schema = self.reader.document.at(part.pointer or "")
        return next((key for key in ("oneOf", "anyOf", "allOf", "not", "if", "$ref") if key in schema), "type")

    def branch(self, goal: Goal, branch: Branch, kind: str) -> Node | None:
        """The node of one branch; None if nothing fits it."""
        if kind == "null":
            return Literal(b"null")
        values = [one.value for one in branch if one.name == "values"]
        if values:
            return self._constants(goal, branch, values[0], len(branch) > 1)
        if kind == "boolean":
            return OneOf((b"false", b"true"))
        if kind == "number":
            return self._number(goal, number_range(branch))
        if kind == "string":
            return self._string(goal, branch)
        return (array_node if kind == "array" else object_node)(self, goal, branch)

    def _constants(self, goal: Goal, branch: Branch, values: Any, is_narrowed: bool) -> Node | None:
        known = [json.loads(value) for value in values]
        if is_narrowed or len(goal) > 1:
            known = [value for value in known if self.checker.fits(value, goal)]
        texts = sorted({self.text(value) for value in known})
        if not texts:
            return None
        return Literal(texts[0]) if len(texts) == 1 else OneOf(tuple(texts))

    def text(self, value: Any) -> bytes:
        """A constant as the grammar writes it."""
        written = json.dumps(value, ensure_ascii=False, separators=self.separators)
        return _SURROGATES.sub(lambda half: f"\\u{ord(half[0]):04x}", written).encode()

    def _string(self, goal: Goal, branch: Branch) -> Node | None:
        least, most, language = string_facts(branch)
        if most is not None and least > most:
            return None
        if language == ANYTHING:
            return String(least, most)
        automaton = Automaton(language)
        try:
            if language is NOTHING or automaton.finish("", least, most) is None:
                return None
        except TooIntricate as error:
            self.refuse(goal, ("pattern", "format", "not"), str(error))
            return String(least, most)
        return String(least, most, automaton)

    def _number(self, goal: Goal, numbers: NumberRange) -> Node | None:
        if numbers.is_empty:
            return None
        try:
            is_written = is_writable(numbers)
        except NumberError as error:
            self.refuse(goal, ("minimum", "maximum", "multipleOf", "const", "enum"), str(error))
            return Number(NumberRange(numbers.integer))
        if not is_written:
            self.refuse(goal, ("multipleOf",), "its multiples have too many remainders together with what is beside it")
            numbers = replace(numbers, multiples=(), nonmultiples=())
        return Number(numbers)

    def refuse(self, goal: Goal, keywords: tuple[str, ...], why: str) -> None:
        """Note the first of ``keywords`` in a goal as one that cannot be enforced."""
        for part in goal:
            for pointer in self.pointers(part):
                schema = self.reader.document.at(pointer)
                for keyword in keywords:
                    if isinstance(schema, dict) and keyword in schema:
                        self.reader.refuse(pointer, keyword, why)
                        return
        self.reader.refuse(goal[0].pointer or "" if goal else "", keywords[0], why)

    def pointers(self, part: Part) -> list[str]:
        """The subschemas that a part consists of, its own first."""
        found: list[str] = []
        todo = [part.pointer] if part.pointer is not None else []
        while todo:
            pointer = todo.pop(0)
            if pointer in found:
                continue
            found.append(pointer)
            schema = self.reader.document.at(pointer)
            if not isinstance(schema, dict):
                continue
            if isinstance(schema.get("$ref"), str):
                todo.append(self.reader.document.target(pointer, schema["$ref"]))
            for key in ("allOf", "anyOf", "oneOf"):
                todo += [f"{pointer}/{key}/{index}" for index in range(len(schema.get(key, ())))]
            todo += [f"{pointer}/{key}" for key in ("not", "if", "then", "else") if key in schema]
        return found

    def is_empty(self, branch: Branch, kind: str, depth: int = 3) -> bool:
        """Whether nothing fits a branch, as far as is seen ``depth`` members deep."""
        key = (branch, kind)
        if key not in self._empty:
            self._empty[key] = self._shows_empty(branch, kind, depth)
        return self._empty[key]

    def _shows_empty(self, branch: Branch, kind: str, depth: int) -> bool:
        values = [set(_texts_of(one)) for one in branch if one.name == "values"]
        if len(values) > 1 and not set.intersection(*values):
            plain = [{_plain(value) for value in some} for some in values]
            return not set.intersection(*plain)
        if values and kind == "string":
            _, _, language = string_facts(branch)
            return not any(Automaton(language).matches(json.loads(value)) for value in set.intersection(*values))
        if kind == "number":
            return number_range(branch).is_empty
        if kind == "string":
            least, most, language = string_facts(branch)
            if most is not None and least > most:
                return True
            try:
                return Automaton(language).finish("", least, most) is None
            except TooIntricate:
                return False
        return kind == "object" and depth > 0 and self._lacks_member(branch, depth)

    def _lacks_member(self, branch: Branch, depth: int) -> bool:
        for one in branch:
            if one.name == "required":
                goal = self.settled(member_goal(branch, str(one.value)))
                if all(self._nothing(goal, kind, depth - 1) for kind in TYPES):
                    return True
        return False

    def _nothing(self, goal: Goal, kind: str, depth: int) -> bool:
        try:
            return all(self.is_empty(branch, kind, depth) for branch in self.reader.goal(goal, kind))
        except (Refused, Circle):
            return False


def number_range(branch: Branch) -> NumberRange:
    """The numbers of a branch."""
    integer = any(one.name == "integer" for one in branch)
    found = NumberRange(integer, fractional=any(one.name == "fractional" for one in branch))
    several: dict[str, list[Any]] = {"multiple": [], "nonmultiple": [], "excluded": []}
    for one in branch:
        value: Any = one.value
        if one.name == "low":
            found = found.above(*value)
        elif one.name == "high":
            found = found.below(*value)
        elif one.name in several:
            several[one.name].append(value)
    multiples, nonmultiples, excluded = (tuple(dict.fromkeys(values)) for values in several.values())
    return replace(found, multiples=multiples, nonmultiples=nonmultiples, excluded=excluded)


def string_facts(branch: Branch) -> tuple[int, int | None, Regular]:
    """Least and most characters of a branch's strings, and the language they are in."""
    least, most = 0, None
    languages = []
    for one in branch:
        value: Any = one.value
        if one.name == "length":
            least = max(least, value[0])
            most = value[1] if most is None else most if value[1] is None else min(most, value[1])
        elif one.name == "language":
            languages.append(value)
    return least, most, both(*languages)


def _texts_of(one: Fact) -> tuple[str, ...]:
    value: Any = one.value
    return tuple(value)


def _spread(node: Node) -> tuple[Node, ...]:
    """The options of a choice, so that unions stay flat."""
    return node.options if isinstance(node, Choice) else (node,)


def _plain(value: str) -> str:
    """A constant's text, the same for 1 and 1.0."""
    known = json.loads(value)
    return str(int(known)) if isinstance(known, float) and known.is_integer() else value


def shape_of(schema: JsonSchema) -> Node:
    """The shape of a schema's documents, made anew and settled."""
    return schema.shape()
