"""Tools as people write them: OpenAI dicts, MCP tools, Python functions (SYSTEM.md G4, G6)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pydantic

from mmspec_agent.core.errors import OptionError, SchemaError, ToolError

from .functions import describe_callable, without_titles
from .schema import JsonSchema, Separators, Unsupported, normalise

_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")

_SCHEMA_ATTRIBUTES: Final = ("params_json_schema", "parameters_json_schema", "parameters", "input_schema")
"""Where tool objects of agent libraries keep the schema of their arguments."""


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
    """Tools from dicts or functions.

    Raises OptionError if ``tools`` is no list, ToolError (names) and SchemaError (parameters), naming the tool.
    """
    if isinstance(tools, (str, bytes, Mapping, type)) or callable(tools) or not isinstance(tools, Iterable):
        raise OptionError(
            f"tools={tools!r:.80} is a {type(tools).__name__}; accepted is a list of functions, OpenAI dicts or MCP "
            "tools: for one tool, a list of one"
        )
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
    name, description, parameters = _described(tool)
    function = tool if callable(tool) and not isinstance(tool, Mapping) else None
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


def _described(tool: Any) -> tuple[str, str, Any]:
    """Name, description and parameters, from every form that tools come in."""
    if isinstance(tool, Mapping):
        return _from_dict(tool)
    if isinstance(getattr(tool, "inputSchema", None), Mapping):  # MCP
        return tool.name, tool.description or "", dict(tool.inputSchema)
    arguments = getattr(tool, "args_schema", None)
    if isinstance(getattr(tool, "name", None), str) and arguments is not None:  # LangChain
        if isinstance(arguments, type) and issubclass(arguments, pydantic.BaseModel):
            arguments = without_titles(arguments.model_json_schema())
        return tool.name, str(getattr(tool, "description", "") or ""), arguments
    for attribute in _SCHEMA_ATTRIBUTES:
        schema = getattr(tool, attribute, None)
        if isinstance(schema, Mapping) and isinstance(getattr(tool, "name", None), str):
            return tool.name, str(getattr(tool, "description", "") or ""), dict(schema)
    if isinstance(tool, (classmethod, staticmethod)):
        return describe_callable(tool.__func__)
    if callable(tool):
        return describe_callable(tool)
    raise ToolError(
        f"A tool is an OpenAI dict, an MCP tool or a Python function, not {type(tool).__name__}: {tool!r:.80}"
    )


def _named(error: SchemaError, name: str) -> SchemaError:
    error.args = (f"Tool {name!r}: {error}", *error.args[1:])
    return error


def _from_dict(tool: Mapping[str, Any]) -> tuple[str, str, Any]:
    body = tool.get("function", tool.get("toolSpec", tool))
    if callable(body):
        return describe_callable(body)
    kind = tool.get("type", "function")
    if kind not in ("function", "custom", "object", None):
        raise ToolError(f"A tool of type {kind!r} runs at a provider; accepted is 'function': {tool!r:.120}")
    if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
        raise ToolError(f"A tool dict needs a 'name' (at the top, or under 'function'): {tool!r:.120}")
    parameters = body.get("parameters", body.get("inputSchema", body.get("input_schema")))
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if isinstance(parameters, Mapping) and set(parameters) == {"json"}:  # Bedrock
        parameters = parameters["json"]
    if isinstance(parameters, type) and issubclass(parameters, pydantic.BaseModel):
        parameters = describe_callable(parameters).parameters
    return body["name"], str(body.get("description") or ""), parameters


def _as_object(parameters: Any, name: str) -> Any:
    if not isinstance(parameters, dict):
        raise ToolError(f"Tool {name!r}: parameters must be a JSON Schema of an object, not {parameters!r:.80}.")
    if parameters.get("type", "object") != "object":
        raise ToolError(f"Tool {name!r}: parameters must have type 'object', not {parameters['type']!r}.")
    return {"type": "object", "properties": {}, **parameters} if "$ref" not in parameters else parameters
