"""Random JSON Schemas from a random grammar of schemas: nested unions, intersections, free names, recursion.

Made to be hard to finish in time: what one token rules out may be everything but the dearest branch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from .random_schemas import random_leaf

Schema = dict[str, Any]

_NAMES: Final = ("a", "ab", "name", "b", "kind", "field_0", "field_1", "n", "é", 'q"', "value", "next")
_NAME_PATTERNS: Final = ("^f", "^x-", "_[0-9]$", "^[a-c]+$")


def wild_schema(draw: random.Random) -> Schema:
    """A schema, refused by ``normalise`` now and then: impossible, or beyond what a grammar can enforce."""
    definitions = [f"d{i}" for i in range(draw.choice((0, 0, 1, 2, 3)))]
    maker = _Maker(draw, definitions)
    schema = maker.object(draw.randrange(1, 4)) if draw.random() < 0.3 else maker.any(draw.randrange(1, 5))
    if definitions:
        kinds: tuple[Callable[[int], Schema], ...] = (maker.object, maker.object, maker.union)
        schema["$defs"] = {name: draw.choice(kinds)(2) for name in definitions}
    return schema


class _Maker:
    def __init__(self, draw: random.Random, definitions: list[str]) -> None:
        self.draw = draw
        self.definitions = definitions

    def any(self, depth: int) -> Schema:
        draw = self.draw
        if self.definitions and draw.random() < 0.2:
            return {"$ref": f"#/$defs/{draw.choice(self.definitions)}"}
        if depth <= 0 or draw.random() < 0.2:
            return random_leaf(draw)
        kinds = (self.object, self.object, self.array, self.union, self.union, self.rivals, self.intersection)
        return draw.choice(kinds)(depth - 1)

    def object(self, depth: int, names: list[str] | None = None) -> Schema:
        draw = self.draw
        names = draw.sample(_NAMES, draw.randrange(6)) if names is None else names
        share = draw.choice((0.0, 0.5, 0.5, 1.0))
        required = [name for name in names if draw.random() < share]
        if draw.random() < 0.2:
            required.append(draw.choice(_NAMES))
        schema: Schema = {
            "type": "object",
            "properties": {name: self.any(depth - 1) for name in names},
            "required": list(dict.fromkeys(required)),
        }
        if draw.random() < 0.15:
            schema["patternProperties"] = {p: self.any(0) for p in draw.sample(_NAME_PATTERNS, draw.randrange(1, 3))}
        free = draw.randrange(4)
        if free == 0 or not set(schema["required"]) <= set(names):
            schema["additionalProperties"] = draw.choice((True, self.any(depth - 1)))
        elif free == 1:
            schema["additionalProperties"] = False
        return schema

    def rivals(self, depth: int) -> Schema:
        """Objects over the same few names, in orders and with required names of their own."""
        names = self.draw.sample(_NAMES, self.draw.randrange(2, 7))
        options = []
        for _ in range(self.draw.randrange(2, 5)):
            some = self.draw.sample(names, self.draw.randrange(1, len(names) + 1))
            options.append(self.object(depth - 1, some))
        return {"anyOf": options}

    def array(self, depth: int) -> Schema:
        draw, least = self.draw, self.draw.choice((0, 0, 1, 2, 4))
        schema: Schema = {"type": "array", "items": self.any(depth - 1), "minItems": least}
        if draw.random() < 0.5:
            schema["maxItems"] = least + draw.randrange(3)
        if draw.random() < 0.2:
            schema["prefixItems"] = [self.any(depth - 1) for _ in range(draw.randrange(1, 3))]
        return schema

    def union(self, depth: int) -> Schema:
        return {"anyOf": [self.any(depth - 1) for _ in range(self.draw.randrange(2, 5))]}

    def intersection(self, depth: int) -> Schema:
        kind = self.draw.choice((self.object, self.object, self.rivals, self.union))
        parts = [kind(depth - 1), self.object(depth - 1)]
        for part in parts:
            part.pop("additionalProperties", None) if self.draw.random() < 0.7 else None
        if self.draw.random() < 0.3:
            return {**parts[0], "allOf": [parts[1]]}
        return {"allOf": parts}
