"""Tool objects of agent libraries, dicts of APIs, and callables that cannot be offered."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest

from mmspec_agent.core.errors import ToolError
from mmspec_agent.grammar.tools import read_tools

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


class Unwritable:
    """No JSON."""


def find(q: str) -> None:
    """Find."""


def with_context(context: Unwritable, q: str) -> None:
    """Find."""


class Holder:
    @classmethod
    def of(cls, q: str) -> None:
        """Find."""


SERVED: list[Any] = [
    *(SimpleNamespace(name="find", description="Find.", **{attribute: SCHEMA})
      for attribute in ("params_json_schema", "parameters_json_schema", "parameters", "input_schema", "inputSchema")),
    {"toolSpec": {"name": "find", "description": "Find.", "inputSchema": {"json": SCHEMA}}},
    {"type": "function", "function": find},
    Holder.__dict__["of"],
]  # fmt: skip


@pytest.mark.parametrize("tool", SERVED, ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", repr(value))[:60])
def test_tool_objects_and_dicts_are_read(tool: Any) -> None:
    (read,) = read_tools([tool])
    assert read.name in ("find", "of")
    assert read.description == "Find."
    assert read.parameters["properties"] == {"q": {"type": "string"}}


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (lambda q: q, "lambda"),
        (with_context, "'context'"),
        ({"type": "web_search"}, "web_search"),
        ({"type": "file_search", "name": "files"}, "file_search"),
    ],
)
def test_what_cannot_be_offered_is_named(tool: Any, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        read_tools([tool])


def test_types_of_the_scope_around_are_found() -> None:
    class Local(pydantic.BaseModel):
        x: int

    def tool(one: Local, more: list[Local]) -> Unknown:  # type: ignore[name-defined]  # noqa: F821
        """Find."""

    (read,) = read_tools([tool])
    assert read.parameters["required"] == ["one", "more"]
    assert read.parameters["$defs"]["Local"]["properties"] == {"x": {"type": "integer"}}
