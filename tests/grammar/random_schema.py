"""Random schemas and values from a grammar of schemas: every keyword, nested, over a handful of names and constants."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("a", "b", "c")
CONSTANTS: tuple[Any, ...] = (None, True, False, 0, 1, 2, 1.5, "", "a", "b", "ab", [], [1], {}, {"a": 1})
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
PATTERNS = ("^a", "b$", "^(?!a)", "a.*b", "^[ab]?$")
KEYWORDS = (
    "properties", "properties", "allOf", "anyOf", "oneOf", "not", "if", "items", "prefixItems", "contains",
    "additionalProperties", "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas",
    "unevaluatedProperties", "unevaluatedItems", "type", "required", "enum", "$ref",
)  # fmt: skip


class Draw:
    """Draws schemas and values by one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def document(self) -> dict[str, Any]:
        """A whole schema; ``#/$defs/d`` names a schema that refers to nothing."""
        whole = self.schema(0)
        schema = whole if isinstance(whole, dict) else {"anyOf": [whole, {"type": "null"}]}
        return {**schema, "$defs": {"d": self.leaf()}}

    def constant(self) -> Any:
        return self.rng.choice(CONSTANTS)

    def leaf(self) -> Any:
        rng = self.rng
        simple: list[Any] = [
            {"type": rng.choice(TYPES)}, {"type": rng.sample(TYPES, 2)}, {"const": self.constant()},
            {"enum": [self.constant() for _ in range(rng.randint(1, 3))]},
            {rng.choice(["minimum", "exclusiveMinimum"]): rng.randint(-1, 2)},
            {rng.choice(["maximum", "exclusiveMaximum"]): rng.choice([0, 1, 1.5, 2])},
            {"multipleOf": rng.choice([1, 2, 0.5])}, {rng.choice(["minLength", "maxLength"]): rng.randint(0, 2)},
            {"pattern": rng.choice(PATTERNS)}, {"required": rng.sample(NAMES, rng.randint(1, 2))},
            {rng.choice(["minItems", "maxItems", "minProperties", "maxProperties"]): rng.randint(0, 2)},
            True, False, {}, {"uniqueItems": True, "items": {"enum": ["a", "b", 1]}},
        ]  # fmt: skip
        return rng.choice(simple)

    def schema(self, depth: int) -> Any:
        if depth > 2 or self.rng.random() < 0.25:
            return self.leaf()
        found: dict[str, Any] = {}
        for _ in range(self.rng.choice([1, 1, 2, 2, 3])):
            found.update(self.keyword(self.rng.choice(KEYWORDS), depth + 1))
        return found

    def keyword(self, name: str, depth: int) -> dict[str, Any]:
        rng = self.rng
        if name == "properties":
            return {name: {member: self.schema(depth) for member in rng.sample(NAMES, rng.randint(1, 3))}}
        if name in ("allOf", "anyOf", "oneOf", "prefixItems"):
            return {name: [self.schema(depth) for _ in range(rng.randint(1, 3))]}
        if name == "if":
            more = {key: self.schema(depth) for key in ("then", "else") if rng.random() < 0.7}
            return {"if": self.schema(depth), **more}
        if name == "contains":
            counts = {key: rng.randint(0, 2) for key in ("minContains", "maxContains") if rng.random() < 0.4}
            return {name: self.schema(depth), **counts}
        fixed: dict[str, Any] = {
            "patternProperties": {rng.choice(["^a", "b", "^[bc]$"]): self.leaf()},
            "propertyNames": rng.choice([{"pattern": "^[ab]"}, {"enum": ["a", "c"]}, {"not": {"const": "a"}}]),
            "dependentRequired": {rng.choice(NAMES): [rng.choice(NAMES)]},
            "dependentSchemas": {rng.choice(NAMES): self.leaf()},
            "type": rng.choice(["object", "array", ["object", "array"], ["integer", "string"]]),
            "required": [rng.choice(NAMES)],
            "enum": [self.constant() for _ in range(3)],
            "$ref": "#/$defs/d",
        }
        return {name: fixed[name] if name in fixed else self.schema(depth)}

    def value(self, depth: int = 0) -> Any:
        if depth > 1 or self.rng.random() < 0.6:
            return self.constant()
        if self.rng.random() < 0.5:
            return {name: self.value(depth + 1) for name in self.rng.sample(NAMES, self.rng.randint(0, 3))}
        return [self.value(depth + 1) for _ in range(self.rng.randint(0, 3))]
