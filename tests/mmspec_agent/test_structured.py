"""Answers in a form, through the whole engine: what was asked for comes back, whatever random weights want."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable
from typing import Any, Literal, TypedDict

import outlines.types as terms
import pydantic
import pytest

from mmspec_agent.bench.closing import random_engine
from mmspec_agent.bench.forward_clock import ForwardClock
from mmspec_agent.core.compliance import ComplianceProcessor
from mmspec_agent.core.errors import (
    ConstraintError,
    OptionError,
    OutputTypeError,
    SchemaError,
    ToolError,
    UnsupportedSchema,
)
from mmspec_agent.engine import Engine
from mmspec_agent.reply import Done, Reply, TextPiece

REFUSAL = "No."


class Person(pydantic.BaseModel):
    """Asked for as a pydantic model."""

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=130)
    tags: list[str] = pydantic.Field(max_length=2)


@dataclasses.dataclass
class Point:
    """Asked for as a dataclass."""

    x: int
    label: Literal["a", "b"]


class Movie(TypedDict):
    """Asked for as a TypedDict."""

    title: str
    year: int


class Colour(enum.Enum):
    """Asked for as an Enum."""

    RED = "red"
    GREEN = "green"


PERSON: dict[str, Any] = Person.model_json_schema()


@pytest.fixture(scope="module")
def engine() -> Engine:
    return random_engine(3)


def ask(engine: Engine, wanted: Any, **options: Any) -> Reply:
    return engine.chat("Answer.", response_format=wanted, **{"max_new_tokens": 90, **options})


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (Person, lambda v: isinstance(v, Person)),
        (Point, lambda v: isinstance(v, Point) and v.label in ("a", "b")),
        (Movie, lambda v: set(v) == {"title", "year"} and isinstance(v["year"], int)),
        (Colour, lambda v: v in Colour),
        (Literal["yes", "no"], lambda v: v in ("yes", "no")),
        (list[bool], lambda v: all(isinstance(item, bool) for item in v)),
        (PERSON, lambda v: Person.model_validate(v) is not None),
        ({"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}, lambda v: Person(**v) is not None),
        ({"type": "json_object"}, lambda v: isinstance(v, dict)),
        ({"type": "regex", "pattern": "[ab]{3}-[0-9]+"}, lambda v: v[3] == "-" and v[4:].isdigit()),
        ({"type": "lark", "grammar": 'start: "x" ("," "x")*'}, lambda v: set(v.split(",")) == {"x"}),
        (terms.Regex("[0-9]{2}:[0-9]{2}"), lambda v: len(v) == 5 and v[2] == ":"),
        (terms.Choice(["left", "right"]), lambda v: v in ("left", "right")),
        (terms.JsonSchema(PERSON), lambda v: Person(**v) is not None),
        (terms.CFG('start: "y"+'), lambda v: set(v) == {"y"}),
    ],
)
def test_same_type_in_validated_object_out(engine: Engine, wanted: Any, fits: Callable[[Any], bool]) -> None:
    for temperature, seed in ((0.0, 0), (2.0, 1)):
        reply = ask(engine, wanted, temperature=temperature, seed=seed)
        assert reply.parsed is not None, reply.notes
        assert fits(reply.parsed), reply.text


@pytest.mark.parametrize("wanted", [None, str, {"type": "text"}])
def test_plain_text_is_no_form(engine: Engine, wanted: Any) -> None:
    assert ask(engine, wanted, max_new_tokens=8).token_ids == engine.chat("Answer.", max_new_tokens=8).token_ids


@pytest.mark.parametrize("style", ["spaced", "compact"])
def test_json_style(engine: Engine, style: str) -> None:
    reply = ask(engine, Movie, json_style=style)
    separators = (",", ":") if style == "compact" else (", ", ": ")
    assert reply.text.startswith('{"title"' + separators[1])
    assert json.loads(reply.text) == reply.parsed


def test_what_is_not_enforced_is_refused_or_listed_and_checked(engine: Engine) -> None:
    five = {"type": "integer", "minimum": 5, "maximum": 5}
    schema = {"type": "array", "items": five, "minItems": 2, "maxItems": 2, "uniqueItems": True}
    with pytest.raises(UnsupportedSchema, match="uniqueItems"):
        ask(engine, schema)
    reply = ask(engine, schema, unsupported="validate")
    assert reply.notes["unenforced"] == [("", "uniqueItems")]
    assert reply.text == "[5, 5]"
    assert reply.parsed is None
    assert "5" in reply.notes["invalid"]


def test_a_type_that_rejects_its_own_schema_keeps_the_reply(engine: Engine) -> None:
    class Picky(pydantic.BaseModel):
        flag: bool

        @pydantic.field_validator("flag")
        @classmethod
        def never(cls, flag: bool) -> bool:
            raise ValueError("never good enough")

    reply = ask(engine, Picky)
    assert isinstance(json.loads(reply.text)["flag"], bool)
    assert reply.parsed is None
    assert "never good enough" in reply.notes["invalid"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"response_format": {"type": "nonsense"}}, SchemaError, "type"),
        ({"response_format": {"type": "integer", "minimum": 3, "maximum": 2}}, SchemaError, "impossible|minimum"),
        ({"response_format": {"enum": []}}, SchemaError, "enum"),
        ({"response_format": {"$ref": "https://example.com/s.json"}}, SchemaError, "example.com"),
        ({"response_format": {"$ref": "#/$defs/nowhere"}}, SchemaError, "nowhere"),
        (
            {"response_format": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
            SchemaError,
            "circle",
        ),
        ({"response_format": {"type": "regex", "pattern": "(("}}, SchemaError, "compile"),
        ({"response_format": {"type": "lark", "grammar": "begin: x"}}, SchemaError, "compile"),
        ({"response_format": {"description": "x" * 2_100_000}}, SchemaError, "large|MB|bytes|characters"),
        ({"response_format": 7}, OutputTypeError, "pydantic"),
        ({"tools": [], "tool_choice": "required"}, ToolError, "at least one"),
        ({"tools": [{"name": "a"}], "tool_choice": "b"}, ToolError, "'b'"),
        ({"tools": [{"name": "get"}, {"name": "GET"}]}, ToolError, "case"),
        ({"tools": [{"name": "no spaces"}]}, ToolError, "not legal"),
        ({"tools": [{"name": "a", "parameters": {"type": "array"}}]}, ToolError, "object"),
        ({"tools": [{"name": "a", "parameters": {"properties": {"x": {"type": "no"}}}}]}, SchemaError, "Tool 'a'"),
        ({"tools": [3]}, ToolError, "int"),
        ({"tools": [{"name": "a"}], "tool_format": "klingon"}, OptionError, "hermes"),
        ({"tools": [{"name": "a.b"}], "tool_format": "mistral"}, ToolError, "mistral"),
        ({"compliance": ["phrase"]}, OptionError, "ComplianceProcessor"),
        ({"compliance": ComplianceProcessor(["  "])}, OptionError, "visible"),
        ({"compliance": ComplianceProcessor(["sorry"], refusal="so sorry")}, OptionError, "refusal"),
    ],
)
def test_bad_input_is_an_error_that_says_what(
    engine: Engine, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with ForwardClock(engine.model) as clock, pytest.raises(error, match=words):
        engine.chat("Answer.", **options)
    assert clock.forwards == 0


def test_with_tools_switched_off_the_answer_has_the_format(engine: Engine) -> None:
    tool = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    assert ask(engine, PERSON, tools=[tool], tool_choice="none").parsed is not None


def test_a_budget_below_the_minimum_is_an_error_before_any_work(engine: Engine) -> None:
    with ForwardClock(engine.model) as clock, pytest.raises(ConstraintError, match="shortest"):
        ask(engine, Person, max_new_tokens=3)
    assert clock.forwards == 0


# -- compliance ---------------------------------------------------------------------------------------------------


def test_a_phrase_in_free_text_ends_the_reply_with_the_refusal(engine: Engine) -> None:
    plain = engine.chat("Tell me.", max_new_tokens=60, temperature=1.0, seed=4)
    letters = [c for c in plain.text if c.isalnum()]
    assert letters
    phrase = next(plain.text[i : i + 5] for i in range(8, len(plain.text) - 5) if plain.text[i : i + 5].strip("\ufffd ")
                  and "\ufffd" not in plain.text[i : i + 5])  # fmt: skip
    shown, reply = "", None
    for event in engine.stream(
        "Tell me.", max_new_tokens=60, temperature=1.0, seed=4, compliance=ComplianceProcessor([phrase], REFUSAL)
    ):
        if isinstance(event, TextPiece):
            shown += event.text
        elif isinstance(event, Done):
            reply = event.reply
    assert reply is not None
    assert reply.finish_reason == "content_filter"
    assert reply.text.endswith(REFUSAL)
    assert phrase not in reply.text
    assert shown == reply.text, "what was streamed is never taken back"
    assert "veto" in reply.notes
    assert {t.source for t in reply.tokens[-1:]} == {"refusal"}


def test_speculation_does_not_change_where_a_phrase_is_stopped(engine: Engine) -> None:
    plain = engine.chat("Tell me.", max_new_tokens=60, temperature=1.0, seed=4)
    banned = ComplianceProcessor([plain.text[6:9], plain.text[20:24], "zz"], REFUSAL)
    replies = [
        engine.chat("Tell me.", max_new_tokens=60, temperature=1.0, seed=4, compliance=banned, speculate=speculate)
        for speculate in (True, False)
    ]
    assert replies[0].token_ids == replies[1].token_ids
    assert replies[0].finish_reason == replies[1].finish_reason


def test_inside_json_a_phrase_is_masked_and_the_document_stays_valid(engine: Engine) -> None:
    free = ask(engine, Movie, temperature=1.5, seed=2)
    title = free.parsed["title"]
    phrase = next(
        title[i : i + 2] for i in range(len(title) - 1) if title[i : i + 2].isprintable() and title[i].strip()
    )
    reply = ask(engine, Movie, temperature=1.5, seed=2, compliance=ComplianceProcessor([phrase], REFUSAL))
    assert reply.finish_reason in ("stop", "length")
    assert reply.parsed is not None
    assert phrase.casefold() not in reply.parsed["title"].casefold()


def test_a_phrase_that_the_schema_forces_is_an_error_before_start(engine: Engine) -> None:
    with ForwardClock(engine.model) as clock, pytest.raises(ConstraintError, match="title"):
        ask(engine, Movie, compliance=ComplianceProcessor(["title"], REFUSAL))
    assert clock.forwards == 0


CUT_FORMS = [terms.regex("[a-c]{2}-[a-c]{2}-[a-c]{2}"), terms.cfg('start: ("ab" | "cd") "-" ("x" | "y")')]


@pytest.mark.parametrize("wanted", CUT_FORMS, ids=["regex", "lark"])
@pytest.mark.parametrize("tools", [False, True])
def test_a_document_that_a_stop_string_cut_says_so(engine: Engine, wanted: Any, tools: bool) -> None:
    tool = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    more: dict[str, Any] = {"tools": [tool], "tool_choice": "none"} if tools else {}
    whole = engine.chat("go", response_format=wanted, max_new_tokens=40, seed=1, **more)
    assert (whole.parsed, "invalid" in whole.notes) == (whole.text, False)
    cut = engine.chat("go", response_format=wanted, max_new_tokens=40, seed=1, stop_strings=["-"], **more)
    assert cut.parsed is None
    assert "cut the document" in cut.notes["invalid"]
