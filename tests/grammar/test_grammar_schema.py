"""Schemas are taken as they mean or refused by place and name; nothing is relaxed in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmspec_agent.core.errors import OptionError, OutputInvalid, SchemaError, UnsupportedSchema
from mmspec_agent.grammar.plans import json_plan
from mmspec_agent.grammar.schema import normalise
from mmspec_agent.grammar.shape_build import shape_of
from mmspec_agent.grammar.vocabulary import Vocabulary


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (5, "dict or a bool"),
        ({"type": "strnig"}, "invalid at /type"),
        ({"properties": {"a": {"minimum": 5, "maximum": 3}}}, "/properties/a"),
        ({"minimum": 3, "exclusiveMaximum": 3}, "leaves nothing"),
        ({"minLength": 5, "maxLength": 3}, "minLength 5"),
        ({"enum": []}, "'enum'"),
        (False, "false"),
        ({"$ref": "#"}, "circle"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "circle"),
        ({"$ref": "https://example.com/x.json"}, "never fetched"),
        ({"$ref": "#/$defs/missing"}, "names nothing"),
        ({"enum": ["x" * 2_000_000]}, "bytes"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "impossible"),
    ],
)
def test_unusable_schemas_are_clear_errors(schema: Any, words: str) -> None:
    with pytest.raises(SchemaError) as error:
        normalise(schema)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"self": {"$ref": "#"}}, "required": ["self"]},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    ],
)
def test_schemas_without_a_finite_document_are_refused(schema: Any, vocabulary: Vocabulary) -> None:
    with pytest.raises(SchemaError, match="impossible"):
        json_plan(vocabulary, schema)


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(3000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(SchemaError):
        normalise(schema)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "array", "uniqueItems": True}, ("", "uniqueItems")),
        ({"properties": {"a": {"not": {"uniqueItems": True}}}}, ("/properties/a", "not")),
        ({"if": {"propertyNames": {"maxLength": 3}}, "then": {"required": ["a"]}}, ("", "if")),
        ({"properties": {"a": {"type": "string", "pattern": "^(a)\\1$"}}}, ("/properties/a", "pattern")),
        ({"properties": {"a": {"type": "string", "pattern": "(?<=h)ello$"}}}, ("/properties/a", "pattern")),
        ({"items": {"type": "string", "format": "idn-email"}}, ("/items", "format")),
        ({"oneOf": [{"uniqueItems": True}, {"items": {"enum": [1, 2]}}]}, ("", "oneOf")),
        ({"type": "object", "minProperties": 2}, ("", "minProperties")),
        ({"contains": {"type": "array", "contains": True, "uniqueItems": True}, "type": "array"}, ("", "contains")),
        ({"properties": {"a/b": {"patternProperties": {"(?<!x)y": {}}}}}, ("/properties/a~1b", "patternProperties")),
        ({"properties": {"a": {"type": "number", "multipleOf": 0.7}}}, ("/properties/a", "multipleOf")),
        ({"$defs": {"n": {"format": "iri"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}, ("/$defs/n", "format")),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_pointer_and_keyword(schema: Any, place: tuple[str, str]) -> None:
    with pytest.raises(UnsupportedSchema) as error:
        normalise(schema)
    assert place in error.value.unenforced
    assert place[1] in str(error.value)
    relaxed = normalise(schema, unsupported="validate")
    assert place in relaxed.unenforced


def test_relaxed_keywords_are_checked_afterwards() -> None:
    schema = normalise({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, unsupported="validate")
    schema.check([1, 2])
    with pytest.raises(OutputInvalid, match="uniqueItems"):
        schema.check([1, 1])


def test_objects_close_unless_the_schema_speaks() -> None:
    listed = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert normalise(listed).schema["additionalProperties"] is False  # type: ignore[index]
    assert "additionalProperties" not in normalise({"type": "object"}).schema  # type: ignore[operator]
    open_object = {**listed, "additionalProperties": True}
    assert normalise(open_object).schema["additionalProperties"] is True  # type: ignore[index]
    assert shape_of(normalise(listed)).read(b'{"b', 0).tail is None
    assert shape_of(normalise(listed, close_objects=False)).read(b'{"b', 0).tail is not None


def test_siblings_of_a_reference_and_all_of_are_intersected() -> None:
    schema = {
        "$defs": {"pos": {"type": "integer", "minimum": 1}},
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/pos", "maximum": 9}, "m": {"allOf": [{"$ref": "#/$defs/pos"}]}},
    }
    ready: Any = normalise(schema).schema
    assert ready["properties"]["n"] == {"maximum": 9, "type": "integer", "minimum": 1}


def test_draft_7_tuples_and_references() -> None:
    draft7 = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"n": {"type": "integer"}},
        "items": [{"$ref": "#/definitions/n", "maximum": 3}, {"type": "string"}],
        "additionalItems": False,
    }
    ready: Any = normalise(draft7).schema
    assert ready["prefixItems"][0] == {"$ref": "#/definitions/n"}  # in draft 7 a reference stands alone
    assert ready["items"] is False


def test_the_users_schema_is_left_alone() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}}
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    before = json.dumps(schema)
    normalise(schema)
    assert json.dumps(schema) == before


def test_unknown_options_name_what_is_accepted() -> None:
    with pytest.raises(OptionError, match="spaced, compact"):
        normalise({}, separators="wide")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="refuse, validate"):
        normalise({}, unsupported="ignore")  # type: ignore[arg-type]
