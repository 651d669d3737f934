"""Errors speak the words of the schema's author: the keyword, a pointer that exists, and nothing of ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from mmspec_agent.core.errors import SchemaError, UnsupportedSchema
from mmspec_agent.grammar.document import at_pointer
from mmspec_agent.grammar.schema import normalise

INTERNALS = re.compile(
    r"coerce_one_of|llguidance|[Ll]ark|x-guidance|lexeme|derivative|automaton|_\w+_|Traceback|NoneType|object at 0x"
    r"|bound its recursion|RecursionError|lookahead|grammar\.|Branch|Regular|Unwritable"
)

# (schema, keyword that has to be named)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"type": "strnig"}, "strnig"),
    ({"minimum": "3"}, "'3'"),
    ({"minimum": 5, "maximum": 3}, "minimum"),
    ({"type": "integer", "exclusiveMinimum": 3, "maximum": 3}, "exclusiveMinimum"),
    ({"minLength": 5, "maxLength": 3}, "minLength"),
    ({"enum": []}, "enum"),
    ({"type": "string", "pattern": "(a"}, "pattern"),
    ({"type": "string", "pattern": r"(a)\1"}, "pattern"),
    ({"type": "string", "pattern": "(?<=a)b"}, "pattern"),
    ({"type": "string", "pattern": "(?i)a"}, "pattern"),
    ({"type": "object", "patternProperties": {"(?<!a)b": True}}, "patternProperties"),
    ({"type": "string", "format": "idn-email"}, "format"),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
    ({"type": "object", "minProperties": 3}, "minProperties"),
    ({"type": "number", "multipleOf": 0.7}, "multipleOf"),
    ({"type": "number", "multipleOf": 123456789}, "multipleOf"),
    ({"not": {"type": "array", "uniqueItems": True}}, "not"),
    ({"type": "object", "not": {"additionalProperties": {"type": "integer"}}}, "not"),
    ({"type": "object", "if": {"propertyNames": {"maxLength": 2}}, "then": {"required": ["a"]}}, "if"),
    ({"oneOf": [{"type": "array", "uniqueItems": True}, {"type": "array", "items": {"type": "string"}}]}, "oneOf"),
    ({"allOf": [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(30)]} for i in range(3)]}, "allOf"),
    ({"$ref": "https://example.com/other.json"}, "$ref"),
    ({"$ref": "#/$defs/nowhere"}, "$ref"),
    ({"type": "object", "properties": {"z": False}, "required": ["z"]}, "impossible"),
]  # fmt: skip

WRAPPERS: list[Callable[[dict[str, Any]], dict[str, Any]]] = [
    lambda bad: bad,
    lambda bad: {"type": "object", "properties": {"a/b": bad}, "required": ["a/b"]},
    lambda bad: {"type": "array", "items": bad, "minItems": 1},
    lambda bad: {"$defs": {"x y": bad}, "type": "array", "items": {"$ref": "#/$defs/x%20y"}, "minItems": 1},
    lambda bad: {"allOf": [{"title": "t"}, bad]},
]


@pytest.mark.parametrize("wrap", range(len(WRAPPERS)))
@pytest.mark.parametrize("case", BAD, ids=[str(schema)[:50] for schema, _ in BAD])
def test_errors_name_keyword_and_place(case: tuple[dict[str, Any], str], wrap: int) -> None:
    schema, keyword = case
    given = WRAPPERS[wrap](schema)
    with pytest.raises(SchemaError) as raised:
        normalise(given)
    text = str(raised.value)
    assert keyword in text
    assert INTERNALS.search(text) is None, text
    places = re.findall(r"(?<= at )(/[^ :(;]*(?: y[^ :(;]*)?|the root)", text)
    assert places, text
    for place in places:
        at_pointer(given, "" if place == "the root" else place.rstrip("."))
    if isinstance(raised.value, UnsupportedSchema):
        for pointer, name in raised.value.unenforced:
            assert name in at_pointer(given, pointer)


def test_nesting_limits_are_named_as_such() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(400):
        deep = {"oneOf": [{"type": "null"}, {"type": "array", "items": deep}]}
    with pytest.raises(SchemaError, match="nested too deeply"):
        normalise(deep)


def test_one_thing_that_is_not_enforced_leaves_the_rest() -> None:
    person = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "format": "iri"}},
              "required": ["a", "b"]}  # fmt: skip
    schema = {"$defs": {"p": person}, "type": "array", "items": {"$ref": "#/$defs/p"}}
    relaxed = normalise(schema, unsupported="validate")
    assert [tuple(place) for place in relaxed.unenforced] == [("/$defs/p/properties/b", "format")]
    assert relaxed.shape().read(b'[{"a": "', 0).tail is None
    both = {"oneOf": [{"type": "array", "uniqueItems": True}, {"type": "array", "items": {"type": "string"}}]}
    union = normalise({"$defs": {"u": both}, "$ref": "#/$defs/u"}, unsupported="validate")
    assert ("/$defs/u", "oneOf") in [tuple(place) for place in union.unenforced]
    assert union.shape().read(b"3", 0).tail is None
