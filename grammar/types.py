"""Output types people already write, as a grammar and a way to read the reply."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pydantic

from mmspec_agent.core.errors import OutputInvalid, OutputTypeError, SchemaError

from .constraint import GrammarPlan
from .plans import lark_plan, regex_plan, schema_plan
from .python_schema import ReadableSchema
from .schema import JsonSchema, Separators, Unsupported, normalise
from .typed_dicts import portable
from .vocabulary import Vocabulary

_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}


@dataclass(frozen=True)
class OutputType:
    """A grammar of replies and ``parse``: text to the object asked for (raises OutputInvalid).

    ``schema``: the JSON Schema, None for regular expressions and grammars; ``plan`` is compiled by ``compile``.
    """

    kind: str
    parse: Callable[[str], Any]
    schema: JsonSchema | None = None
    source: str = ""

    def compile(self, vocabulary: Vocabulary) -> GrammarPlan:
        """The plan over a vocabulary, cached."""
        if self.schema is not None:
            return schema_plan(vocabulary, self.schema)
        if self.kind == "lark":
            return lark_plan(vocabulary, self.source)
        return regex_plan(vocabulary, self.source)

    def render(self) -> str | None:
        """The schema as text to show the model, None where there is none."""
        return None if self.schema is None else json.dumps(self.schema.given, ensure_ascii=False)


def output_type(
    wanted: Any, *, separators: Separators = "spaced", unsupported: Unsupported = "refuse"
) -> OutputType | None:
    """The output type of a ``response_format``; None for plain text.

    Accepted: pydantic models, dataclasses, TypedDicts, Enums, Literals and other typing forms, JSON Schema
    dicts, OpenAI ``response_format`` dicts, Outlines terms. Raises OutputTypeError and SchemaError.
    """
    if wanted is None or wanted is str:
        return None
    if isinstance(wanted, OutputType):
        return wanted
    if isinstance(wanted, Mapping):
        return _from_mapping(dict(wanted), separators, unsupported)
    outlined = _from_outlines(wanted, separators, unsupported)
    if outlined is not None:
        return outlined
    return _from_python(wanted, separators, unsupported)


def _from_mapping(wanted: dict[str, Any], separators: Separators, unsupported: Unsupported) -> OutputType | None:
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _json(_ANY_OBJECT, separators, unsupported)
    if kind == "json_schema" and ("json_schema" in wanted or "schema" in wanted):
        inner = wanted.get("json_schema", wanted)
        if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), (Mapping, bool)):
            raise SchemaError("response_format of type 'json_schema' needs the schema under json_schema.schema.")
        return _json(inner["schema"], separators, unsupported)
    if kind == "regex" and isinstance(wanted.get("pattern"), str):
        return OutputType("regex", str, source=wanted["pattern"])
    if kind in ("grammar", "lark") and isinstance(wanted.get("grammar"), str):
        return OutputType("lark", str, source=wanted["grammar"])
    return _json(wanted, separators, unsupported)


def _json(schema: Any, separators: Separators, unsupported: Unsupported) -> OutputType:
    ready = normalise(dict(schema) if isinstance(schema, Mapping) else schema, separators=separators,
                      unsupported=unsupported)  # fmt: skip

    def parse(text: str) -> Any:
        ready.check_text(text)
        return json.loads(text)

    return OutputType("json", parse, ready)


def _from_python(wanted: Any, separators: Separators, unsupported: Unsupported) -> OutputType:
    if not _is_type(wanted):
        raise OutputTypeError(
            f"response_format={wanted!r:.80} is no output type. Accepted are pydantic models, dataclasses, TypedDicts, "
            "Enums, Literals, dates, decimals and other types pydantic reads, JSON Schema dicts, OpenAI "
            "response_format dicts and Outlines terms."
        )
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(portable(wanted))
        schema = adapter.json_schema(schema_generator=ReadableSchema)
    except (
        pydantic.errors.PydanticUserError,
        pydantic.errors.PydanticInvalidForJsonSchema,
        TypeError,
        NameError,
    ) as error:
        raise OutputTypeError(f"{wanted!r:.80} has no JSON Schema: {error}") from None
    ready = normalise(schema, separators=separators, unsupported=unsupported)

    def parse(text: str) -> Any:
        ready.check_text(text)
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as error:
            raise OutputInvalid(
                f"The reply is valid JSON of the schema, but {getattr(wanted, '__name__', wanted)} rejects it: {error}"
            ) from None

    return OutputType("json", parse, ready)


def _is_type(wanted: Any) -> bool:
    """Whether this is a type at all; pydantic says of which it has a schema."""
    return isinstance(wanted, (type, *_ALIAS)) or typing.get_origin(wanted) is not None


_ALIAS: Final[tuple[type, ...]] = tuple(filter(None, [getattr(typing, "TypeAliasType", None)]))


def _from_outlines(wanted: Any, separators: Separators, unsupported: Unsupported) -> OutputType | None:
    """Outlines' own terms; the library is asked only when an object of its own comes in."""
    if not type(wanted).__module__.startswith("outlines"):
        return None
    from outlines.types import dsl

    if isinstance(wanted, dsl.JsonSchema):
        schema = wanted.schema
        return _json(json.loads(schema) if isinstance(schema, str) else schema, separators, unsupported)
    if isinstance(wanted, dsl.CFG):
        return OutputType("lark", str, source=wanted.definition)
    if isinstance(wanted, dsl.Term):
        return OutputType("regex", str, source=dsl.to_regex(wanted))
    raise OutputTypeError(
        f"{type(wanted).__name__} of Outlines is not supported; accepted are its terms (Regex, Choice, sequences), "
        "JsonSchema and CFG."
    )
