"""Tools as people write them: OpenAI dicts, MCP tools, Python functions (SYSTEM.md G4, G6)."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pydantic

from mmspec_agent.core.errors import SchemaError, ToolError

from .schema import JsonSchema, Separators, Unsupported, normalise

_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
_SECTION: Final = re.compile(r"^\s*(args|arguments|parameters|returns?|raises|yields?|examples?|notes?)\s*:?\s*$", re.I)
_SPHINX: Final = re.compile(r":param\s+(?:[\w\[\], .|]+\s+)?(\w+)\s*:\s*(.*)")


@dataclass(frozen=True)
class Tool:
    """A function the model may call; ``parameters`` is the schema of its arguments as given."""

    name: str
    description: str
    parameters: dict[str, Any]
    arguments: JsonSchema
    function: Callable[..., Any] | None = field(default=None, compare=False)

    def as_openai(self) -> dict[str, Any]:
        """The dict chat templates and OpenAI clients know."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def read_tools(
    tools: Iterable[Any], *, separators: Separators = "spaced", unsupported: Unsupported = "refuse"
) -> tuple[Tool, ...]:
    """Tools from dicts or functions. Raises ToolError (names) and SchemaError (parameters), naming the tool."""
    read = tuple(_read_tool(tool, separators, unsupported) for tool in tools)
    seen: dict[str, str] = {}
    for tool in read:
        if tool.name.lower() in seen:
            raise ToolError(
                f"Two tools are called {seen[tool.name.lower()]!r} and {tool.name!r}; names must differ by more than "
                "case, or a call could not be told apart. Rename one."
            )
        seen[tool.name.lower()] = tool.name
    return read


def _read_tool(tool: Any, separators: Separators, unsupported: Unsupported) -> Tool:
    if isinstance(tool, Tool):
        return tool
    function = None
    if isinstance(tool, dict):
        name, description, parameters = _from_dict(tool)
    elif callable(tool):
        function = tool
        name, description, parameters = from_function(tool)
    elif isinstance(getattr(tool, "inputSchema", None), dict):
        name, description, parameters = tool.name, tool.description or "", tool.inputSchema
    else:
        raise ToolError(
            f"A tool is an OpenAI dict, an MCP tool or a Python function, not {type(tool).__name__}: {tool!r:.80}"
        )
    if not _LEGAL_NAME.fullmatch(name):
        raise ToolError(
            f"Tool name {name!r} is not legal; accepted are 1 to 128 of letters, digits and _ . : / -, not beginning "
            "with a sign."
        )
    try:
        arguments = normalise(_as_object(parameters, name), separators=separators, unsupported=unsupported)
    except SchemaError as error:
        raise _named(error, name) from error
    return Tool(name, description, parameters, arguments, function)


def _named(error: SchemaError, name: str) -> SchemaError:
    error.args = (f"Tool {name!r}: {error}", *error.args[1:])
    return error


def _from_dict(tool: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    body = tool.get("function", tool)
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        raise ToolError(f"A tool dict needs a 'name' (at the top, or under 'function'): {tool!r:.120}")
    parameters = body.get("parameters", body.get("inputSchema", body.get("input_schema")))
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    return body["name"], str(body.get("description") or ""), parameters


def _as_object(parameters: Any, name: str) -> Any:
    if not isinstance(parameters, dict):
        raise ToolError(f"Tool {name!r}: parameters must be a JSON Schema of an object, not {parameters!r:.80}.")
    if parameters.get("type", "object") != "object":
        raise ToolError(f"Tool {name!r}: parameters must have type 'object', not {parameters['type']!r}.")
    return {"type": "object", "properties": {}, **parameters} if "$ref" not in parameters else parameters


def from_function(function: Callable[..., Any]) -> tuple[str, str, dict[str, Any]]:
    """Name, description and parameter schema of a Python function, from signature and docstring."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise ToolError(f"{function!r} cannot be read as a tool: {error}.") from None
    summary, texts = _docstring(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolError(
                f"Tool {function.__name__!r}: parameter {parameter} cannot be passed by name; "
                "write every argument as a named parameter."
            )
        kind = hints.get(parameter.name, Any)
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (kind, pydantic.Field(default, description=texts.get(parameter.name)))
    name = getattr(function, "__name__", type(function).__name__)
    try:
        schema = pydantic.create_model(name, **fields).model_json_schema()
    except (pydantic.errors.PydanticUserError, TypeError, NameError) as error:
        raise ToolError(f"Tool {name!r}: its signature has no JSON Schema: {error}") from None
    return name, summary, _without_titles(schema)


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned = {k: v for k, v in schema.items() if not (k == "title" and isinstance(v, str))}
    return {
        key: {name: _without_titles(sub) for name, sub in value.items()}
        if key in ("properties", "$defs") and isinstance(value, dict)
        else _without_titles(value)
        for key, value in cleaned.items()
    }


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Summary and parameter descriptions of a Google, NumPy or Sphinx docstring."""
    texts = {name: described.strip() for name, described in _SPHINX.findall(text)}
    summary, section, current = [], "", ""
    for line in text.splitlines():
        heading = _SECTION.match(line)
        if heading:
            section, current = heading[1].lower(), ""
            continue
        if section in ("args", "arguments", "parameters"):
            entry = re.match(r"^\s*(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$", line)
            if entry and not (current and line.startswith("        ")):
                current = entry[1]
                texts.setdefault(current, entry[2].strip())
            elif current and line.strip() and not set(line.strip()) <= {"-"}:
                texts[current] = f"{texts[current]} {line.strip()}".strip()
        elif not section and not line.lstrip().startswith(":"):
            summary.append(line)
    return "\n".join(summary).strip(), texts


def names_of(tools: Sequence[Tool]) -> list[str]:
    """Names in order."""
    return [tool.name for tool in tools]
