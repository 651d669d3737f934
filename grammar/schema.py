"""JSON Schemas made ready for the engine: resolved, closed, and refused by name where they cannot be enforced.

Accepted are draft 7 and 2020-12, OpenAI's ``response_format`` shape and MCP's ``inputSchema`` (SYSTEM.md G1).
Nothing is relaxed silently: what llguidance cannot enforce is refused by JSON pointer and keyword, or, with
``unsupported="validate"``, taken out openly, listed, and checked afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import jsonschema
from jsonschema.protocols import Validator
from llguidance import LLMatcher

from mmspec_agent.core.errors import OptionError, OutputInvalid, SchemaError, UnsupportedSchema

from .rewrite import closed, modern, pointer_of
from .survey import check_possible, subschemas, unenforceable

Schema = dict[str, Any] | bool
Separators = Literal["spaced", "compact"]
Unsupported = Literal["refuse", "validate"]

MAX_SCHEMA_BYTES: Final = 1 << 20
"""Larger schemas are refused: they are data, not a description of it."""

SEPARATORS: Final[Mapping[str, tuple[str, str]]] = {"spaced": (", ", ": "), "compact": (",", ":")}
"""Item and key separator of each named style; "spaced" is what chat templates' ``tojson`` writes."""


class Unenforced(NamedTuple):
    """A keyword the grammar does not enforce, by JSON pointer of the schema that holds it."""

    pointer: str
    keyword: str


@dataclass(frozen=True)
class JsonSchema:
    """A schema the engine enforces exactly or more strictly than asked, apart from ``unenforced``.

    ``schema`` is what the grammar follows, ``given`` what the user wrote and what a finished document is
    checked against.
    """

    schema: Schema
    given: Schema
    unenforced: tuple[Unenforced, ...] = ()
    separators: Separators = "spaced"

    @property
    def text(self) -> str:
        """Canonical JSON of the normalised schema and its style: the cache key of compiled grammars."""
        return json.dumps([self.separators, self.schema], ensure_ascii=False)

    def rules(self) -> str:
        """The schema with llguidance's own options embedded."""
        return json.dumps(with_style(self.schema, self.separators), ensure_ascii=False)

    def check(self, value: Any) -> None:
        """Raise OutputInvalid if a finished value breaks the schema as it was given."""
        try:
            validator_of(self.given)(self.given).validate(value)
        except jsonschema.ValidationError as error:
            place = "/" + "/".join(map(str, error.absolute_path)) if error.absolute_path else "the root"
            raise OutputInvalid(
                f"The reply is valid JSON but {error.message!r} at {place} ({error.validator}); the grammar could "
                "not enforce this keyword. Ask again, or simplify the schema."
            ) from error


def normalise(
    schema: Any,
    *,
    separators: Separators = "spaced",
    unsupported: Unsupported = "refuse",
    close_objects: bool = True,
) -> JsonSchema:
    """The enforceable form of a JSON Schema.

    ``close_objects``: objects that list properties and say nothing of others admit no others. Raises
    SchemaError (invalid, impossible, endless, remote, too large) or UnsupportedSchema (by pointer and keyword).
    """
    if separators not in SEPARATORS:
        raise OptionError(f"separators={separators!r} is unknown; accepted are {', '.join(SEPARATORS)}.")
    if unsupported not in ("refuse", "validate"):
        raise OptionError(f"unsupported={unsupported!r} is unknown; accepted are refuse, validate.")
    given = _read(schema)
    _check_valid(given)
    try:
        ready = modern(given)
        check_possible(ready)
        dropped = unenforceable(ready)
        if dropped and unsupported == "refuse":
            raise _refusal(dropped)
        for pointer, keyword in dropped:
            _relax(ready, pointer, keyword)
        if close_objects:
            ready = closed(ready)
    except RecursionError:
        raise SchemaError("The schema is nested too deeply to be read; flatten it or use $ref.") from None
    ready, more = _fit_engine(ready, unsupported, separators)
    unenforced = tuple(Unenforced(*pair) for pair in [*dropped, *more])
    return JsonSchema(ready, given, unenforced, separators)


def with_style(schema: Schema, separators: Separators) -> dict[str, Any]:
    """``schema`` with llguidance's options: fixed separators, no free whitespace, no numeric escapes."""
    item, key = SEPARATORS[separators]
    base = dict(schema) if isinstance(schema, dict) else ({} if schema else {"not": {}})
    base["x-guidance"] = {
        "whitespace_flexible": False,
        "item_separator": item,
        "key_separator": key,
        # \uXXXX could spell a declared key a second time: it is left out unless a constant cannot do without.
        "json_allowed_escapes": 'nrbtf\\"u' if _NEEDS_NUMERIC.search(json.dumps(schema)) else 'nrbtf\\"',
    }
    return base


def validator_of(schema: Schema) -> type[Validator]:
    """The jsonschema class for a schema's own draft, 2020-12 where it names none."""
    cls: type[Validator] = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return cls


def _read(schema: Any) -> Schema:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise SchemaError(f"A JSON Schema is a dict or a bool, not {type(schema).__name__}.")
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"The schema is no JSON: {error}.") from None
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_SCHEMA_BYTES:
        raise SchemaError(
            f"The schema has {size:,} bytes; accepted are up to {MAX_SCHEMA_BYTES:,}. "
            "Move large enumerations out of the schema."
        )
    copy: Schema = json.loads(text)
    return copy


def _check_valid(schema: Schema) -> None:
    cls = validator_of(schema)
    try:
        cls.check_schema(schema)  # type: ignore[arg-type]
    except jsonschema.SchemaError as error:
        place = pointer_of(error.absolute_path)
        raise SchemaError(f"The schema is invalid at {place}: {error.message}") from None
    except RecursionError:
        raise SchemaError("The schema is nested too deeply to be read; flatten it or use $ref.") from None


def _refusal(dropped: list[tuple[str, str]], why: str = "") -> UnsupportedSchema:
    places = "; ".join(f"{keyword!r} at {pointer or '/'}" for pointer, keyword in dropped[:8])
    more = f" and {len(dropped) - 8} more" if len(dropped) > 8 else ""
    return UnsupportedSchema(
        f"The grammar cannot enforce {places}{more}{': ' + why if why else ''}. Remove it, or pass "
        'unsupported="validate" to leave it out of the grammar and check the finished reply against it.',
        tuple(dropped),
    )


def _relax(schema: Schema, pointer: str, keyword: str) -> None:
    holder = _at(schema, pointer)
    if keyword == "oneOf" and "anyOf" not in holder:
        holder["anyOf"] = holder.pop("oneOf")
    elif keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        bound = holder.pop(keyword)
        holder.setdefault(keyword.removeprefix("exclusive").lower(), bound)
    else:
        holder.pop(keyword, None)


def _at(schema: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        schema = schema[int(part)] if isinstance(schema, list) else schema[part]
    return schema


def engine_error(schema: Schema, separators: Separators) -> str:
    """What llguidance has against a schema; empty if it compiles."""
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(with_style(schema, separators)))
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    return str(messages[0]) if failed else ""


def _fit_engine(
    schema: Schema, unsupported: Unsupported, separators: Separators
) -> tuple[Schema, list[tuple[str, str]]]:
    """Refuse, or relax one keyword after another, until llguidance takes the schema."""
    dropped: list[tuple[str, str]] = []
    while message := engine_error(schema, separators):
        if "nsatisfiable" in message:
            raise SchemaError(f"The schema is impossible: {_short(message)}")
        place = _blame(schema, separators)
        if place is None or unsupported == "refuse" or place in dropped:
            raise _refusal([place] if place else [("", "schema")], _short(message))
        dropped.append(place)
        _relax(schema, *place)
    return schema, dropped


def _blame(schema: Schema, separators: Separators) -> tuple[str, str] | None:
    """The smallest subschema that does not compile by itself, and the keyword without which it does."""
    if not isinstance(schema, dict):
        return None
    definitions: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    for pointer, sub in sorted(subschemas(schema), key=lambda item: -item[0].count("/")):
        if not isinstance(sub, dict) or not _fails({**definitions, **sub}, separators):
            continue
        for keyword in _SUSPECTS:
            if keyword in sub and not _fails(
                {**definitions, **{k: v for k, v in sub.items() if k != keyword}}, separators
            ):
                return pointer, keyword
    return None


def _fails(schema: Schema, separators: Separators) -> bool:
    return bool(engine_error(schema, separators))


def _short(message: str) -> str:
    return message.strip().splitlines()[0][:300] if message.strip() else "unknown reason"


_NEEDS_NUMERIC: Final = re.compile(r"\\u00[01][0-9a-f]|\\u007f")
_SUSPECTS: Final = (
    "pattern", "format", "oneOf", "patternProperties", "minProperties", "maxProperties", "multipleOf", "allOf",
    "anyOf", "$ref", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength",
    "minItems", "maxItems", "items", "prefixItems", "additionalProperties", "properties", "required", "enum",
    "const", "type",
)  # fmt: skip
