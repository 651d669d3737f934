"""What a schema asks for that cannot be had: impossible bounds, endless references, keywords out of reach."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mmspec_agent.core.errors import SchemaError

from .rewrite import children, pointer_of, resolve

ENFORCED_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
STANDARD_FORMATS: Final = ENFORCED_FORMATS | {
    "idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer",
    "relative-json-pointer", "regex",
}  # fmt: skip
"""Formats the specification defines; any other name is an annotation and asserts nothing."""

OUT_OF_REACH: Final = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties",
    "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor",
)  # fmt: skip

_BOUNDS: Final = (
    ("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"),
)  # fmt: skip


def subschemas(schema: Any, pointer: str = "") -> Iterable[tuple[str, Any]]:
    """Every subschema with its JSON pointer, outermost first."""
    yield pointer, schema
    if isinstance(schema, dict):
        for path, sub in children(schema):
            yield from subschemas(sub, pointer + pointer_of(path))


def unenforceable(schema: Any) -> list[tuple[str, str]]:
    """(pointer, keyword) of everything llguidance has no rule for, and of what it would only half enforce.

    As a side effect format names without a meaning in the specification are taken out.
    """
    found: list[tuple[str, str]] = []
    for pointer, sub in subschemas(schema):
        if not isinstance(sub, dict) or _under_dropped(pointer, found):
            continue
        found.extend((pointer, keyword) for keyword in OUT_OF_REACH if keyword in sub)
        name = sub.get("format")
        if name in STANDARD_FORMATS - ENFORCED_FORMATS:
            found.append((pointer, "format"))
        elif name is not None and name not in ENFORCED_FORMATS:
            del sub["format"]
        if _counts_names_twice(sub):
            found.append((pointer, "minProperties"))
        found.extend((pointer, keyword) for keyword in _leaking_bounds(sub))
        if pointer and "$id" in sub:
            found.append((pointer, "$id"))
    return found


def _leaking_bounds(sub: dict[str, Any]) -> list[str]:
    """Exclusive bounds that llguidance takes as inclusive: a whole number, less than one from the other bound."""
    kinds = sub.get("type", "number")
    if "number" not in ([kinds] if isinstance(kinds, str) else kinds):
        return []
    lows = [sub[k] for k in ("minimum", "exclusiveMinimum") if k in sub]
    highs = [sub[k] for k in ("maximum", "exclusiveMaximum") if k in sub]
    low, high = sub.get("exclusiveMinimum"), sub.get("exclusiveMaximum")
    found = []
    if low is not None and highs and low == int(low) and low >= 0 and min(highs) < low + 1:
        found.append("exclusiveMinimum")
    if high is not None and lows and high == int(high) and high <= 0 and max(lows) > high - 1:
        found.append("exclusiveMaximum")
    return found


def _under_dropped(pointer: str, found: list[tuple[str, str]]) -> bool:
    return any(pointer.startswith(f"{place}/{keyword}") for place, keyword in found)


def _counts_names_twice(sub: dict[str, Any]) -> bool:
    """Free names may repeat in the text but count once when read, so two of them cannot be demanded."""
    free = sub.get("additionalProperties", True) is not False or bool(sub.get("patternProperties"))
    named = len(set(sub.get("required", ())))
    return free and sub.get("minProperties", 0) - named >= 2


def check_possible(schema: Any) -> None:
    """Raise SchemaError, by pointer, for bounds that exclude each other, empty enums and endless references."""
    for pointer, sub in subschemas(schema):
        if not isinstance(sub, dict):
            continue
        place = pointer or "the root"
        if sub.get("enum") == []:
            raise SchemaError(f"The schema is impossible: 'enum' at {place} is empty, so no value fits.")
        for low, high in _BOUNDS:
            if low in sub and high in sub and sub[low] > sub[high]:
                raise SchemaError(f"The schema is impossible at {place}: {low} {sub[low]} is above {high} {sub[high]}.")
        _check_open_bounds(sub, place)
        if "$ref" in sub:
            _check_ends(schema, sub["$ref"], place)
    if schema is False:
        raise SchemaError("The schema is impossible: 'false' admits no value.")


def _check_open_bounds(sub: dict[str, Any], place: str) -> None:
    for low, high in (("exclusiveMinimum", "exclusiveMaximum"), ("exclusiveMinimum", "maximum"),
                      ("minimum", "exclusiveMaximum")):  # fmt: skip
        if low in sub and high in sub and sub[low] >= sub[high]:
            raise SchemaError(
                f"The schema is impossible at {place}: {low} {sub[low]} leaves nothing below {sub[high]}."
            )


def _check_ends(root: Any, ref: str, place: str) -> None:
    seen: list[str] = []
    while True:
        if ref in seen:
            raise SchemaError(f"$ref at {place} runs in a circle: {' -> '.join([*seen, ref])}.")
        seen.append(ref)
        target = resolve(root, ref)
        following = target.get("$ref") if isinstance(target, dict) else None
        if following is None and isinstance(target, dict):
            following = next((p["$ref"] for p in target.get("allOf", ()) if isinstance(p, dict) and "$ref" in p), None)
        if following is None:
            return
        ref = following
