"""``tool_choice`` in every form that APIs know, and what is said of the others."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mmspec_agent.core.errors import ToolError
from mmspec_agent.grammar.choice import choose, is_free
from mmspec_agent.grammar.tools import read_tools


def look(word: str) -> None:
    """Look a word up."""


SEND = {"name": "send", "parameters": {"type": "object", "properties": {}}}
WAIT = {"name": "wait", "parameters": {"type": "object", "properties": {}}}
TOOLS = read_tools([look, SEND, WAIT])
ALL = ["look", "send", "wait"]
ONE = [{"type": "function", "name": "send"}, {"type": "function", "function": {"name": "wait"}}]

FORMS: list[tuple[Any, str, list[str]]] = [
    ("none", "none", ALL),
    ("auto", "auto", ALL),
    ("required", "required", ALL),
    ("any", "required", ALL),
    ("send", "required", ["send"]),
    (look, "required", ["look"]),
    *(({"type": kind}, mode, ALL) for kind, mode in (("none", "none"), ("auto", "auto"), ("required", "required"))),
    ({"type": "any"}, "required", ALL),
    ({"type": "any", "disable_parallel_tool_use": True}, "required", ALL),
    ({"type": "tool", "name": "send"}, "required", ["send"]),
    ({"type": "function", "name": "send"}, "required", ["send"]),
    ({"type": "function", "function": {"name": "send"}}, "required", ["send"]),
    ({"function": {"name": "send"}}, "required", ["send"]),
    ({"name": "send"}, "required", ["send"]),
    ({"any": {}}, "required", ALL),
    ({"auto": {}}, "auto", ALL),
    ({"tool": {"name": "send"}}, "required", ["send"]),
    ({"type": "allowed_tools", "mode": "auto", "tools": ONE}, "auto", ["send", "wait"]),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": ONE}}, "required", ["send", "wait"]),
]


@pytest.mark.parametrize(
    ("choice", "mode", "names"), FORMS, ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", repr(value))[:60]
)
def test_every_form_of_a_choice_is_read(choice: Any, mode: str, names: list[str]) -> None:
    chosen = choose(TOOLS, choice)
    assert (chosen.mode, [tool.name for tool in chosen.tools]) == (mode, names)


def test_anthropic_says_in_the_choice_whether_several_calls_may_come() -> None:
    assert choose(TOOLS, {"type": "any", "disable_parallel_tool_use": True}).several is False
    assert choose(TOOLS, {"type": "tool", "name": "send", "disable_parallel_tool_use": False}).several is True
    assert choose(TOOLS, "any").several is None


UNKNOWN: list[Any] = [
    "sometimes", "", "REQUIRED", True, 3, [], ["send"], {}, {"type": "sometimes"}, {"type": 3}, {"type": "tool"},
    {"type": "tool", "name": "missing"}, {"type": "function", "function": {}}, {"type": "function", "function": "x"},
    {"type": "custom", "name": "send"}, {"type": "allowed_tools"}, {"type": "allowed_tools", "tools": []},
    {"type": "allowed_tools", "mode": "auto", "tools": ["missing"]}, {"type": "allowed_tools", "allowed_tools": 3},
    {"type": "allowed_tools", "mode": [], "tools": ONE}, lambda: None, object(), {"type": ["auto"]}, {"any": 3},
]  # fmt: skip


@pytest.mark.parametrize("choice", UNKNOWN, ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", repr(value))[:60])
def test_other_values_are_named_with_what_is_accepted(choice: Any) -> None:
    with pytest.raises(ToolError) as error:
        choose(TOOLS, choice)
    text = str(error.value)
    assert repr(choice)[:60] in text or "missing" in text
    assert all(word in text for word in ("'any'", "allowed_tools", "look, send, wait"))


@pytest.mark.parametrize("choice", ["auto", "required", "any", {"type": "any"}])
def test_a_choice_without_tools_is_an_error(choice: Any) -> None:
    with pytest.raises(ToolError, match="at least one tool"):
        choose((), choice)


@pytest.mark.parametrize(
    ("choice", "free"),
    [(None, True), ("none", True), ("auto", True), ({"type": "auto"}, True), ({"type": "none"}, True), ("any", False),
     ({"type": "any"}, False), ("send", False), ({"name": "send"}, False), ([], False)],
)  # fmt: skip
def test_what_leaves_the_answer_free(choice: Any, free: bool) -> None:
    assert is_free(choice) is free
