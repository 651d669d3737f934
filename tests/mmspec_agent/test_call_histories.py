"""Earlier calls and results: what the model is shown is text or JSON, in every family, whatever was handed over."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import random
import uuid
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pydantic
import pytest
import torch
from PIL import Image

from mmspec_agent.core.errors import PromptError
from mmspec_agent.grammar.families import FAMILIES
from mmspec_agent.grammar.history import render_history
from mmspec_agent.prompts import flatten_text, normalise_messages

TEMPLATE = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).from_string(
    "{% for m in messages %}<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.id }}:{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}"
)
"""Prints contents as they are, so that Python's notation would show, and arguments as JSON, as templates do."""


class Point(pydantic.BaseModel):
    x: int = 1


@dataclasses.dataclass
class Row:
    name: str
    when: datetime.date


class Colour(enum.Enum):
    RED = "red"


RESULTS: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    (3, "3"),
    (2.5, "2.5"),
    ([1, 2], "[1, 2]"),
    ([], "[]"),
    ({}, "{}"),
    (["red", "blue"], '["red", "blue"]'),
    ([{"a": None}, {"b": [True]}], '[{"a": null}, {"b": [true]}]'),
    ({"city": "Köln", "open": False}, '{"city": "Köln", "open": false}'),
    ({"type": "text", "value": 1}, '{"type": "text", "value": 1}'),
    ([{"type": "image"}], '[{"type": "image"}]'),
    ((1, "a"), '[1, "a"]'),
    (Point(), '{"x": 1}'),
    ([Row("a", datetime.date(2024, 1, 2))], '[{"name": "a", "when": "2024-01-02"}]'),
    (Colour.RED, '"red"'),
    (decimal.Decimal("1.10"), '"1.10"'),
    (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    (Path("a/b"), '"a/b"'),
    (b"bytes", '"bytes"'),
    (np.int64(4), "4"),
    (np.array([1, 2]), "[1, 2]"),
    (torch.tensor([0.5]), "[0.5]"),
    ("plain 'text' {}", "plain 'text' {}"),
    ("", ""),
    ([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}], "one two"),
]


def shown(messages: list[dict[str, Any]], family: str) -> str:
    flat = flatten_text(normalise_messages(messages))
    return str(TEMPLATE.render(messages=render_history(flat, FAMILIES[family])))


def history(result: Any, arguments: Any = None) -> list[dict[str, Any]]:
    call = {"id": "call_abc", "type": "function", "function": {"name": "look", "arguments": arguments or {"a": 1}}}
    return [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_abc", "content": result},
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("result", "text"), RESULTS, ids=lambda value: str(value)[:24])
def test_results_are_shown_as_text_or_json(result: Any, text: str, family: str) -> None:
    assert shown(history(result), family).endswith(text)


def test_a_result_that_json_cannot_hold_is_named() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for result in (object(), {"a": object()}, float("nan"), [float("inf")], circle):
        with pytest.raises(PromptError, match="message 2 has a tool's result"):
            shown(history(result), "hermes")


def test_pictures_among_results_stay_pictures() -> None:
    picture = Image.new("RGB", (4, 4))
    for result in (picture, [picture], [{"type": "image", "image": picture}], np.zeros((4, 4, 3), np.uint8)):
        content = normalise_messages(history(result))[2]["content"]
        assert [part["type"] for part in content] == ["image"]
    mixed = normalise_messages(history(["seen:", picture, {"count": 2}]))[2]["content"]
    assert mixed[0] == "seen:"
    assert mixed[2] == {"type": "text", "text": '{"count": 2}'}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_results_name_comes_from_its_call(family: str) -> None:
    text = shown(history("x"), family)
    assert "look>x" in text or "Result of look: x" in text
    two = history("first")
    two[1]["tool_calls"].append({"id": "other", "function": {"name": "hear", "arguments": "{}"}})
    two.append({"role": "tool", "tool_call_id": "other", "content": "second"})
    text = shown(two, family)
    assert "hear>second" in text or "Result of hear: second" in text


WRITTEN: list[tuple[Any, str]] = [
    ({"a": [1, None]}, '{"a": [1, null]}'),
    ('{"a": [1, null]}', '{"a": [1, null]}'),
    ('{"a":1}', "a"),
    ("", "{}"),
    ("  ", "{}"),
    ({}, "{}"),
    (None, "{}"),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("arguments", "text"), WRITTEN, ids=str)
def test_arguments_are_json_however_they_were_handed_over(arguments: Any, text: str, family: str) -> None:
    messages = history("x")
    messages[1]["tool_calls"][0]["function"]["arguments"] = arguments
    assert text in shown(messages, family)


@pytest.mark.parametrize("arguments", ['{"a": 1', "not json", "[1, 2]", "5", [1], 7, "null"])
def test_a_broken_call_is_shown_as_it_was_or_named(arguments: Any) -> None:
    messages = history("x")
    messages[1]["tool_calls"][0]["function"]["arguments"] = arguments
    for name, family in FAMILIES.items():
        if family.own_prompt:
            assert (arguments if isinstance(arguments, str) else json.dumps(arguments)) in shown(messages, name)
        else:
            with pytest.raises(PromptError, match=r"message 1 calls 'look' with arguments that are no JSON object"):
                shown(messages, name)


@pytest.mark.parametrize(
    "call", [None, "look", 5, {}, {"function": None}, {"function": {"arguments": "{}"}}, {"id": "x"}]
)
def test_a_call_without_a_name_is_an_error_of_ours(call: Any) -> None:
    messages = history("x")
    messages[1]["tool_calls"] = [call]
    for family in FAMILIES:
        with pytest.raises(PromptError, match="message 1 has a tool call without a name"):
            shown(messages, family)


def test_ids_are_as_short_as_the_template_wants_and_still_match() -> None:
    messages = render_history(history("x"), FAMILIES["mistral"])
    identifier = messages[1]["tool_calls"][0]["id"]
    assert len(identifier) == 9
    assert identifier.isalnum()
    assert messages[2]["tool_call_id"] == identifier
    assert render_history(history("x"), FAMILIES["hermes"])[1]["tool_calls"][0]["id"] == "call_abc"


def random_value(rng: random.Random, depth: int = 3) -> Any:
    kinds: list[Any] = [
        None,
        True,
        rng.randint(-9, 99),
        rng.random(),
        rng.choice(["it's", 'say "x"', "é", "<a>", "\\n", ""]),
    ]
    if depth:
        kinds.append([random_value(rng, depth - 1) for _ in range(rng.randint(0, 3))])
        kinds.append({rng.choice("abcd"): random_value(rng, depth - 1) for _ in range(rng.randint(0, 3))})
    return rng.choice(kinds)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_histories_never_show_pythons_notation(family: str) -> None:
    rng = random.Random(family)
    for _ in range(150):
        arguments, result = {"v": random_value(rng)}, random_value(rng)
        given = arguments if rng.random() < 0.5 else json.dumps(arguments, ensure_ascii=False)
        messages = history(result, given)
        before = json.dumps(messages)
        text = shown(messages, family)
        wanted = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        assert text.endswith(wanted)
        assert json.dumps(messages) == before  # the caller's own history is left as it was
