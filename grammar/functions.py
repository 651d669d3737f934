"""Name, description and parameter schema of what Python people hand over as a tool: functions, methods,
partials, callable objects, classes that describe their arguments."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import pydantic
from pydantic.fields import FieldInfo
from pydantic.json_schema import PydanticJsonSchemaWarning

from mmspec_agent.core.errors import ToolError

from .docstrings import read_docstring
from .typed_dicts import portable


class Described(NamedTuple):
    """A tool as its author wrote it; ``parameters`` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


def describe_callable(tool: Callable[..., Any]) -> Described:
    """What a callable says of itself. ToolError names the parameter that cannot be offered, and why."""
    if isinstance(tool, type):
        return _of_class(tool)
    bound: functools.partial[Any] | None = None
    if isinstance(tool, functools.partial):
        bound, tool = tool, tool.func
        if isinstance(tool, type):
            raise ToolError(f"A partial of the class {tool.__name__!r} is no tool; wrap the call in a function.")
    name = getattr(tool, "__name__", type(tool).__name__)
    code = tool if inspect.isroutine(tool) else type(tool).__call__
    text = inspect.getdoc(tool if inspect.isroutine(tool) else type(tool)) or inspect.getdoc(code) or ""
    parameters = _parameters(bound or tool, name)
    if name == "<lambda>":
        raise ToolError("A lambda has no name by which a model could call it; write a function with def.")
    return _of_parameters(name, text, parameters, inspect.unwrap(code))


def _of_class(tool: type) -> Described:
    """A class whose fields are the arguments: a pydantic model, a dataclass, a TypedDict; else its constructor."""
    written = tool.__dict__.get("__doc__")
    own = inspect.cleandoc(written) if isinstance(written, str) else ""
    fields = isinstance(tool, type(pydantic.BaseModel)) or dataclasses.is_dataclass(tool) or typing.is_typeddict(tool)
    if not fields:
        constructor = inspect.unwrap(tool.__init__)  # type: ignore[misc]
        text = own or (inspect.getdoc(constructor) if inspect.isfunction(constructor) else None) or ""
        return _of_parameters(tool.__name__, text, _parameters(tool, tool.__name__), constructor)
    if own.startswith(f"{tool.__name__}(") and dataclasses.is_dataclass(tool):
        own = ""  # dataclasses write their signature there
    schema = _schema(lambda: pydantic.TypeAdapter(portable(tool)).json_schema(), tool.__name__)
    if schema.get("type") != "object" and "$ref" not in schema:
        raise ToolError(f"Tool {tool.__name__!r}: its arguments must be an object with names, not {schema!r:.80}.")
    described = read_docstring(own, schema.get("properties", {}))
    for name, text in described.parameters.items():
        body = schema.get("properties", {}).get(name)
        if isinstance(body, dict) and "$ref" not in body:
            body.setdefault("description", text)
    schema.pop("description", None)
    return Described(tool.__name__, described.summary, without_titles(schema))


def _parameters(tool: Any, name: str) -> list[inspect.Parameter]:
    """The parameters that a caller has to give by name."""
    try:
        signature = inspect.signature(tool)
    except (TypeError, ValueError) as error:
        raise ToolError(f"{tool!r:.80} cannot be read as a tool: {error}.") from None
    given = set(tool.keywords) if isinstance(tool, functools.partial) else set()
    found = []
    for index, parameter in enumerate(signature.parameters.values()):
        if parameter.name in given or (not index and parameter.name in ("self", "cls")):
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolError(
                f"Tool {name!r}: parameter {parameter} cannot be passed by name; "
                "write every argument as a named parameter."
            )
        found.append(parameter)
    return found


def _of_parameters(name: str, text: str, parameters: list[inspect.Parameter], code: Any) -> Described:
    described = read_docstring(text, [parameter.name for parameter in parameters])
    # Fields go by number, their names as aliases: any Python name is one of a parameter, not so of a field.
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(parameters):
        kind = _annotation(parameter, code, name)
        _check_kind(kind, parameter, name)
        fields[f"p{index}"] = _field(kind, parameter, described.parameters.get(parameter.name))
    model = _schema(lambda: pydantic.create_model("Arguments", **fields), name)
    schema = _schema(lambda: model.model_json_schema(by_alias=True), name)
    return Described(name, described.summary, without_titles(schema))


def _check_kind(kind: Any, parameter: inspect.Parameter, name: str) -> None:
    """ToolError that names the parameter whose type JSON cannot write."""
    try:
        _schema(lambda: pydantic.TypeAdapter(kind).json_schema(), name)
    except ToolError as error:
        raise ToolError(
            f"Tool {name!r}: parameter {parameter.name!r} of type {parameter.annotation!r} has no JSON Schema. "
            "Give it a type that can, or bind it with functools.partial before the function is offered."
        ) from error


def _annotation(parameter: inspect.Parameter, code: Any, name: str) -> Any:
    """The parameter's type; names in quotes are looked up where the function was written."""
    if parameter.annotation is parameter.empty:
        return Any
    around = {**_scope_of(code), **_locals_of(code)}
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        hints = typing.get_type_hints(holder, getattr(code, "__globals__", {}), around, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise ToolError(
            f"Tool {name!r}: the type of parameter {parameter.name!r}, {parameter.annotation!r}, cannot be "
            f"understood: {error}."
        ) from None
    return portable(hints[parameter.name])


def _scope_of(code: Any) -> dict[str, Any]:
    """Names of the scope that a function was written in, while that scope is still being run."""
    written = getattr(getattr(code, "__func__", code), "__code__", None)
    frame = inspect.currentframe()
    while frame is not None and written is not None:
        if any(constant is written for constant in frame.f_code.co_consts):
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def _locals_of(code: Any) -> dict[str, Any]:
    """Names of the scopes around a function that it holds on to."""
    function = getattr(code, "__func__", code)
    try:
        return dict(inspect.getclosurevars(function).nonlocals) if inspect.isfunction(function) else {}
    except ValueError:  # a name that is bound later
        return {}


def _field(kind: Any, parameter: inspect.Parameter, text: str | None) -> tuple[Any, Any]:
    """Type and default of a model's field; what is written at the type describes it first, the docstring last."""
    notes = typing.get_args(kind)[1:] if typing.get_origin(kind) is Annotated else ()
    default: Any = ... if parameter.default is parameter.empty else parameter.default
    own = [note.description for note in (*notes, default) if isinstance(note, FieldInfo) and note.description]
    texts = [note for note in notes if isinstance(note, str)]
    described = None if own else (texts[0] if texts else text)
    extra = pydantic.Field(alias=parameter.name, description=described)
    if described is None:
        extra = pydantic.Field(alias=parameter.name)
    return Annotated[kind, extra], default


def _schema(build: Callable[[], Any], name: str) -> Any:
    try:
        with warnings.catch_warnings():
            # A default that JSON cannot show is left out, which is right: the model need not see it.
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            return build()
    except (pydantic.errors.PydanticUserError, TypeError, NameError, ValueError) as error:
        raise ToolError(f"Tool {name!r}: its signature has no JSON Schema: {error}") from None


def without_titles(schema: Any) -> Any:
    """A schema without pydantic's titles, which say what the names say."""
    if isinstance(schema, list):
        return [without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned = {k: v for k, v in schema.items() if not (k == "title" and isinstance(v, str))}
    return {
        key: {name: without_titles(sub) for name, sub in value.items()}
        if key in ("properties", "$defs") and isinstance(value, dict)
        else value
        if key in ("default", "const", "enum", "examples")
        else without_titles(value)
        for key, value in cleaned.items()
    }
