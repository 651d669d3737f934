"""From a normalised schema to its shape."""

from __future__ import annotations

import json
from typing import Any, Final

from mmspec_agent.core.errors import SchemaError

from .formats import FORMATS
from .numbers import NumberRange, decimal
from .regex import Automaton
from .rewrite import ANNOTATIONS, merge, resolve
from .schema import SEPARATORS, JsonSchema
from .shape import Choice, Literal, Node, OneOf, Reference, settle, shortest
from .shape_json import Array, Member, Object
from .shape_values import Anything, Number, String

_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
_ASSERTS: Final = {
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "additionalProperties", "patternProperties", "required", "minProperties", "maxProperties"},
}


def shape_of(schema: JsonSchema) -> Node:
    """The shape of a schema's documents. Raises SchemaError if no finite document exists."""
    item, key = SEPARATORS[schema.separators]
    builder = _Builder(schema.schema, (item.encode(), key.encode()))
    root = builder.node(schema.schema)
    settle(root)
    if shortest(root) is None:
        raise SchemaError(
            "The schema is impossible: every document would be endless or none fits (a required property that "
            "refers back to its own schema?). Make the reference optional, or allow null beside it."
        )
    return root


class _Builder:
    def __init__(self, root: Any, separators: tuple[bytes, bytes]) -> None:
        self.root = root
        self.separators = separators
        self.references: dict[str, Reference] = {}

    def node(self, schema: Any) -> Node:
        if not isinstance(schema, dict):
            return Anything(self.separators) if schema else Choice(())
        schema = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        if not schema:
            return Anything(self.separators)
        if "const" in schema:
            return Literal(self.text(schema["const"]))
        if "enum" in schema:
            texts = sorted(self.text(value) for value in schema["enum"] if self.fits(value, schema))
            return OneOf(tuple(texts)) if texts else Choice(())
        if "$ref" in schema and len(schema) == 1:
            return self.reference(schema["$ref"])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                rest = {k: v for k, v in schema.items() if k != key}
                return Choice(tuple(self.node(self.both(rest, option)) for option in schema[key]))
        if "allOf" in schema or "$ref" in schema:
            return self.intersection(schema)
        return self.typed(schema)

    def both(self, rest: dict[str, Any], option: Any) -> Any:
        if not rest or not isinstance(option, dict):
            return option if not rest or option is False else rest
        option = {key: value for key, value in option.items() if key not in ANNOTATIONS}
        return {**rest, **option} if not set(rest) & set(option) else _merged(rest, option)

    def intersection(self, schema: dict[str, Any]) -> Node:
        whole = {key: value for key, value in schema.items() if key not in ("allOf", "$ref")}
        parts = [*schema.get("allOf", ()), *([{"$ref": schema["$ref"]}] if "$ref" in schema else [])]
        for part in parts:
            seen: set[str] = set()
            while isinstance(part, dict) and "$ref" in part and part["$ref"] not in seen:
                seen.add(part["$ref"])
                beside = {key: value for key, value in part.items() if key != "$ref" and key not in ANNOTATIONS}
                part = self.both(beside, resolve(self.root, part["$ref"]))
            whole = self.both(whole, part)
        if isinstance(whole, dict) and "allOf" in whole and "allOf" not in schema:
            return self.intersection(whole)
        return self.node(whole)

    def reference(self, ref: str) -> Node:
        known = self.references.get(ref)
        if known is None:
            known = self.references[ref] = Reference(ref)
            known.target = self.node(resolve(self.root, ref))
        return known

    def text(self, value: Any) -> bytes:
        """A constant as the grammar writes it."""
        item, key = (s.decode() for s in self.separators)
        return json.dumps(value, ensure_ascii=False, separators=(item, key)).encode()

    def fits(self, value: Any, schema: dict[str, Any]) -> bool:
        types = schema.get("type")
        if types is None:
            return True
        named = {types} if isinstance(types, str) else set(types)
        return bool(named & _types_of(value))

    def typed(self, schema: dict[str, Any]) -> Node:
        types = schema.get("type", _TYPES)
        names = [types] if isinstance(types, str) else list(types)
        if "number" in names and "integer" in names:
            names.remove("integer")
        nodes = [self.one_type(name, schema) for name in names]
        return nodes[0] if len(nodes) == 1 else Choice(tuple(nodes))

    def one_type(self, name: str, schema: dict[str, Any]) -> Node:
        if name == "null":
            return Literal(b"null")
        if name == "boolean":
            return OneOf((b"false", b"true"))
        if name in ("integer", "number"):
            return Number(_number_range(name, schema))
        if name == "string":
            return _string(schema)
        if name == "array":
            return self.array(schema)
        return self.object(schema)

    def array(self, schema: dict[str, Any]) -> Node:
        items = schema.get("items", True)
        return Array(
            tuple(self.node(sub) for sub in schema.get("prefixItems", ())),
            None if items is False else self.node(items),
            self.separators[0],
            int(schema.get("minItems", 0)),
            None if "maxItems" not in schema else int(schema["maxItems"]),
        )

    def object(self, schema: dict[str, Any]) -> Node:
        required = list(schema.get("required", ()))
        declared = schema.get("properties", {})
        patterns = [(Automaton.of(p, True), p, sub) for p, sub in schema.get("patternProperties", {}).items()]
        rest = schema.get("additionalProperties", True)
        members = [
            Member(self.text(n), self.node(sub), n in required) for n, sub in declared.items() if sub is not False
        ]
        for name in required:
            if name not in declared:
                found = next((sub for a, _, sub in patterns if a is not None and a.finish(name) == ""), rest)
                members.append(Member(self.text(name), self.node(found), True))
        free: list[tuple[Automaton | None, Node]] = [
            (automaton, self.node(sub)) for automaton, _, sub in patterns if automaton is not None and sub is not False
        ]
        if rest is not False and schema.get("maxProperties") != 0:
            free.append((None, self.node(rest)))
        return Object(tuple(members), tuple(free), self.separators, int(schema.get("minProperties", 0)))


def _merged(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """The intersection where it can be written, else the union of keywords, the second's winning."""
    both = merge(a, b)
    if both is not None:
        return both
    union = {**a, **b}
    if "properties" in a and "properties" in b:
        union["properties"] = {**a["properties"], **b["properties"]}
    if "required" in a and "required" in b:
        union["required"] = [*a["required"], *(n for n in b["required"] if n not in a["required"])]
    return union


def _types_of(value: Any) -> set[str]:
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, (int, float)):
        return {"integer", "number"} if float(value).is_integer() else {"number"}
    return {"string"} if isinstance(value, str) else {"array"} if isinstance(value, list) else {"object"}


def _number_range(name: str, schema: dict[str, Any]) -> NumberRange:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    low_open = above is not None and (low is None or above >= low)
    high_open = below is not None and (high is None or below <= high)
    low, high = (above if low_open else low), (below if high_open else high)
    step = schema.get("multipleOf")
    return NumberRange(
        name == "integer",
        None if low is None else decimal(low),
        None if high is None else decimal(high),
        low_open,
        high_open,
        None if step is None else decimal(step),
    )


def _string(schema: dict[str, Any]) -> Node:
    pattern = schema.get("pattern")
    automaton = None
    if pattern is not None:
        automaton = Automaton.of(pattern, True)
    elif schema.get("format") in FORMATS:
        automaton = Automaton.of(f"(?:{FORMATS[schema['format']]})")
    return String(int(schema.get("minLength", 0)), schema.get("maxLength"), automaton)
