"""Keywords that combine subschemas: references, ``allOf anyOf oneOf not if``."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from .document import pointer_of
from .facts import Branches, Part, Refused, required
from .tags import tag_of

if TYPE_CHECKING:
    from .branches import Reader

_TRUE: Final[Branches] = ((),)
_FALSE: Final[Branches] = ()
_MOST_PAIRS: Final = 40


def _options(pointer: str, schema: dict[str, Any], name: str, positive: bool = True) -> list[Part]:
    return [Part(pointer + pointer_of((name, index)), positive) for index in range(len(schema[name]))]


def _every(reader: Reader, parts: list[Part], kind: str) -> Branches:
    return reader.goal(parts, kind)


def _some(reader: Reader, parts: list[Part], kind: str) -> Branches:
    return reader.either(*(reader.part(part, kind) for part in parts))


def reference(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    """``$ref``."""
    return reader.part(Part(reader.document.target(pointer, schema["$ref"]), positive), kind)


def dynamic(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    """``$dynamicRef`` where it can name one thing only."""
    target = reader.document.dynamic_target(pointer, schema["$dynamicRef"])
    if target is None:
        raise Refused("what it names depends on the way that leads to it")
    return reader.part(Part(target, positive), kind)


def recursive(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    """``$recursiveRef`` where it can name one thing only."""
    if reader.document.has_dynamic_scope:
        raise Refused("what it names depends on the way that leads to it")
    return reader.part(Part(reader.document.target(pointer, schema["$recursiveRef"]), positive), kind)


def all_of(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    """``allOf``."""
    return (_every if positive else _some)(reader, _options(pointer, schema, "allOf", positive), kind)


def any_of(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    """``anyOf``."""
    return (_some if positive else _every)(reader, _options(pointer, schema, "anyOf", positive), kind)


def one_of(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    """``oneOf``: each branch without those others that it is not provably apart from."""
    options = _options(pointer, schema, "oneOf")
    live = [part for part in options if reader.part(part, kind)]
    meeting = [(a, b) for a, b in combinations(live, 2) if not _apart(reader, a, b, kind)]
    if positive:
        tag = tag_of(reader, live, schema.get("discriminator")) if meeting and kind == "object" else None
        if tag is not None:  # a tag with a default may be left out, but then nothing tells the branches apart
            tagged = (((required(tag),)),)
            return reader.either(*(reader.both(tagged, reader.part(part, kind)) for part in live))
        found = _FALSE
        for part in live:
            others = [b if a == part else a for a, b in meeting if part in (a, b)]
            parts = [part, *(Part(other.pointer, False) for other in others)]
            found = reader.either(found, reader.goal(parts, kind))
        return found
    if len(meeting) > _MOST_PAIRS:
        raise Refused("too many of its branches have values in common")
    none = reader.goal([Part(part.pointer, False) for part in options], kind)
    return reader.either(none, *(reader.goal(pair, kind) for pair in meeting))


def _apart(reader: Reader, a: Part, b: Part, kind: str) -> bool:
    """Whether provably nothing of a type fits both."""
    shared = reader.both(reader.part(a, kind), reader.part(b, kind))
    return all(reader.is_empty(branch, kind) for branch in shared)


def negation(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    """``not``."""
    return reader.part(Part(pointer + "/not", not positive), kind)


def conditional(reader: Reader, pointer: str, schema: dict[str, Any], kind: str, positive: bool) -> Branches:
    """``if`` with ``then`` and ``else``."""
    ways = []
    for name, holds in (("then", True), ("else", False)):
        when = Part(pointer + "/if", holds)
        if name in schema:
            ways.append(reader.goal([when, Part(f"{pointer}/{name}", positive)], kind))
        elif positive and ("then" in schema or "else" in schema):
            ways.append(reader.part(when, kind))
    return reader.either(*ways) if ways else (_TRUE if positive else _FALSE)
