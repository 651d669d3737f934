"""Which tools a reply may call, and whether it has to: ``tool_choice`` in every form that APIs know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mmspec_agent.core.errors import ToolError

from .tools import Tool

ToolChoice = str | Mapping[str, Any]

_MODES: Final[Mapping[str, str]] = {"none": "none", "auto": "auto", "required": "required", "any": "required"}
_ACCEPTED: Final = (
    "Accepted are 'none', 'auto', 'required' (or 'any'), the name of a tool, a dict with one of these as its 'type', "
    "{'type': 'function', 'function': {'name': …}}, {'type': 'tool', 'name': …}, and {'type': 'allowed_tools', "
    "'mode': 'auto' or 'required', 'tools': […]}"
)


class Chosen(NamedTuple):
    """``mode``: none, auto or required; ``tools``: those that may be called; ``several``: None if not said."""

    mode: str
    tools: tuple[Tool, ...]
    several: bool | None = None


def choose(tools: Sequence[Tool], choice: Any) -> Chosen:
    """Read a ``tool_choice`` of OpenAI, Anthropic or Bedrock. ToolError says what is accepted."""
    offered = tuple(tools)
    if isinstance(choice, Mapping):
        chosen = _from_mapping(offered, choice)
    elif isinstance(choice, str):
        chosen = Chosen(_MODES[choice], offered) if choice in _MODES else _named(offered, choice, choice)
    else:
        found = next((tool for tool in offered if tool.function is not None and tool.function is choice), None)
        if found is None:
            raise _unknown(offered, choice)
        chosen = Chosen("required", (found,))
    if not chosen.tools and chosen.mode != "none":
        raise ToolError(f"tool_choice={choice!r} needs at least one tool; none was given.")
    return chosen


def is_free(choice: Any) -> bool:
    """Whether a ``tool_choice`` leaves it to the model, or forbids calls: nothing is shaped without tools."""
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    return choice is None or (isinstance(kind, str) and kind in ("none", "auto"))


def _from_mapping(tools: tuple[Tool, ...], choice: Mapping[str, Any]) -> Chosen:
    if len(choice) == 1 and (only := next(iter(choice))) in (*_MODES, "tool"):  # Bedrock: {"any": {}}
        inner = choice[only]
        if isinstance(inner, Mapping):
            choice = {"type": only, **inner}
    kind = choice.get("type")
    several = not choice["disable_parallel_tool_use"] if "disable_parallel_tool_use" in choice else None
    if isinstance(kind, str) and kind in _MODES:
        return Chosen(_MODES[kind], tools, several)
    if kind == "allowed_tools":
        return _allowed(tools, choice)
    if kind in (None, "function", "tool"):
        return _named(tools, _name_in(choice), choice)._replace(several=several)
    raise _unknown(tools, choice)


def _allowed(tools: tuple[Tool, ...], choice: Mapping[str, Any]) -> Chosen:
    body = choice.get("allowed_tools", choice)
    mode, names = (body.get("mode", "auto"), body.get("tools")) if isinstance(body, Mapping) else (None, None)
    if not isinstance(mode, str) or mode not in _MODES or not isinstance(names, (list, tuple)) or not names:
        raise _unknown(tools, choice)
    listed = [_named(tools, _name_in(one), one).tools[0] for one in names]
    return Chosen(_MODES[mode], tuple(tool for tool in tools if tool in listed))


def _name_in(choice: Any) -> Any:
    if isinstance(choice, Mapping):
        body = choice.get("function", choice)
        return body.get("name") if isinstance(body, Mapping) else body
    return choice


def _named(tools: tuple[Tool, ...], name: Any, choice: Any) -> Chosen:
    named = tuple(tool for tool in tools if tool.name == name)
    if not named:
        raise _unknown(tools, choice)
    return Chosen("required", named)


def _unknown(tools: Sequence[Tool], choice: Any) -> ToolError:
    known = ", ".join(tool.name for tool in tools) or "none at all"
    return ToolError(
        f"tool_choice={choice!r:.200} is not known, or names no tool that was given ({known}). {_ACCEPTED}."
    )
