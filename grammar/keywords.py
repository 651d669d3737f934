"""What each keyword says, as branches: of what it admits, or of what it does not (``positive`` False)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from . import combinations
from .document import pointer_of
from .ecma import PatternError
from .facts import ANY, Branches, Fact, Items, Members, Part, Refused, fact, forbidden, required, type_of
from .formats import FORMATS, STANDARD_FORMATS
from .numbers import NumberError, decimal
from .pattern import searched, whole_match
from .regular import ANY_CHAR, Regular, both, never, repeat, text
from .regular import either as any_of

if TYPE_CHECKING:
    from .branches import Reader

Keyword = Callable[["Reader", str, dict[str, Any], str, bool], Branches]

_TRUE: Final[Branches] = ((),)
_FALSE: Final[Branches] = ()


def _truth(holds: bool) -> Branches:
    return _TRUE if holds else _FALSE


def _union(*options: Branches) -> Branches:
    return tuple(dict.fromkeys(branch for option in options for branch in option))


def _type(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    names = schema["type"]
    names = {names} if isinstance(names, str) else set(names)
    if kind == "number" and "integer" in names and "number" not in names:
        return fact("integer" if positive else "fractional")
    return _truth((kind in names) is positive)


def _enum(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    return _among(schema["enum"], kind, positive)


def _const(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    return _among([schema["const"]], kind, positive)


def _among(listed: list[Any], kind: str, positive: bool) -> Branches:
    mine = [value for value in listed if type_of(value) == kind]
    if positive:
        return fact("values", tuple(json.dumps(value) for value in mine)) if mine else _FALSE
    if not mine:
        return _TRUE
    if kind == "number":
        return (tuple(Fact("excluded", _number(value)) for value in mine),)
    if kind == "string":
        return fact("language", never(any_of(*map(text, mine))))
    if kind == "boolean":
        left = [value for value in (False, True) if value not in mine]
        return fact("values", tuple(map(json.dumps, left))) if left else _FALSE
    if kind == "null":
        return _FALSE
    if any(mine):
        raise Refused("it excludes constants that are arrays or objects")
    return fact("count", (1, None))


def _number(value: Any) -> Fraction:
    try:
        return decimal(value)
    except NumberError as error:
        raise Refused(str(error)) from None


def _bound(low: bool, exclusive: bool) -> Keyword:
    name = ("exclusive" if exclusive else "") + ("M" if exclusive else "m") + ("inimum" if low else "aximum")
    other = "exclusive" + ("Minimum" if low else "Maximum")

    def read(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
        value = schema[name]
        if kind != "number" or isinstance(value, bool):
            return _truth(positive)
        is_open = exclusive or schema.get(other) is True  # draft 4 says by a boolean that the bound is open
        if positive:
            return fact("low" if low else "high", (_number(value), is_open))
        return fact("high" if low else "low", (_number(value), not is_open))

    return read


def _multiple_of(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    if kind != "number":
        return _truth(positive)
    return fact("multiple" if positive else "nonmultiple", abs(_number(schema["multipleOf"])))


def _size(kind_of_size: str, low: bool, fact_name: str) -> Keyword:
    def read(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
        if kind != kind_of_size:
            return _truth(positive)
        bound = int(schema[names[low]])
        if low is positive:
            return fact(fact_name, (bound if positive else bound + 1, None))
        return fact(fact_name, (0, bound if positive else bound - 1)) if positive or bound else _FALSE

    suffix = {"string": "Length", "array": "Items", "object": "Properties"}[kind_of_size]
    names = {True: "min" + suffix, False: "max" + suffix}
    return read


def _pattern(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    if kind != "string":
        return _truth(positive)
    language = _language_of(schema["pattern"])
    return fact("language", language if positive else never(language))


def _language_of(pattern: str) -> Regular:
    try:
        return searched(pattern)
    except PatternError as error:
        raise Refused(f"of {pattern!r}: {error}") from None


def _format(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    name = schema["format"]
    if kind != "string" or name not in STANDARD_FORMATS:
        return _truth(positive)
    if name not in FORMATS:
        raise Refused(f"the format {name!r} has no expression here")
    language = whole_match(FORMATS[name])
    return fact("language", language if positive else never(language))


def _items(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    """``prefixItems``, ``items`` and ``additionalItems`` at once, at the first of them."""
    here = [name for name in schema if name in ("prefixItems", "items", "additionalItems")]
    if kind != "array":
        return _truth(positive)
    first, rest = _item_places(reader.document.draft, schema)
    others = None if rest is None else Part(pointer + pointer_of(rest))
    rule = Items(tuple(Part(pointer + pointer_of(path)) for path in first), others)
    if positive:
        return ((Fact("items", rule),),)
    options: list[Branches] = []
    for index, part in enumerate(rule.first):
        places = Items((ANY,) * index + (Part(part.pointer, False),))
        options.append(((Fact("count", (index + 1, None)), Fact("items", places)),))
    if rule.rest is not None and rule.first:
        raise Refused(f"{here[-1]!r} behind items that stand for themselves")
    if rule.rest is not None:
        options.append(fact("contains", (Part(rule.rest.pointer, False), 1, None)))
    return _union(*options)


def _item_places(draft: int, schema: dict[str, Any]) -> tuple[list[tuple[Any, ...]], tuple[Any, ...] | None]:
    items = schema.get("items")
    if isinstance(items, list):
        rest = ("additionalItems",) if "additionalItems" in schema else None
        return [("items", index) for index in range(len(items))], rest
    prefix = schema.get("prefixItems", []) if draft >= 9 else []
    return [("prefixItems", index) for index in range(len(prefix))], ("items",) if "items" in schema else None


def _once(names: tuple[str, ...], read: Keyword) -> Mapping[str, Keyword]:
    """Keywords that are read together, at the first of them that is there."""

    def at(name: str) -> Keyword:
        def keyword(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
            first = next(key for key in schema if key in names)
            return read(reader, pointer, schema, kind, positive) if name == first else _truth(positive)

        return keyword

    return {name: at(name) for name in names}


def _contains(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    if kind != "array":
        return _truth(positive)
    part = Part(pointer + "/contains")
    least, most = 1, None
    if reader.document.draft >= 8:
        least, most = int(schema.get("minContains", 1)), schema.get("maxContains")
    if positive:
        return _counted(part, least, None if most is None else int(most))
    fewer = _counted(part, 0, least - 1) if least else _FALSE
    return _union(fewer, _FALSE if most is None else _counted(part, int(most) + 1, None))


def _counted(part: Part, least: int, most: int | None) -> Branches:
    if most is not None and least > most:
        return _FALSE
    if most == 0:
        return fact("items", Items((), Part(part.pointer, False)))
    return _TRUE if least == 0 and most is None else fact("contains", (part, least, most))


def _unique(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    if kind != "array" or schema["uniqueItems"] is False:
        return _truth(positive)
    if not positive:
        raise Refused("it asks for an item that is there twice")
    return fact("unique", pointer)


def _properties(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    """``properties``, ``patternProperties`` and ``additionalProperties`` at once, at the first of them."""
    if kind != "object":
        return _truth(positive)
    named = tuple((name, Part(pointer + pointer_of(("properties", name)))) for name in schema.get("properties", ()))
    patterns = _patterns(reader, pointer, schema, positive)
    rest = Part(pointer + "/additionalProperties") if "additionalProperties" in schema else None
    if positive:
        speaks = bool({"patternProperties", "additionalProperties", "unevaluatedProperties"} & set(schema))
        return ((Fact("members", Members(named, patterns, rest, "properties" in schema, speaks)),),)
    free = [part for _, part in patterns] + ([rest] if rest else [])
    if any(reader.document.at(part.pointer or "") not in (True, {}) for part in free):
        raise Refused("it asks for a member that is not listed")
    options = [
        ((required(name), Fact("members", Members(((name, Part(part.pointer, False)),)))),) for name, part in named
    ]
    return _union(*options)


def _patterns(reader: Reader, pointer: str, schema: dict[str, Any], positive: bool) -> tuple[tuple[Regular, Part], ...]:
    found = []
    for name in schema.get("patternProperties", ()):
        try:
            found.append((_language_of(name), Part(pointer + pointer_of(("patternProperties", name)))))
        except Refused as error:
            if not positive:
                raise
            reader.refuse(pointer, "patternProperties", str(error))
    return tuple(found)


def _required(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    names = schema["required"]
    if kind != "object" or isinstance(names, bool):
        return _truth(positive)
    if positive:
        return (tuple(required(name) for name in names),)
    return tuple((forbidden(name),) for name in names)


def _property_names(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    if kind != "object":
        return _truth(positive)
    names = any_of(*(_texts(branch) for branch in reader.part(Part(pointer + "/propertyNames"), "string")))
    if names == repeat(ANY_CHAR):
        return _truth(positive)
    if not positive:
        raise Refused("it asks for a member whose name is none of these")
    return fact("names", names)


def _texts(branch: tuple[Fact, ...]) -> Regular:
    """The texts that a branch about strings admits."""
    rules = [repeat(ANY_CHAR)]
    for one in branch:
        value: Any = one.value
        if one.name == "language":
            rules.append(value)
        elif one.name == "length":
            rules.append(repeat(ANY_CHAR, *value))
        elif one.name == "values":
            rules.append(any_of(*(text(json.loads(word)) for word in value)))
    return both(*rules)


def _dependent(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool, name: str) -> Branches:
    if kind != "object":
        return _truth(positive)
    found = _truth(positive)
    for member, demand in schema[name].items():
        if isinstance(demand, list):
            asked: Branches = (tuple(map(required, demand)),)
            missed: Branches = tuple((forbidden(other),) for other in demand)
        else:
            found_there = reader.part(Part(pointer + pointer_of((name, member)), positive), kind)
            asked, missed = (found_there, _FALSE) if positive else (_FALSE, found_there)
        here: Branches = ((required(member),),)
        if positive:
            found = reader.both(found, _union(((forbidden(member),),), reader.both(here, asked)))
        else:
            found = _union(found, reader.both(here, missed))
    return found


def _dependency(name: str) -> Keyword:
    return lambda reader, pointer, schema, kind, positive: _dependent(reader, pointer, schema, kind, positive, name)


def _bare(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    if positive:
        return _TRUE
    raise Refused("it would have to be turned around")


def _keywords() -> dict[str, Keyword]:
    return {
        "$ref": combinations.reference, "$dynamicRef": combinations.dynamic, "$recursiveRef": combinations.recursive,
        "type": _type, "const": _const, "enum": _enum,
        "minimum": _bound(True, False), "maximum": _bound(False, False),
        "exclusiveMinimum": _bound(True, True), "exclusiveMaximum": _bound(False, True), "multipleOf": _multiple_of,
        "minLength": _size("string", True, "length"), "maxLength": _size("string", False, "length"),
        "pattern": _pattern, "format": _format,
        "minItems": _size("array", True, "count"), "maxItems": _size("array", False, "count"),
        "contains": _contains, "uniqueItems": _unique, "unevaluatedItems": _bare,
        **_once(("prefixItems", "items", "additionalItems"), _items),
        "minProperties": _size("object", True, "count"), "maxProperties": _size("object", False, "count"),
        **_once(("properties", "patternProperties", "additionalProperties"), _properties),
        "required": _required, "propertyNames": _property_names, "unevaluatedProperties": _bare,
        "dependentRequired": _dependency("dependentRequired"), "dependencies": _dependency("dependencies"),
        "dependentSchemas": _dependency("dependentSchemas"),
        "allOf": combinations.all_of, "anyOf": combinations.any_of, "oneOf": combinations.one_of,
        "not": combinations.negation, "if": combinations.conditional,
    }  # fmt: skip


KEYWORDS: Final[Mapping[str, Keyword]] = _keywords()
