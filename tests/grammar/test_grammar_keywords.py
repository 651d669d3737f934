"""Every keyword by example: what the grammar accepts fits the schema, and what should be writable is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmspec_agent.grammar.schema import normalise

from .byte_engine import accepting

S: dict[str, Any] = {"type": "string"}
CAT = {"type": "object", "properties": {"kind": {"const": "cat", "default": "cat"}, "lives": {"type": "integer"}}}
DOG = {"type": "object", "properties": {"kind": {"const": "dog", "default": "dog"}, "name": S}}
PETS = {"$defs": {"Cat": CAT, "Dog": DOG}, "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"

# (schema, texts that can be written, texts that cannot)
TABLE: list[tuple[Any, list[str], list[str]]] = [
    # numbers of any size
    ({"enum": [175928847299117063]}, ["175928847299117063"], ["175928847299117056", "175928847299117064"]),
    ({"const": 2**70}, [str(2**70)], [str(2**70 + 1)]),
    (
        {"type": "integer", "minimum": 5, "maximum": 123456789012345678},
        ["123456789012345678", "5"],
        ["123456789012345679", "123456789012345680", "4"],
    ),
    (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        [str(2**63 - 1), str(-(2**63))],
        [str(2**63), str(-(2**63) - 1)],
    ),
    ({"type": "integer", "exclusiveMinimum": 2**64}, [str(2**64 + 1)], [str(2**64), str(2**53)]),
    ({"type": "number", "minimum": 1e22, "maximum": 1e23}, ["10000000000000000000000"], ["9999999999999999999999"]),
    # decimals
    ({"type": "number", "multipleOf": 0.01}, ["19.99", "0.1", "7", "-3.5"], ["19.999", "0.001"]),
    ({"type": "number", "multipleOf": 2.5}, ["2.5", "5", "7.50", "0"], ["3", "2.6"]),
    ({"type": "number", "multipleOf": 1e-6, "minimum": 0}, ["0.000001", "1.5"], ["0.0000001", "-1"]),
    ({"type": "integer", "multipleOf": 7}, ["14", "0", "-7"], ["15"]),
    ({"type": "number", "minimum": 0, "maximum": 0.15}, ["0.1", "0.10", "0.15", "0.150", "0", "-0"], ["0.16", "-0.1"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.5", "0.001"], ["0", "0.0", "-0", "0.51"]),
    ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, ["-0.5", "-0.1"], ["0", "-0", "-0.6"]),
    (
        {"$schema": DRAFT_4, "minimum": 5, "exclusiveMaximum": True, "maximum": 10, "type": "integer"},
        ["5", "9"],
        ["10"],
    ),
    ({"minimum": 5, "exclusiveMinimum": True, "type": "integer"}, ["6"], ["5"]),
    # nothing to enforce
    ({"type": "object", "propertyNames": S, "additionalProperties": S}, ['{"a": "b"}'], []),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[1]", "[]"], ["[1, 2]"]),
    ({"type": "object", "minProperties": 0, "dependentRequired": {}}, ["{}", '{"a": 1}'], []),
    ({"type": "array", "minItems": 0, "contains": {"type": "null"}, "minContains": 0}, ["[]", "[1]"], []),
    ({"not": False}, ["1"], []),
    # keys beside a reference or a union that say nothing
    (
        {**PETS, "discriminator": {"propertyName": "kind"}, "x-more": 1},
        ['{"kind": "cat", "lives": 3}', '{"kind": "dog", "name": "Rex"}'],
        ['{"kind": "cat", "other": 1}', '{"kind": "cat", "name": "x"}'],
    ),
    (
        {"$defs": PETS["$defs"], "$ref": "#/$defs/Cat", "description": "a cat", "deprecated": True},
        ['{"lives": 1}'],
        ['{"other": 1}'],
    ),
    ({"type": "object", "anyOf": [CAT, DOG]}, ['{"lives": 1}'], ["3", '{"other": 1}']),
    # required names without a property
    ({"properties": {"a": S}, "required": ["a", "b"], "type": "object"}, ['{"a": "x", "b": [1]}'], ['{"a": "x"}']),
    ({"required": ["b"], "additionalProperties": {"type": "integer"}, "type": "object"}, ['{"b": 1}'], ['{"b": "x"}']),
    # alternatives that exclude each other
    ({"$defs": {"o": {"type": "object"}}, "oneOf": [{"type": "null"}, {"$ref": "#/$defs/o"}]}, ["null", "{}"], ["1"]),
    ({"oneOf": [{"const": 1}, {"const": 2}]}, ["1", "2"], ["3"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["1.5"], ["1", "1.0"]),
    ({"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]}, ["2", "6"], ["3", "4", "5"]),
    (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a": 1}', '{"b": 1}'],
        ["{}", '{"a": 1, "b": 1}'],
    ),
    # patterns
    ({"type": "string", "pattern": r"^\p{L}+$"}, ['"né"'], ['"n1"']),
    ({"type": "string", "pattern": r"^(?<y>\d{4})$"}, ['"2024"'], ['"202"']),
    ({"type": "string", "pattern": r"^(?=.*\d)\w+$"}, ['"a1"', '"1a"'], ['"a"']),
    ({"type": "string", "pattern": "^[a-z&&[^b]]$"}, ['"b]"', '"&]"'], ['"a"', '"b"']),
    ({"type": "string", "pattern": r"^a.b$"}, ['"a\\"b"', '"a\\\\b"'], ['"a\\nb"']),
    ({"type": "string", "pattern": "^a", "maxLength": 2, "minLength": 2}, ['"ab"'], ['"a"', '"abc"']),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"}, ['"xbya"'], ['"a"']),
    # not
    ({"not": {"type": "null"}}, ["1", '"x"'], ["null"]),
    ({"type": "integer", "not": {"const": 5}}, ["4", "55"], ["5"]),
    ({"type": "string", "not": {"enum": ["a", "b"]}}, ['"c"', '"ab"'], ['"a"', '"b"']),
    ({"type": "string", "not": {"pattern": "^x"}}, ['"ax"', '""'], ['"x"', '"xa"']),
    ({"type": "number", "not": {"minimum": 3}}, ["2.9"], ["3"]),
    ({"type": "object", "not": {"required": ["a"]}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    (
        {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}},
            "not": {"properties": {"a": {"const": 1}}, "required": ["a"]},
        },
        ['{"a": 2}', "{}"],
        ['{"a": 1}'],
    ),
    # conditions
    (
        {
            "type": "object",
            "properties": {"k": {"enum": ["a", "b"]}, "n": {"type": "integer"}},
            "required": ["k"],
            "if": {"properties": {"k": {"const": "a"}}},
            "then": {"required": ["n"]},
        },
        ['{"k": "a", "n": 1}', '{"k": "b"}'],
        ['{"k": "a"}'],
    ),
    ({"if": {"type": "integer"}, "then": {"minimum": 3}, "else": S}, ["3", '"x"'], ["2", "null"]),
    (
        {"type": "object", "properties": {"a": S, "b": S}, "dependentRequired": {"a": ["b"]}},
        ['{"b": "x"}', '{"a": "x", "b": "x"}'],
        ['{"a": "x"}'],
    ),
    ({"type": "object", "properties": {"a": S, "b": S}, "dependencies": {"a": ["b"]}}, ["{}"], ['{"a": "x"}']),
    (
        {
            "type": "object",
            "properties": {"a": S, "b": S},
            "dependentSchemas": {"a": {"properties": {"b": {"const": "1"}}}},
        },
        ['{"a": "x", "b": "1"}', '{"b": "2"}'],
        ['{"a": "x", "b": "2"}'],
    ),
    # names and counts
    ({"type": "object", "propertyNames": {"pattern": "^x_"}}, ['{"x_a": 1}', "{}"], ['{"a": 1}']),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, ['{"a": 1}'], ['{"c": 1}']),
    (
        {"type": "object", "properties": {"a": S, "b": S, "c": S}, "minProperties": 2},
        ['{"a": "", "c": ""}'],
        ['{"a": ""}'],
    ),
    (
        {"type": "object", "properties": {"a": S, "b": S, "c": S}, "maxProperties": 1},
        ['{"b": ""}', "{}"],
        ['{"a": "", "b": ""}'],
    ),
    (
        {
            "type": "object",
            "patternProperties": {"^n": {"type": "integer"}, "z$": {"minimum": 3}},
            "additionalProperties": False,
        },
        ['{"n": 1, "nz": 4}', '{"z": "x"}'],
        ['{"nz": 1}', '{"n": "x"}', '{"a": 1}'],
    ),
    # items
    (
        {"type": "array", "items": {"enum": ["a", "b", 1, 1.0]}, "uniqueItems": True},
        ['["b", "a", 1]', "[]"],
        ['["a", "a"]', "[1, 1.0]"],
    ),
    ({"type": "array", "items": {"enum": ["a", "b"]}, "contains": {"const": "a"}}, ['["b", "a"]'], ['["b"]', "[]"]),
    ({"type": "array", "contains": {"type": "integer"}, "maxContains": 1}, ['["x", 1]'], ["[1, 2]", "[]"]),
    (
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": S, "maxItems": 2},
        ["[]", "[1]", '[1, "x"]'],
        ['["x"]', '[1, "x", "y"]'],
    ),
    (
        {"type": "array", "items": [{"type": "integer"}, S], "additionalItems": False},
        ["[]", '[1, "x"]'],
        ['[1, "x", 2]'],
    ),
    # what intersections and evaluated members add up to
    (
        {"allOf": [{"type": "object", "properties": {"a": S}}, {"properties": {"b": S}}]},
        ['{"a": "", "b": ""}'],
        ['{"a": "", "c": 1}', "3"],
    ),
    (
        {
            "$defs": {"base": {"type": "object", "properties": {"a": S}}},
            "$ref": "#/$defs/base",
            "properties": {"b": S},
            "unevaluatedProperties": False,
        },
        ['{"a": "", "b": ""}', '{"b": ""}'],
        ['{"c": 1}'],
    ),
    ({"$id": "https://example.com/s", "$defs": {"n": {"$id": "n", "type": "integer"}}, "$ref": "n"}, ["1"], ['"x"']),
]


@pytest.mark.parametrize("case", TABLE, ids=[json.dumps(case[0])[:70] for case in TABLE])
def test_keywords_by_example(case: tuple[Any, list[str], list[str]]) -> None:
    schema, writable, others = case
    ready = normalise(schema)
    accepts = accepting(ready.rules("start"))
    assert [text for text in writable if not accepts(reordered(ready.rules("start"), text, accepts))] == []
    assert [text for text in others if accepts(text)] == []
    for text in writable:
        ready.check_text(text)


def reordered(rules: str, text: str, accepts: Any) -> str:
    """``text``, or the same object with its members in an order the grammar writes."""
    value = json.loads(text)
    if accepts(text) or not isinstance(value, dict):
        return text
    other = json.dumps(dict(reversed(value.items())), ensure_ascii=False)
    return other if accepts(other) else text
