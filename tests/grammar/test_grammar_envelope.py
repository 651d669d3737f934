"""Tools, choices and families: what is rendered, what may be written, what is read back."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import pytest

from mmspec_agent.core.constraint import Constraint, ConstraintPlan
from mmspec_agent.core.errors import ConstraintError, OptionError, SchemaError, ToolError
from mmspec_agent.grammar.envelope import Envelope, prepare
from mmspec_agent.grammar.families import FAMILIES, HERMES, LLAMA3, MISTRAL, PLAIN_JSON, family_of
from mmspec_agent.grammar.functions import describe_callable
from mmspec_agent.grammar.reading import CallDelta, read_reply
from mmspec_agent.grammar.tools import read_tools
from mmspec_agent.grammar.vocabulary import Vocabulary


def get_weather(city: str, days: int = 3, units: Literal["celsius", "kelvin"] = "celsius") -> str:
    """Weather of a city.

    Args:
        city: Where to look,
            by its usual name.
        days (int): How many.
    """
    return f"{city} {days} {units}"


SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find things",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
MCP = {"name": "list_files", "description": "", "inputSchema": {"type": "object", "properties": {}}}
QUESTION = [{"role": "user", "content": "Weather in New York?"}]


def opened(plan: ConstraintPlan | None, budget: int) -> Constraint:
    assert plan is not None
    return plan.open(budget)


def write(cursor: Constraint, text: str, vocabulary: Vocabulary) -> bool:
    """Write ``text`` as the masks allow, control tokens where they are meant."""
    rest = text.encode()
    while rest:
        mask = cursor.mask()
        controls = [c for c in vocabulary.controls if rest.startswith(vocabulary.spelling[c])]
        plain = [t for end in range(min(len(rest), vocabulary.longest), 0, -1)
                 if (t := vocabulary.id_of(rest[:end])) is not None]  # fmt: skip
        token = next((t for t in [*controls, *plain] if mask is None or mask.allows(t)), None)
        if token is None:
            return False
        cursor.advance(token)
        rest = rest[len(vocabulary.spelling[token]) :]
    return True


def drawn(envelope: Envelope, vocabulary: Vocabulary, budget: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    cursor = opened(envelope.plan, budget)
    tokens: list[int] = []
    while len(tokens) < budget:
        mask = cursor.mask()
        legal = np.arange(vocabulary.size) if mask is None else mask.tokens()
        token = int(rng.choice(legal))
        cursor.advance(token)
        if token in vocabulary.eos_ids:
            break
        tokens.append(token)
    return vocabulary.decode(tokens).decode("utf-8", "replace")


def test_functions_become_tools_from_signature_and_docstring() -> None:
    name, description, schema = describe_callable(get_weather)
    assert (name, description) == ("get_weather", "Weather of a city.")
    assert schema["required"] == ["city"]
    assert schema["properties"]["city"]["description"] == "Where to look, by its usual name."
    assert schema["properties"]["units"]["enum"] == ["celsius", "kelvin"]


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([SEARCH, SEARCH], "Two tools"),
        ([{**MCP, "name": "Search"}, SEARCH], "Two tools"),
        ([{**MCP, "name": "bad name"}], "not legal"),
        ([{**MCP, "name": 'a"b'}], "not legal"),
        ([{**MCP, "name": ""}], "not legal"),
        ([5], "not int"),
        ([{"description": "x"}], "'name'"),
        ([{"name": "a", "parameters": {"type": "string"}}], "'object'"),
        ([lambda *args: args], "by name"),
    ],
)
def test_unusable_tools_are_clear_errors(tools: list[Any], words: str) -> None:
    with pytest.raises(ToolError) as error:
        read_tools(tools)
    assert words in str(error.value)


def test_a_bad_schema_names_its_tool() -> None:
    with pytest.raises(SchemaError, match="Tool 'broken'"):
        read_tools([{"name": "broken", "parameters": {"type": "object", "properties": {"a": {"enum": []}}}}])


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("parallel", [False, True])
def test_required_replies_are_calls_in_every_family(
    family: str, parallel: bool, tokenizer: Any, vocabulary: Vocabulary
) -> None:
    envelope = prepare(
        tokenizer, [get_weather, SEARCH, MCP], tool_choice="required", parallel_tool_calls=parallel, family=family,
        reasoning=False,
    )  # fmt: skip
    assert envelope.plan is not None
    for seed in range(4):
        text = drawn(envelope, vocabulary, envelope.plan.minimum_tokens + 25 * seed, seed)
        reply = read_reply(envelope.reader(), text)
        assert reply.calls, text
        assert parallel or len(reply.calls) == 1
        assert len({call.id for call in reply.calls}) == len(reply.calls)
        assert reply.content == ""
        for call in reply.calls:
            assert call.name in ("get_weather", "search", "list_files")
            assert json.loads(call.arguments_text) == call.arguments


def test_a_named_choice_admits_that_tool_alone(tokenizer: Any, vocabulary: Vocabulary) -> None:
    choice = {"type": "function", "function": {"name": "search"}}
    envelope = prepare(tokenizer, [get_weather, SEARCH], tool_choice=choice, family="json", reasoning=False)
    assert write(opened(envelope.plan, 200), '{"name": "search", "arguments": {"query": ', vocabulary)
    assert not write(opened(envelope.plan, 200), '{"name": "get_weather"', vocabulary)


@pytest.mark.parametrize("choice", ["sometimes", {"function": {"name": "missing"}}])
def test_unknown_choices_name_the_tools(choice: Any, tokenizer: Any) -> None:
    with pytest.raises(ToolError, match="search"):
        prepare(tokenizer, [SEARCH], tool_choice=choice)
    with pytest.raises(ToolError, match="at least one tool"):
        prepare(tokenizer, [], tool_choice="required")
    with pytest.raises(OptionError, match="hermes"):
        prepare(tokenizer, [SEARCH], family="klingon")


def test_names_illegal_for_a_family_are_refused(tokenizer: Any) -> None:
    dotted = {**MCP, "name": "math.hypot"}
    with pytest.raises(ToolError, match="mistral"):
        prepare(tokenizer, [dotted], family="mistral")
    assert prepare(tokenizer, [dotted], family="hermes").plan is not None


def test_none_constrains_nothing(tokenizer: Any) -> None:
    envelope = prepare(tokenizer, [SEARCH], tool_choice="none")
    assert envelope.plan is None
    required = prepare(tokenizer, [SEARCH], tool_choice="required")
    assert envelope.messages(QUESTION) == required.messages(QUESTION)  # a loop that ends in text keeps its prefix
    assert prepare(tokenizer, [], tool_choice="none").messages(QUESTION) == QUESTION


def test_templates_without_tools_get_a_system_message_that_lists_them(tokenizer: Any) -> None:
    envelope = prepare(tokenizer, [get_weather, SEARCH])
    assert envelope.family is PLAIN_JSON
    system, question = envelope.messages(QUESTION)
    assert system["role"] == "system"
    assert all(name in system["content"] for name in ("get_weather", "search"))
    assert question == QUESTION[0]
    merged = envelope.messages([{"role": "system", "content": "Be brief."}, *QUESTION])
    assert merged[0]["content"].startswith("Be brief.")
    assert len(merged) == 2


def test_calls_and_results_of_earlier_turns_become_text_or_dicts(tokenizer: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"query": "x"}'}}
    history: list[dict[str, Any]] = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "1", "name": "search", "content": "found"}]  # fmt: skip
    plain = prepare(tokenizer, [SEARCH], family="json").messages(history)
    assert plain[2] == {"role": "assistant", "content": '{"name": "search", "arguments": {"query": "x"}}'}
    assert plain[3]["content"] == "Result of search: found"
    kept = prepare(tokenizer, [SEARCH], family="hermes").messages(history)
    assert kept[1]["tool_calls"][0]["function"]["arguments"] == {"query": "x"}
    assert history[1]["tool_calls"][0]["function"]["arguments"] == '{"query": "x"}'


def test_families_are_read_off_templates() -> None:
    assert family_of("{{ messages }}") is PLAIN_JSON
    assert family_of("{% if tools %}<tool_call>\\n{...}\\n</tool_call>{% endif %}") is HERMES
    assert family_of("{% if tools %}[TOOL_CALLS]{% endif %}") is MISTRAL
    assert family_of('{% if tools %}<|start_header_id|>{"name": x, "parameters": y}{% endif %}') is LLAMA3


def test_under_auto_the_grammar_starts_where_the_opener_completes(tokenizer: Any, vocabulary: Vocabulary) -> None:
    envelope = prepare(tokenizer, [get_weather], tool_choice="auto", family="hermes", reasoning=False)
    cursor = opened(envelope.plan, 200)
    assert cursor.mask() is None
    assert write(cursor, "Let me look. <tool_", vocabulary)
    assert cursor.state == "TEXT"
    assert cursor.held_back == len("<tool_")
    assert write(cursor, 'call>\n{"name": "get_weather", "arguments": {"city": ', vocabulary)
    assert cursor.state == "VALUE_START"
    assert write(cursor, '"Rome"}}\n</tool_call>', vocabulary)
    run = cursor.forced_run(5)
    assert run == [vocabulary.eos_ids[0]] or run == []


def test_under_auto_the_control_token_opens_too(tokenizer: Any, vocabulary: Vocabulary) -> None:
    envelope = prepare(tokenizer, [get_weather], tool_choice="auto", family="hermes", reasoning=False)
    cursor = opened(envelope.plan, 200)
    token = vocabulary.control("<tool_call>")
    assert token is not None
    cursor.advance(token)
    assert cursor.forced_run(3)
    fork = cursor.fork()
    fork.advance(fork.forced_run(1)[0])
    assert cursor.forced_run(1) == cursor.fork().forced_run(1)


def test_under_auto_no_call_begins_that_could_not_end(tokenizer: Any, vocabulary: Vocabulary) -> None:
    envelope = prepare(tokenizer, [get_weather], tool_choice="auto", family="hermes", reasoning=False)
    token = vocabulary.control("<tool_call>")
    mask = opened(envelope.plan, 6).mask()
    assert mask is not None
    assert token is not None
    assert not mask.allows(token)


def test_reasoning_is_left_alone_until_it_ends(tokenizer: Any, vocabulary: Vocabulary) -> None:
    envelope = prepare(tokenizer, [get_weather], tool_choice="required", family="hermes", reasoning=True)
    cursor = opened(envelope.plan, 300)
    assert write(cursor, '<think>A <tool_call> {"name": is only text here', vocabulary)
    assert cursor.state == "REASONING"
    assert write(cursor, '</think>\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "', vocabulary)
    assert cursor.state == "STRING"
    text = '<think>{"name": "get_weather", "arguments": {}}</think>ok'
    reply = read_reply(envelope.reader(), text)
    assert reply.calls == ()
    assert reply.content == text


def test_required_with_reasoning_still_calls_within_any_budget(tokenizer: Any, vocabulary: Vocabulary) -> None:
    envelope = prepare(tokenizer, [SEARCH], tool_choice="required", family="hermes", reasoning=True)
    assert envelope.plan is not None
    with pytest.raises(ConstraintError):
        envelope.plan.open(envelope.plan.minimum_tokens - 1)
    for seed in range(8):
        text = drawn(envelope, vocabulary, envelope.plan.minimum_tokens + 4 * seed, seed)
        assert read_reply(envelope.reader(), text).calls, text


STREAMS = [
    ("json", 'Sure.\n{"name": "search", "arguments": {"query": "mkdir -p t/{a,b"}}'),
    (
        "json",
        '{"name": "search", "arguments": {"query": "echo \\"}\\""}}\n{"name": "search", "arguments": {"query": ""}}',
    ),
    ("hermes", 'Hm <tool_call>\n{"name": "search", "arguments": {"query": "</tool_call>"}}\n</tool_call>'),
    ("mistral", '[TOOL_CALLS][{"name": "search", "arguments": {"query": "[1, 2"}}]'),
    ("mistral-args", '[TOOL_CALLS]search[ARGS]{"query": "a"}[TOOL_CALLS]search[ARGS]{"query": "b"}'),
    ("json", 'No call at all: {braces} and "quotes".'),
]


@pytest.mark.parametrize(("family", "text"), STREAMS)
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_streamed_deltas_add_up_to_the_arguments_for_every_split(
    family: str, text: str, step: int, tokenizer: Any
) -> None:
    envelope = prepare(tokenizer, [SEARCH], family=family)
    whole = read_reply(envelope.reader(), text)
    reader, pieces = envelope.reader(), []
    for at in range(0, len(text), step):
        pieces += reader.feed(text[at : at + step])
    pieces += reader.finish()
    said = "".join(piece for piece in pieces if isinstance(piece, str))
    assert said.strip() == whole.content.strip()
    for index, call in enumerate(whole.calls):
        deltas = [p for p in pieces if isinstance(p, CallDelta) and p.index == index]
        assert deltas[0].name == call.name
        assert deltas[0].id is not None
        assert "".join(delta.arguments for delta in deltas) == call.arguments_text
    assert len(whole.calls) == text.count('"query"')
