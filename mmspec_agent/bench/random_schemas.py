"""Random JSON Schemas of the kinds that tools use, each of which has finite instances and is enforced in full."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

_WORDS = ("city", "unit", "days", "Straße", "名前", "a b", 'say "hi"', "path\\to", "x", "query", "is_on", "0", "été")
_PATTERNS = ("^[a-z]{2,6}$", "^[A-Z]{3}-[0-9]{4}$", "^(yes|no|maybe)$", "^#[0-9a-f]{6}$", '^[^"]{0,3}$', "^(ab?c)+$")
_FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4")

Schema = dict[str, Any]


def random_schema(draw: random.Random, depth: int = 3) -> Schema:
    """A schema; one in eight refers to itself."""
    if draw.random() < 0.125:
        return _recursive(draw)
    return _any(draw, depth)


def random_leaf(draw: random.Random) -> Schema:
    """A schema without parts."""
    leaves: tuple[Callable[[random.Random], Schema], ...] = (_string, _integer, _number, _enum, _plain)
    return draw.choice(leaves)(draw)


def _any(draw: random.Random, depth: int) -> Schema:
    if depth <= 0 or draw.random() < 0.25:
        return random_leaf(draw)
    return draw.choice((_object, _object, _array, _union))(draw, depth - 1)


def _string(draw: random.Random) -> Schema:
    kind = draw.randrange(5)
    if kind == 0:
        return {"type": "string", "pattern": draw.choice(_PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": draw.choice(_FORMATS)}
    least = draw.randrange(4)
    bounds = {"minLength": least} if kind > 2 else {"minLength": least, "maxLength": least + draw.randrange(9)}
    return {"type": "string", **bounds} if kind < 4 else {"type": "string"}


def _integer(draw: random.Random) -> Schema:
    low = draw.choice((-1000, -7, 0, 1, 18, 99, 10**9))
    kind = draw.randrange(4)
    if kind == 0:
        return {"type": "integer", "minimum": low, "maximum": low + draw.randrange(200)}
    if kind == 1:
        return {"type": "integer", "multipleOf": draw.choice((2, 5, 10))}
    return {"type": "integer", "minimum": low} if kind == 2 else {"type": "integer"}


def _number(draw: random.Random) -> Schema:
    low = draw.choice((-1.75, 0, 0.25, 10))
    return draw.choice(({"type": "number"}, {"type": "number", "minimum": low, "exclusiveMaximum": low + 0.5}))


def _enum(draw: random.Random) -> Schema:
    values: list[Any] = [*_WORDS, 1, 2.5, -3, True, None, [], {"k": [1, "two"]}, "a long text that nobody would guess"]
    chosen = draw.sample(values, draw.randrange(1, 6))
    return {"const": chosen[0]} if len(chosen) == 1 else {"enum": chosen}


def _plain(draw: random.Random) -> Schema:
    return draw.choice(({"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"]}, {}))


def _object(draw: random.Random, depth: int) -> Schema:
    names = draw.sample(_WORDS, draw.randrange(5))
    schema: Schema = {
        "type": "object",
        "properties": {name: _any(draw, depth) for name in names},
        "required": [name for name in names if draw.random() < 0.6],
    }
    if draw.random() < 0.2:
        schema["additionalProperties"] = draw.choice((True, _any(draw, 0)))
    elif draw.random() < 0.5:
        schema["additionalProperties"] = False
    return schema


def _array(draw: random.Random, depth: int) -> Schema:
    least = draw.randrange(3)
    schema: Schema = {"type": "array", "items": _any(draw, depth), "minItems": least}
    if draw.random() < 0.5:
        schema["maxItems"] = least + draw.randrange(3)
    return schema


def _union(draw: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(draw, depth) for _ in range(draw.randrange(2, 4))]}


def _recursive(draw: random.Random) -> Schema:
    node = {
        "type": "object",
        "properties": {"value": _any(draw, 0), "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": draw.choice((["value"], ["value", "children"], [])),
        "additionalProperties": False,
    }
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}
