"""Random schemas: what the grammar accepts is valid, what it refuses is said, and nothing crashes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

from mmspec_agent.core.errors import OutputInvalid, SchemaError, UnsupportedSchema
from mmspec_agent.grammar.schema import normalise

from .byte_engine import accepting
from .random_schema import Draw


def orders(value: Any) -> list[str]:
    """A value's texts, by the order of its members."""
    if isinstance(value, list):
        parts = [orders(one) for one in value]
        return ["[" + ", ".join(some) + "]" for some in itertools.product(*parts)]
    if not isinstance(value, dict):
        return [json.dumps(value)]
    texts = []
    for names in itertools.permutations(value):
        for some in itertools.product(*(orders(value[name]) for name in names)):
            texts.append("{" + ", ".join(f'"{n}": {text}' for n, text in zip(names, some, strict=True)) + "}")
    return texts


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 40), (2, 40), *(pytest.param(s, 150, marks=pytest.mark.slow) for s in (3, 4))]
)
def test_random_schemas_accept_valid_documents_only(seed: int, count: int) -> None:
    draw = Draw(seed)
    accepted = refused = 0
    for _ in range(count):
        schema = draw.document()
        valid = jsonschema.Draft202012Validator(schema).is_valid
        values = [draw.value() for _ in range(20)]
        try:
            ready = normalise(schema, close_objects=False)
        except UnsupportedSchema:
            refused += 1
            continue
        except SchemaError:
            assert not any(map(valid, values)), schema  # impossible
            continue
        accepts = accepting(ready.rules("start"))
        for value in values:
            texts = [text for text in orders(value)[:30] if accepts(text)]
            assert valid(value) or not texts, (schema, value)
            assert texts or not valid(value) or isinstance(value, (list, dict)), (schema, value)
            accepted += bool(texts)
            checked(ready, value, valid(value))
    assert accepted > count
    assert refused < count // 4


def checked(ready: Any, value: Any, valid: bool) -> None:
    """The check of finished documents agrees with the plain validator."""
    if valid:
        ready.check(value)
        return
    with pytest.raises(OutputInvalid, match="fault of mmspec_agent"):
        ready.check(value)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"multipleOf": 0.01}, ["19.99", "0.07", "1e2"], ["0.001"]),
        ({"maximum": 123456789012345678}, ["123456789012345678"], ["123456789012345679", "1e400"]),
        ({"enum": [175928847299117063, "x"]}, ["175928847299117063"], ["175928847299117056"]),
        ({"const": 1}, ["1", "1.0", "1e0"], ["true", "1.0000000000000000001"]),
        ({"const": [False]}, ["[false]"], ["[0]"]),
        ({"type": "integer"}, ["1.0", "1e3"], ["1.5", "9007199254740993.5"]),
        ({"uniqueItems": True}, ["[1, true]"], ["[1, 1.0]", '[{"a": 0}, {"a": 0.0}]']),
        ({"exclusiveMaximum": 0.3}, ["0.29999999999999999999"], ["0.3", "0.30"]),
        ({"pattern": r"^\d+$"}, ['"12"'], ['"１２"']),
        ({"additionalProperties": False, "patternProperties": {r"^\p{Lu}$": True}}, ['{"É": 1}'], ['{"é": 1}']),
        ({"pattern": r"^(.)\1$"}, ['"aa"'], ['"ab"']),
    ],
)  # fmt: skip
def test_documents_are_checked_exactly(schema: Any, right: list[str], wrong: list[str]) -> None:
    ready = normalise(schema, unsupported="validate")
    for text in right:
        ready.check_text(text)
    for text in wrong:
        with pytest.raises(OutputInvalid):
            ready.check_text(text)
