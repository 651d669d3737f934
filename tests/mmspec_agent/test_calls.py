"""Tool calls through the whole engine, with a model of random weights: choices, streams, budgets, equality of arms."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import torch
from transformers import LogitsProcessorList

from mmspec_agent.bench.call_arms import ConstraintProcessor
from mmspec_agent.bench.closing import random_engine, run_closing
from mmspec_agent.chat import ChatRun
from mmspec_agent.core.errors import ConstraintError
from mmspec_agent.engine import Engine
from mmspec_agent.grammar.families import FAMILIES
from mmspec_agent.models.progress import Silent
from mmspec_agent.options import ChatOptions
from mmspec_agent.reply import Done, Reply, StepPiece, TextPiece, ToolCallPiece
from mmspec_agent.structured import _ToolReader


def get_weather(city: str, days: int = 1) -> str:
    """Weather of a city.

    Args:
        city: Name of the city.
        days: How many days ahead.
    """
    return f"{city}: sunny for {days} days"


SEND: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "send",
        "description": "Send a mail.",
        "parameters": {
            "type": "object",
            "properties": {
                "to": {"type": "string", "format": "email"},
                "copies": {"type": "array", "items": {"enum": ["a", "b", 3]}, "maxItems": 2},
                "urgent": {"type": "boolean"},
            },
            "required": ["to", "urgent"],
        },
    },
}
TOOLS: list[Any] = [get_weather, SEND]
SCHEMAS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "send": {**SEND["function"]["parameters"], "additionalProperties": False},
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return random_engine(5)


def ask(engine: Engine, **options: Any) -> Reply:
    return engine.chat(
        "Weather in Rome?", **{"tools": TOOLS, "max_new_tokens": 100, "tool_choice": "required", **options}
    )


def check_calls(reply: Reply) -> None:
    assert reply.tool_calls
    for call in reply.tool_calls:
        jsonschema.validate(call.arguments, SCHEMAS[call.name])
    assert len({call.id for call in reply.tool_calls}) == len(reply.tool_calls)


@pytest.mark.parametrize("form", sorted(FAMILIES))
@pytest.mark.parametrize("seed", [0, 1])
def test_required_gives_valid_calls_in_every_format(engine: Engine, form: str, seed: int) -> None:
    reply = ask(engine, tool_format=form, temperature=1.5, seed=seed, parallel_tool_calls=False)
    check_calls(reply)
    assert len(reply.tool_calls) == 1
    assert reply.text == ""
    assert reply.finish_reason in ("tool_calls", "length")


@pytest.mark.parametrize("choice", ["send", {"type": "function", "function": {"name": "send"}}])
def test_a_named_tool_is_the_one_that_is_called(engine: Engine, choice: Any) -> None:
    for seed in range(3):
        reply = ask(engine, tool_choice=choice, temperature=1.5, seed=seed)
        check_calls(reply)
        assert {call.name for call in reply.tool_calls} == {"send"}


def test_several_calls_only_where_allowed(engine: Engine) -> None:
    # A line break is what goes on after a call; the model is made to like it.
    newline = tuple(engine.tokenizer.encode("\n", add_special_tokens=False))
    tick = {"name": "tick", "parameters": {"properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"]}}
    options = {"tools": [tick], "sequence_bias": {newline: 50.0}}
    several = ask(engine, **options)
    assert len(several.tool_calls) > 1
    assert {call.arguments["n"] for call in several.tool_calls} <= {1, 2, 3}
    assert len({call.id for call in several.tool_calls}) == len(several.tool_calls)
    alone = ask(engine, parallel_tool_calls=False, **options)
    assert len(alone.tool_calls) == 1


def test_none_leaves_the_answer_free_and_shows_the_tools(engine: Engine) -> None:
    reply = ask(engine, tool_choice="none", max_new_tokens=30)
    assert reply.tool_calls == ()
    bare = engine.chat("Weather in Rome?", max_new_tokens=30)
    assert reply.stats.prompt_tokens > bare.stats.prompt_tokens


def bias_towards(engine: Engine, text: str) -> dict[tuple[int, ...], float]:
    """Transformers' ``sequence_bias`` that makes a model begin with ``text``."""
    ids = engine.tokenizer.encode(text, add_special_tokens=False)
    return {tuple(ids[: n + 1]): 1000.0 * (n + 1) for n in range(len(ids))}


@pytest.mark.parametrize("speculate", [True, False])
def test_auto_is_text_until_the_model_begins_a_call(engine: Engine, speculate: bool) -> None:
    plain = ask(engine, tool_choice="auto", temperature=1.0, max_new_tokens=30, speculate=speculate)
    assert plain.tool_calls == ()
    assert {token.state for token in plain.tokens} == {"TEXT"}
    bias = bias_towards(engine, '{"name": "')
    called = ask(engine, tool_choice="auto", sequence_bias=bias, parallel_tool_calls=False, speculate=speculate)
    check_calls(called)
    assert {"STRING", "KEY_NAME"} <= {token.state for token in called.tokens}


def streamed(engine: Engine, **options: Any) -> tuple[list[Any], Reply]:
    options = {"tools": TOOLS, "tool_choice": "required", "max_new_tokens": 80, "temperature": 2.0, **options}
    events = list(engine.stream("Weather in Rome?", **options))
    assert isinstance(events[-1], Done)
    return events, events[-1].reply


@pytest.mark.parametrize("arm", [{}, {"speculate": False}, {"speculate": False, "skip_forced": False}])
def test_argument_pieces_arrive_as_they_are_decided_and_add_up(engine: Engine, arm: dict[str, Any]) -> None:
    for seed in range(2):
        events, reply = streamed(engine, seed=seed, **arm)
        pieces = [event for event in events if isinstance(event, ToolCallPiece)]
        for index, call in enumerate(reply.tool_calls):
            own = [piece for piece in pieces if piece.index == index]
            assert [piece.name for piece in own if piece.name] == [call.name]
            assert own[0].name == call.name
            assert {piece.id for piece in own} == {call.id}
            assert json.loads("".join(piece.arguments for piece in own)) == call.arguments
        # Each forward's pieces come before the next forward: never more steps than pieces wait.
        first = next(i for i, event in enumerate(events) if isinstance(event, ToolCallPiece))
        steps_after = sum(isinstance(event, StepPiece) for event in events[first:])
        assert steps_after == 0 or len(pieces) > len(reply.tool_calls)


@pytest.mark.parametrize("form", sorted(FAMILIES))
def test_every_split_of_a_reply_reads_the_same(engine: Engine, form: str) -> None:
    options = ChatOptions.of(tools=TOOLS, tool_choice="required", max_new_tokens=50, tool_format=form, temperature=2.0)
    run = ChatRun(engine, engine.open_conversation(), "Weather?", options)
    reply = next(event.reply for event in run.events() if isinstance(event, Done))
    text = engine.tokenizer.decode([i for i in reply.token_ids if i != engine.tokenizer.eos_token_id])
    wanted = [(call.name, call.arguments) for call in reply.tool_calls]
    assert wanted
    fresh = ChatRun(engine, engine.open_conversation(), "Weather?", options).prompt.reader
    for cut in range(len(text) + 1):
        assert isinstance(fresh, _ToolReader)
        reader = _ToolReader(fresh._envelope)
        pieces = [*reader.feed(text[:cut]), *reader.feed(text[cut:])]
        answer = reader.finish(text, "stop")
        assert [(call.name, call.arguments) for call in answer.tool_calls] == wanted
        for index, (_, arguments) in enumerate(wanted):
            parts = [p.arguments for p in pieces if isinstance(p, ToolCallPiece) and p.index == index]
            assert json.loads("".join(parts)) == arguments
        assert not [p for p in pieces if isinstance(p, TextPiece) and p.text.strip()]


def hf_tokens(engine: Engine, options: ChatOptions, question: str) -> list[int]:
    """Greedy tokens of transformers with the same constraint as a logits processor."""
    prompt = ChatRun(engine, engine.open_conversation(), question, options).prompt
    assert prompt.plan is not None
    ids = torch.tensor([engine.tokenizer.encode(prompt.text, add_special_tokens=False)])
    out = engine.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=options.max_new_tokens,
        do_sample=False,
        logits_processor=LogitsProcessorList([ConstraintProcessor(prompt.plan, options.max_new_tokens)]),
    )
    tokens: list[int] = out[0, ids.shape[1] :].tolist()
    return tokens


FORMS: list[dict[str, Any]] = [
    {"tools": TOOLS, "tool_choice": "required"},
    {"tools": TOOLS, "tool_choice": "send", "tool_format": "hermes"},
    {"tools": TOOLS, "tool_choice": "auto"},
    {"response_format": SCHEMAS["send"]},
    {"response_format": {"type": "regex", "pattern": "(ab|cd)+[0-9]{2,5}"}},
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("budget", [60, pytest.param(130, marks=pytest.mark.slow)])
def test_tokens_are_those_of_the_plain_loop_and_of_transformers(
    engine: Engine, form: dict[str, Any], budget: int
) -> None:
    question = "Mail ann@example.org about Rome, urgent: true, for 3 days."
    given = {**form, "max_new_tokens": budget}
    drafted = engine.chat(question, **given).token_ids
    assert drafted == engine.chat(question, speculate=False, skip_forced=False, **given).token_ids
    assert drafted == engine.chat(question, speculate=False, **given).token_ids
    assert drafted == hf_tokens(engine, ChatOptions.of(**given), question)


@pytest.mark.parametrize("form", FORMS)
def test_sampled_tokens_do_not_depend_on_drafts(engine: Engine, form: dict[str, Any]) -> None:
    for seed in range(3):
        given = {**form, "max_new_tokens": 80, "temperature": 1.2, "top_p": 0.9, "seed": seed}
        drafted = engine.chat("Mail ann@example.org.", **given)
        plain = engine.chat("Mail ann@example.org.", speculate=False, skip_forced=False, **given)
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.forwards <= plain.stats.forwards


def test_a_budget_below_the_shortest_call_is_an_error(engine: Engine) -> None:
    with pytest.raises(ConstraintError, match="shortest"):
        ask(engine, max_new_tokens=4)


def test_every_budget_above_it_gives_a_whole_call(engine: Engine) -> None:
    options = ChatOptions.of(tools=TOOLS, tool_choice="required", max_new_tokens=500)
    plan = ChatRun(engine, engine.open_conversation(), "Weather?", options).prompt.plan
    assert plan is not None
    for extra in (0, 1, 2, 3, 5, 9):
        for seed in range(3):
            check_calls(ask(engine, max_new_tokens=plan.minimum_tokens + extra, temperature=3.0, seed=seed))


def test_random_weights_always_close() -> None:
    result = run_closing(generations=60, schemas=20, progress=Silent(), seed=11)
    assert (result.generations, result.schemas) == (60, 20)
    assert (result.invalid, result.unclosed, result.endless, result.refused) == (0, 0, 0, 0), result.failures


@pytest.mark.slow
def test_random_weights_always_close_a_thousand_times() -> None:
    result = run_closing(generations=1000, schemas=150, progress=Silent(), seed=1)
    assert (result.generations, result.schemas) == (1000, 150)
    assert (result.invalid, result.unclosed, result.endless, result.refused) == (0, 0, 0, 0), result.failures


@pytest.mark.parametrize("stop", [["}"], ['"'], ["{"], ["a", "e", "i"], ["get_weather"], ["name"], ["\n"], ["call>"]])
def test_stop_strings_never_cut_a_call(engine: Engine, stop: list[str]) -> None:
    options = {"temperature": 0.9, "seed": len(stop), "max_new_tokens": 60}
    stopped, whole = ask(engine, stop=stop, **options), ask(engine, **options)
    check_calls(stopped)
    assert stopped.token_ids == whole.token_ids
    assert stopped.finish_reason == whole.finish_reason


def test_stop_strings_end_what_is_said_beside_calls(engine: Engine) -> None:
    for seed in range(3):
        options = {"tool_choice": "auto", "temperature": 1.0, "seed": seed, "max_new_tokens": 60}
        whole = ask(engine, **options)
        letter = next((c for c in whole.text[3:] if c.isalpha()), None)
        if letter is None or whole.tool_calls:
            continue
        reply = ask(engine, stop=letter, **options)
        assert reply.text == whole.text[: whole.text.index(letter)]
        assert reply.finish_reason == "stop"
