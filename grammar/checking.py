"""Finished documents against the schema as it was given, by exact arithmetic.

Numbers are compared as the decimals they are written as, patterns are those of ECMA-262, and values are equal as
JSON holds them to be: 1 and 1.0 are, 1 and true are not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

import jsonschema
import referencing
import regex  # type: ignore[import-untyped]
from jsonschema.protocols import Validator

from .document import Document
from .facts import Part
from .numbers import decimal
from .regex import Automaton

_CLASSES: Final[Mapping[int, type[Validator]]] = {
    3: jsonschema.Draft3Validator, 4: jsonschema.Draft4Validator, 6: jsonschema.Draft6Validator,
    7: jsonschema.Draft7Validator, 8: jsonschema.Draft201909Validator, 9: jsonschema.Draft202012Validator,
}  # fmt: skip
Errors = Iterator[jsonschema.ValidationError]


def validator_class(draft: int) -> type[Validator]:
    """The jsonschema class of a dialect, with exact arithmetic and equality."""
    base = _CLASSES[draft]
    types = base.TYPE_CHECKER.redefine_many({"number": _is_number, "integer": _is_integer})
    known = {name: check for name, check in _exact().items() if name in base.VALIDATORS}
    extend: Any = jsonschema.validators.extend
    made: type[Validator] = extend(base, known, type_checker=types)
    return made


class Checker:
    """Checks values of one document."""

    def __init__(self, document: Document) -> None:
        self.document = document

    @cached_property
    def _validator(self) -> Any:
        return validator_class(self.document.draft)(self.document.root, registry=referencing.Registry())

    def first_error(self, value: Any) -> jsonschema.ValidationError | None:
        """The most telling thing that is wrong with a value; None if it fits."""
        found: jsonschema.ValidationError | None = jsonschema.exceptions.best_match(
            self._validator.iter_errors(exact(value))
        )
        return found

    def fits(self, value: Any, goal: Iterable[Part]) -> bool:
        """Whether a value fits all subschemas of a goal."""
        value = exact(value)
        return all(self._fits(value, part) for part in goal)

    def _fits(self, value: Any, part: Part) -> bool:
        if part.pointer is None:
            return part.positive
        reference = {"$ref": "#" + quote(part.pointer)} if part.pointer else self.document.root
        return any(True for _ in self._validator.descend(value, reference)) is not part.positive


def exact(value: Any) -> Any:
    """A value with decimals in place of floats."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, list):
        return [exact(one) for one in value]
    return {key: exact(one) for key, one in value.items()} if isinstance(value, dict) else value


def loads(text: str) -> Any:
    """JSON with decimals in place of floats. Raises ValueError."""
    return json.loads(text, parse_float=Decimal)


def equal(left: Any, right: Any) -> bool:
    """Equality of JSON values."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if _is_number(None, left) and _is_number(None, right):
        return bool(exact(left) == exact(right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(value, right[key]) for key, value in left.items())
    return type(left) is type(right) and bool(left == right)


def _is_number(_: Any, value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _is_integer(_: Any, value: Any) -> bool:
    if not _is_number(_, value):
        return False
    return isinstance(value, int) or exact(value) == exact(value).to_integral_value()


def _error(text: str) -> Errors:
    yield jsonschema.ValidationError(text)


def _compared(name: str, holds: Callable[[Any, Any], bool], words: str) -> Callable[..., Errors]:
    def check(validator: Any, bound: Any, value: Any, schema: Any) -> Errors:
        if isinstance(bound, bool) or not validator.is_type(value, "number"):
            return
        is_open = schema.get("exclusive" + name[0].upper() + name[1:]) is True
        if not holds(exact(value), exact(bound)) or (is_open and exact(value) == exact(bound)):
            yield from _error(f"{value} is {words} {bound}")

    return check


def _multiple_of(validator: Any, step: Any, value: Any, schema: Any) -> Errors:
    if validator.is_type(value, "number") and (Fraction(exact(value)) / decimal(step)).denominator > 1:
        yield from _error(f"{value} is not a multiple of {step}")


def _enum(validator: Any, values: Any, value: Any, schema: Any) -> Errors:
    if not any(equal(value, one) for one in values):
        yield from _error(f"{value!r} is not one of {values!r:.200}")


def _const(validator: Any, constant: Any, value: Any, schema: Any) -> Errors:
    if not equal(value, constant):
        yield from _error(f"{constant!r:.200} was expected")


def _unique(validator: Any, is_asked: Any, value: Any, schema: Any) -> Errors:
    if is_asked and validator.is_type(value, "array"):
        for index, one in enumerate(value):
            if any(equal(one, other) for other in value[:index]):
                yield from _error(f"{value!r:.200} has non-unique elements")
                return


def matches(pattern: str, text: str) -> bool | None:
    """Whether a pattern of ECMA-262 is found in a text; None where it cannot be read.

    What is no regular language (backreferences, look-behind) is left to a backtracking matcher.
    """
    automaton = Automaton.of(pattern, True)
    if automaton is not None:
        return automaton.matches(text)
    try:
        return regex.search(pattern, text, flags=regex.ASCII | regex.VERSION0) is not None
    except regex.error:
        return None


def _pattern(validator: Any, pattern: Any, value: Any, schema: Any) -> Errors:
    if validator.is_type(value, "string") and matches(pattern, value) is False:
        yield from _error(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, schema: Any) -> Errors:
    if validator.is_type(value, "object"):
        for pattern, sub in patterns.items():
            for name, member in value.items():
                if matches(pattern, name):
                    yield from validator.descend(member, sub, path=name, schema_path=pattern)


def _additional(validator: Any, sub: Any, value: Any, schema: Any) -> Errors:
    if not validator.is_type(value, "object"):
        return
    for name, member in value.items():
        known = name in schema.get("properties", {})
        if known or any(matches(pattern, name) for pattern in schema.get("patternProperties", {})):
            continue
        if sub is False:
            yield from _error(f"additional property {name!r} was unexpected")
        elif isinstance(sub, dict):
            yield from validator.descend(member, sub, path=name)


def _exact() -> dict[str, Callable[..., Errors]]:
    return {
        "minimum": _compared("minimum", lambda value, bound: value >= bound, "less than the minimum of"),
        "maximum": _compared("maximum", lambda value, bound: value <= bound, "greater than the maximum of"),
        "exclusiveMinimum": _above,
        "exclusiveMaximum": _below,
        "multipleOf": _multiple_of, "enum": _enum, "const": _const, "uniqueItems": _unique,
        "pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _additional,
    }  # fmt: skip


def _above(validator: Any, bound: Any, value: Any, schema: Any) -> Errors:
    if not isinstance(bound, bool) and validator.is_type(value, "number") and not exact(value) > exact(bound):
        yield from _error(f"{value} is less than or equal to the minimum of {bound}")


def _below(validator: Any, bound: Any, value: Any, schema: Any) -> Errors:
    if not isinstance(bound, bool) and validator.is_type(value, "number") and not exact(value) < exact(bound):
        yield from _error(f"{value} is greater than or equal to the maximum of {bound}")
