"""The same type in, a validated object out."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import typing
from typing import Any

import outlines.types
import pydantic
import pytest

from mmspec_agent.core.errors import OutputInvalid, OutputTypeError, SchemaError
from mmspec_agent.grammar.types import output_type
from mmspec_agent.grammar.vocabulary import Vocabulary


class Line(pydantic.BaseModel):
    item: str
    amount: float = pydantic.Field(ge=0)


class Invoice(pydantic.BaseModel):
    number: int
    when: datetime.date
    lines: list[Line] = []
    note: str | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: int = 3


class Options(typing.TypedDict):
    a: int
    b: typing.NotRequired[str]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


OPENAI = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (Point, '{"x": 1}', Point(1, 3)),
        (Options, '{"a": 1}', {"a": 1}),
        (Colour, '"blue"', Colour.BLUE),
        (typing.Literal["x", "y"], '"y"', "y"),
        (list[int], "[1, 2]", [1, 2]),
        (int | None, "null", None),
        (bool, "true", True),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": 4}', {"a": 4}),
        (OPENAI, "7", 7),
        ({"type": "json_object"}, "{}", {}),
        (outlines.types.Regex("[a-c]+"), "abc", "abc"),
        (outlines.types.CFG('start: "a" "b"'), "ab", "ab"),
        (outlines.types.JsonSchema('{"type": "integer"}'), "3", 3),
    ],
)
def test_types_compile_and_read_back(wanted: Any, text: str, value: Any, vocabulary: Vocabulary) -> None:
    kind = output_type(wanted)
    assert kind is not None
    plan = kind.compile(vocabulary)
    assert kind.parse(text) == value
    kind.parse(vocabulary.decode(plan.start).decode())


def test_models_come_back_as_models(vocabulary: Vocabulary) -> None:
    kind = output_type(Invoice)
    assert kind is not None
    text = '{"number": 3, "when": "2024-01-31", "lines": [{"item": "x", "amount": 0.5}], "note": null}'
    assert kind.parse(text) == Invoice(number=3, when=datetime.date(2024, 1, 31), lines=[Line(item="x", amount=0.5)])
    assert isinstance(kind.parse(vocabulary.decode(kind.compile(vocabulary).start).decode()), Invoice)


@pytest.mark.parametrize("wanted", [None, str, {"type": "text"}])
def test_plain_text_needs_no_grammar(wanted: Any) -> None:
    assert output_type(wanted) is None


@pytest.mark.parametrize("wanted", [5, "Invoice", lambda: 1, object()])
def test_what_is_no_type_is_refused_with_what_is_accepted(wanted: Any) -> None:
    with pytest.raises(OutputTypeError, match="pydantic models, dataclasses"):
        output_type(wanted)


def test_openai_shape_without_schema_is_an_error() -> None:
    with pytest.raises(SchemaError, match="json_schema"):
        output_type({"type": "json_schema", "json_schema": {"name": "n"}})


def test_a_cut_reply_says_so() -> None:
    kind = output_type(Point)
    assert kind is not None
    with pytest.raises(OutputInvalid, match="max_new_tokens"):
        kind.parse('{"x": 1')


def test_a_validator_of_the_model_has_the_last_word() -> None:
    class Even(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("odd")
            return n

    kind = output_type(Even)
    assert kind is not None
    with pytest.raises(OutputInvalid, match="odd"):
        kind.parse('{"n": 3}')
