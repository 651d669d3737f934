"""Tools together with a response format: a call or a document, and no call twice where that is asked for."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pydantic
import pytest

from mmspec_agent.bench.closing import random_engine
from mmspec_agent.core.errors import ConstraintError
from mmspec_agent.engine import Engine
from mmspec_agent.grammar.envelope import prepare
from mmspec_agent.grammar.families import FAMILIES
from mmspec_agent.grammar.types import output_type
from mmspec_agent.grammar.vocabulary import Vocabulary
from mmspec_agent.reply import Done, Reply, TextPiece, ToolCallPiece


class Person(pydantic.BaseModel):
    """A person; its first name is that of a call, so that both begin alike."""

    name: str
    age: int


def tick(n: int, deep: bool = False) -> None:
    """Tick."""


TICK = {"type": "object", "properties": {"n": {"type": "integer"}, "deep": {"type": "boolean"}}, "required": ["n"]}
FORMATS: list[Any] = [
    Person,
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "items": {"enum": [1, "a"]}}}},
    {"type": "regex", "pattern": "(yes|no), [a-z]{2,6}"},
    {"type": "lark", "grammar": 'start: "A" | "B" "C"'},
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return random_engine(5)


def ask(engine: Engine, **options: Any) -> Reply:
    return engine.chat("Anna is 34. Tick?", **{"tools": [tick], "max_new_tokens": 90, "temperature": 1.5, **options})


def bias(engine: Engine, text: str) -> dict[tuple[int, ...], float]:
    ids = engine.tokenizer.encode(text, add_special_tokens=False)
    return {tuple(ids[: n + 1]): 1000.0 * (n + 1) for n in range(len(ids))}


def check_call(reply: Reply) -> None:
    assert (reply.text, reply.parsed) == ("", None)
    for call in reply.tool_calls:
        jsonschema.validate(call.arguments, TICK)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "hermes"])
@pytest.mark.parametrize("wanted", FORMATS, ids=["model", "schema", "regex", "lark"])
def test_the_model_calls_a_tool_or_answers_in_the_format(engine: Engine, form: str, wanted: Any) -> None:
    for seed in range(2):
        reply = ask(engine, response_format=wanted, tool_format=form, seed=seed, parallel_tool_calls=False)
        if reply.tool_calls:
            check_call(reply)
        else:
            assert reply.parsed is not None
            assert "invalid" not in reply.notes
        plain = ask(
            engine, response_format=wanted, tool_format=form, seed=seed, parallel_tool_calls=False,
            speculate=False, skip_forced=False,
        )  # fmt: skip
        assert plain.token_ids == reply.token_ids


def test_both_ways_are_open_even_where_they_begin_alike(engine: Engine) -> None:
    options: dict[str, Any] = {"response_format": Person, "parallel_tool_calls": False, "temperature": 0.0}
    called = ask(engine, sequence_bias=bias(engine, '{"name": "tick", "arguments": {"n": '), **options)
    assert [call.name for call in called.tool_calls] == ["tick"]
    check_call(called)
    answered = ask(engine, sequence_bias=bias(engine, '{"name": "Anna", "age": 3'), **options)
    assert answered.tool_calls == ()
    assert isinstance(answered.parsed, Person)
    assert answered.parsed.name.startswith("Anna")


def test_required_calls_alone_and_none_the_format_alone(engine: Engine) -> None:
    for seed in range(3):
        called = ask(engine, response_format=Person, tool_choice="required", seed=seed, parallel_tool_calls=False)
        assert called.tool_calls
        check_call(called)
        answered = ask(engine, response_format=Person, tool_choice="none", seed=seed)
        assert isinstance(answered.parsed, Person)


def test_after_results_the_last_answer_has_the_format(engine: Engine) -> None:
    session = engine.session(tools=[tick], response_format=Person, max_new_tokens=80, parallel_tool_calls=False)
    first = session.send("Tick.", tool_choice="any")
    call = first.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": "ticked"}
    last = session.send([result], sequence_bias=bias(engine, '{"name": "Anna"'))
    assert isinstance(last.parsed, Person)


@pytest.mark.slow
def test_every_budget_above_the_least_gives_a_whole_reply(engine: Engine) -> None:
    with pytest.raises(ConstraintError, match="shortest"):
        ask(engine, response_format=Person, max_new_tokens=2)
    for budget in (20, 26, 33):
        for seed in range(3):
            reply = ask(engine, response_format=Person, max_new_tokens=budget, temperature=3.0, seed=seed)
            assert reply.tool_calls or isinstance(reply.parsed, Person)


# -- no call twice ------------------------------------------------------------------------------------------------


REPEAT: dict[str, Any] = {"tool_choice": "required", "temperature": 0.0, "max_new_tokens": 200}
ONLY = {"name": "tick", "parameters": {"properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}}


def going_on(engine: Engine, form: str) -> dict[tuple[int, ...], float]:
    """A bias towards another call wherever one may follow."""
    between = FAMILIES[form].between
    ids = engine.tokenizer.encode(between, add_special_tokens=False)
    return {(ids[0],): 50.0}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "hermes"])
def test_a_repeated_call_ends_the_reply_and_is_left_out(engine: Engine, form: str) -> None:
    given: dict[str, Any] = {**REPEAT, "tools": [ONLY], "tool_format": form, "sequence_bias": going_on(engine, form)}
    freely = ask(engine, **given)
    same = [json.dumps(call.arguments) for call in freely.tool_calls]
    assert len(set(same)) < len(same), "the model repeats itself where it may"
    reply = ask(engine, repeated_tool_calls=False, **given)
    calls = [json.dumps(call.arguments) for call in reply.tool_calls]
    assert calls == list(dict.fromkeys(same))[: len(calls)]
    assert len(set(calls)) == len(calls) > 0
    assert reply.notes["repeated_tool_calls"] == 1
    assert reply.text == ""
    assert reply.finish_reason == "tool_calls"
    length = len(reply.token_ids)
    assert length < len(freely.token_ids)
    arms: list[dict[str, bool]] = [{"speculate": False}, {"speculate": False, "skip_forced": False}]
    for arm in arms:
        assert ask(engine, repeated_tool_calls=False, **arm, **given).token_ids == reply.token_ids


def test_a_stream_never_shows_a_repeated_call(engine: Engine) -> None:
    given = {**REPEAT, "tools": [ONLY], "sequence_bias": going_on(engine, "json"), "repeated_tool_calls": False}
    events = list(engine.stream("Tick?", **given))
    assert isinstance(events[-1], Done)
    reply = events[-1].reply
    pieces = [event for event in events if isinstance(event, ToolCallPiece)]
    assert {piece.id for piece in pieces} == {call.id for call in reply.tool_calls}
    for index, call in enumerate(reply.tool_calls):
        own = [piece for piece in pieces if piece.index == index]
        assert json.loads("".join(piece.arguments for piece in own)) == call.arguments
    assert not [event for event in events if isinstance(event, TextPiece) and event.text.strip()]


def test_the_prompt_names_the_answer_that_is_possible(engine: Engine) -> None:
    for wanted, said, unsaid in ((Person, "the format asked for", "plain text"), (None, "plain text", "format asked")):
        document = None if wanted is None else output_type(wanted)
        plan = None if document is None else document.compile(Vocabulary.of(engine.tokenizer))
        envelope = prepare(engine.tokenizer, [tick], family="json", document=plan)
        text = str(envelope.messages([{"role": "user", "content": "Hi"}])[0]["content"])
        assert said in text
        assert unsaid not in text
