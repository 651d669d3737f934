"""JSON Schemas made ready for the engine: enforced as they mean, or refused by name where that cannot be.

Accepted are drafts 4 to 2020-12, OpenAI's ``response_format`` shape and MCP's ``inputSchema``. Nothing is relaxed
silently: what no grammar says is refused by JSON pointer and keyword, or, with ``unsupported="validate"``, left out
openly, listed, and checked afterwards. Every finished document is checked against the schema as it was given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import jsonschema

from mmspec_agent.core.errors import OptionError, OutputInvalid, SchemaError, UnsupportedSchema

from .branches import Reader
from .checking import Checker, loads, validator_class
from .document import Document, place_of, pointer_of
from .facts import Part, Refused
from .lark import lark_rules
from .rewrite import hint_view
from .shape import Node, settle, shortest
from .shape_build import Builder
from .survey import blame_impossible, check_possible
from .terminal import Unwritable

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
    close_objects: bool = True

    @property
    def text(self) -> str:
        """What the grammar depends on, as text: the cache key of compiled grammars."""
        key = [self.separators, self.close_objects, [list(place) for place in self.unenforced], self.given]
        return json.dumps(key, ensure_ascii=False)

    @cached_property
    def _checker(self) -> Checker:
        return Checker(Document(self.given))

    @cached_property
    def _settled(self) -> Node:
        return self.shape()

    def shape(self) -> Node:
        """The shape of the schema's documents, settled and made anew."""
        builder = _builder(self._checker, self.separators, self.close_objects)
        root = builder.node([Part("")])
        settle(root)
        return root

    def rules(self, start: str) -> str:
        """Rules of llguidance's Lark dialect; ``start``, a name in small letters, generates the documents."""
        item, key = SEPARATORS[self.separators]
        return lark_rules(self._settled, start, (item.encode(), key.encode()))

    def check_text(self, text: str) -> None:
        """As ``check``, of a whole JSON document, whose numbers count as they are written."""
        try:
            value = loads(text)
        except ValueError as error:
            raise OutputInvalid(
                f"The reply is no whole JSON document ({error}); it was cut: {text[-60:]!r}. Raise max_new_tokens."
            ) from None
        self.check(value)

    def check(self, value: Any) -> None:
        """Raise OutputInvalid if a finished value breaks the schema as given; floats count as they are written."""
        error = self._checker.first_error(value)
        if error is None:
            return
        place = place_of(pointer_of(error.absolute_path))
        fault = (
            "the grammar could not enforce this keyword. Ask again, or simplify the schema."
            if self.unenforced
            else "the grammar should not have let it through. This is a fault of mmspec_agent; report the schema."
        )
        raise OutputInvalid(f"The reply is valid JSON but {error.message} at {place} ({error.validator}); {fault}")


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
    document = Document(given)
    _check_valid(document)
    try:
        check_possible(document)
        builder = _builder(Checker(document), separators, close_objects)
        root = builder.node([Part("")])
        settle(root)
        refusals = list(builder.reader.refusals.values())
        if refusals and unsupported == "refuse":
            raise _refusal([(one.pointer, one.keyword, one.why) for one in refusals])
        if shortest(root) is None:
            raise SchemaError(blame_impossible(builder, document))
        item, key = SEPARATORS[separators]
        lark_rules(root, "start", (item.encode(), key.encode()))
    except (Refused, Unwritable) as error:
        raise _refusal([("", _first_keyword(given), str(error))]) from None
    except RecursionError:
        raise SchemaError("The schema is nested too deeply to be read; flatten it or use $ref.") from None
    unenforced = tuple(Unenforced(one.pointer, one.keyword) for one in refusals)
    return JsonSchema(hint_view(given), given, unenforced, separators, close_objects)


def _builder(checker: Checker, separators: Separators, close_objects: bool) -> Builder:
    return Builder(Reader(checker.document), checker, SEPARATORS[separators], close_objects)


def _first_keyword(schema: Schema) -> str:
    return next((key for key in schema if not key.startswith("$")), "$ref") if isinstance(schema, dict) else "schema"


def _read(schema: Any) -> Schema:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise SchemaError(f"A JSON Schema is a dict or a bool, not {type(schema).__name__}.")
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise SchemaError("The schema is nested too deeply to be read; flatten it or use $ref.") from None
    except (TypeError, ValueError) as error:
        raise SchemaError(f"The schema is no JSON: {error}.") from None
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_SCHEMA_BYTES:
        raise SchemaError(
            f"The schema has {size:,} bytes; accepted are up to {MAX_SCHEMA_BYTES:,}. "
            "Move large enumerations out of the schema."
        )
    copy: Schema = json.loads(text)
    return copy


def _check_valid(document: Document) -> None:
    try:
        checked: Any = validator_class(document.draft)
        # Expressions are read by the rules of ECMA-262 later on, not by Python's.
        checked.check_schema(document.root, format_checker=jsonschema.FormatChecker(formats=()))
    except jsonschema.SchemaError as error:
        place = place_of(pointer_of(error.absolute_path))
        raise SchemaError(f"The schema is invalid at {place}: {error.message}") from None
    except RecursionError:
        raise SchemaError("The schema is nested too deeply to be read; flatten it or use $ref.") from None


def _refusal(dropped: list[tuple[str, str, str]]) -> UnsupportedSchema:
    places = "; ".join(f"{keyword!r} at {place_of(pointer)} ({why})" for pointer, keyword, why in dropped[:8])
    more = f" and {len(dropped) - 8} more" if len(dropped) > 8 else ""
    return UnsupportedSchema(
        f"The grammar cannot enforce {places}{more}. Remove it, or pass "
        'unsupported="validate" to leave it out of the grammar and check the finished reply against it.',
        tuple((pointer, keyword) for pointer, keyword, _ in dropped),
    )
