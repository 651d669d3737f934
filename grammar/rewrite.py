"""Schema rewriting: one dialect, references resolved in place where that is safe, closed objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Final

from mmspec_agent.core.errors import SchemaError

LATEST: Final = "https://json-schema.org/draft/2020-12/schema"
MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
SINGLES: Final = (
    "items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
ANNOTATIONS: Final = frozenset(
    {
        "$schema", "$id", "id", "$comment", "title", "description", "default", "readOnly", "writeOnly", "examples",
        "deprecated", "contentMediaType", "contentEncoding", "contentSchema", "$defs", "definitions", "$anchor",
        "x-guidance", "$vocabulary",
    }
)  # fmt: skip
_OLD: Final = ("draft-07", "draft-06", "draft-04")


def pointer_of(path: Iterable[Any]) -> str:
    """JSON pointer of a path of keys and indices; "the root" for none."""
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in path]
    return "/" + "/".join(parts) if parts else "the root"


def modern(schema: Any) -> Any:
    """A copy in 2020-12 form: tuple items, references by pointer, trivial keywords taken out, allOf merged."""
    schema = copy.deepcopy(schema)
    if not isinstance(schema, dict):
        return schema
    old = any(name in str(schema.get("$schema", "")) for name in _OLD)
    identifier = str(schema.get("$id", ""))
    anchors: dict[str, str] = {}
    _each(schema, lambda sub, path: _note_anchor(sub, path, anchors))
    _each(schema, lambda sub, path: _one_dialect(sub, path, old, identifier, anchors))
    schema["$schema"] = LATEST
    schema.pop("$id", None)
    _each(schema, lambda sub, path: _merge_all_of(sub, schema))
    return schema


def hint_view(schema: Any) -> Any:
    """A schema as drafting looks at it: in 2020-12 form, simple intersections merged, objects closed.

    It decides nothing; where it cannot be made there are no hints.
    """
    try:
        return closed(modern(schema))
    except (SchemaError, RecursionError):
        return {}


def closed(schema: Any) -> Any:
    """Objects that list their properties and say nothing of others admit no others.

    Left open: parts of an intersection (beside or inside allOf, or referred to from there), since closing one
    part would forbid what the other part asks for.
    """
    if not isinstance(schema, dict):
        return schema
    open_refs: set[str] = set()
    _visit_closing(schema, schema, True, open_refs, None)
    seen: set[int] = set()
    for ref in list(open_refs):
        _spread_open(schema, ref, open_refs, seen)
    _visit_closing(schema, schema, True, open_refs, "")
    return schema


def resolve(root: Any, ref: str) -> Any:
    """The schema a local reference names; SchemaError if there is none."""
    node = root
    for part in ref[1:].split("/")[1:]:
        part = _percent(part).replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(part)] if isinstance(node, list) else node[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise SchemaError(f"$ref {ref!r} names nothing in this schema.") from None
    return node


def children(schema: dict[str, Any]) -> Iterable[tuple[tuple[Any, ...], Any]]:
    """Direct subschemas with their relative paths."""
    for key in MAPS:
        value = schema.get(key)
        if isinstance(value, dict):
            yield from (((key, name), sub) for name, sub in value.items())
    for key in LISTS:
        value = schema.get(key)
        if isinstance(value, list):
            yield from (((key, i), sub) for i, sub in enumerate(value))
    for key in SINGLES:
        value = schema.get(key)
        if isinstance(value, (dict, bool)):
            yield (key,), value
        elif isinstance(value, list):
            yield from (((key, i), sub) for i, sub in enumerate(value))


def _each(schema: Any, visit: Callable[[dict[str, Any], tuple[Any, ...]], None], path: tuple[Any, ...] = ()) -> None:
    if not isinstance(schema, dict):
        return
    for relative, sub in list(children(schema)):
        _each(sub, visit, path + relative)
    visit(schema, path)


def _percent(text: str) -> str:
    from urllib.parse import unquote

    return unquote(text)


def _note_anchor(sub: dict[str, Any], path: tuple[Any, ...], anchors: dict[str, str]) -> None:
    pointer = "#" + (pointer_of(path) if path else "")
    if isinstance(name := sub.get("$anchor"), str):
        anchors["#" + name] = pointer
    identifier = sub.get("$id")
    if path and isinstance(identifier, str) and identifier.startswith("#"):
        anchors[identifier] = pointer
        del sub["$id"]


def _one_dialect(
    sub: dict[str, Any], path: tuple[Any, ...], old: bool, identifier: str, anchors: dict[str, str]
) -> None:
    if isinstance(ref := sub.get("$ref"), str):
        if path and any(isinstance(sub.get(key), str) for key in ("$id",)):
            raise SchemaError(f"{pointer_of(path)} changes the base of its $ref by $id; use local references.")
        sub["$ref"] = _local(ref, path, identifier, anchors)
        if old:  # draft 7: a reference stands alone, whatever lies beside it is ignored
            for key in [key for key in sub if key not in ANNOTATIONS and key != "$ref"]:
                del sub[key]
    if isinstance(sub.get("items"), list):
        sub["prefixItems"] = sub.pop("items")
        if "additionalItems" in sub:
            sub["items"] = sub.pop("additionalItems")
    sub.pop("additionalItems", None)
    _drop_trivial(sub)


def _local(ref: str, path: tuple[Any, ...], identifier: str, anchors: dict[str, str]) -> str:
    if identifier and ref.startswith(identifier.rstrip("#")):
        ref = ref[len(identifier.rstrip("#")) :] or "#"
    if ref in anchors:
        return anchors[ref]
    if ref == "#" or ref.startswith("#/"):
        return ref
    raise SchemaError(f"$ref {ref!r} at {pointer_of(path)} is no pointer into this schema")


def _drop_trivial(sub: dict[str, Any]) -> None:
    """Keywords that say nothing as they stand."""
    if sub.get("uniqueItems") is False:
        del sub["uniqueItems"]
    if "if" not in sub:
        sub.pop("then", None), sub.pop("else", None)
    elif "then" not in sub and "else" not in sub:
        del sub["if"]
    if "contains" not in sub:
        sub.pop("minContains", None), sub.pop("maxContains", None)
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        if sub.get(key) == {}:
            del sub[key]
    for key in ("unevaluatedProperties", "unevaluatedItems", "propertyNames"):
        if sub.get(key) is True or sub.get(key) == {}:
            del sub[key]
    applied = {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas", "not", "contains"} & set(sub)
    for strict, plain in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if strict in sub and not applied:
            value = sub.pop(strict)
            sub.setdefault(plain, value)
    if isinstance(sub.get("type"), list) and len(sub["type"]) == 1:
        sub["type"] = sub["type"][0]


def _merge_all_of(sub: dict[str, Any], root: dict[str, Any]) -> None:
    """Fold allOf and the keywords beside a $ref into one object where every part is simple."""
    parts = sub.get("allOf", [])
    rest = {k: v for k, v in sub.items() if k not in ("allOf", "$ref") and k not in ANNOTATIONS}
    if "allOf" not in sub and not ("$ref" in sub and rest):
        return
    if ("$ref" in sub and rest) or ("$ref" in sub and parts):
        parts = [{"$ref": sub["$ref"]}, *parts]
    if len(parts) == 1 and not rest and isinstance(parts[0], dict):
        only = parts[0]
        sub.pop("allOf", None)
        sub.update({key: value for key, value in only.items() if key not in sub})
        return
    merged: dict[str, Any] | None = rest
    for part in parts:
        simple = _simple(part, root, ())
        merged = None if simple is None or merged is None else merge(merged, simple)
    if merged is None:
        return
    for key in ["allOf", "$ref", *rest]:
        sub.pop(key, None)
    sub.update(merged)


def _simple(part: Any, root: dict[str, Any], seen: tuple[str, ...]) -> dict[str, Any] | None:
    if not isinstance(part, dict):
        return None
    part = {key: value for key, value in part.items() if key not in ANNOTATIONS}
    if "$ref" in part and len(part) == 1:
        ref = part["$ref"]
        return None if ref in seen or ref == "#" else _simple(resolve(root, ref), root, (*seen, ref))
    return copy.deepcopy(part) if set(part) <= _MERGEABLE else None


def merge(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any] | None:
    """The intersection of two simple schemas; None where it cannot be written as one."""
    if not (set(a) | set(b)) <= _MERGEABLE:
        return None
    both = dict(a)
    for key, value in b.items():
        if key not in both or both[key] == value:
            both[key] = value
        elif key in _JOIN:
            joined = _JOIN[key](both[key], value)
            if joined is None:
                return None
            both[key] = joined
        else:
            return None
    return both


def _join_types(a: Any, b: Any) -> Any:
    left, right = ({x} if isinstance(x, str) else set(x) for x in (a, b))
    both = left & right
    if ("integer" in left and "number" in right) or ("number" in left and "integer" in right):
        both |= {"integer"}
    return sorted(both)[0] if len(both) == 1 else sorted(both) or None


def _join_properties(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any] | None:
    both = dict(a)
    for name, sub in b.items():
        if name in both and both[name] != sub:
            left, right = ({k: v for k, v in s.items() if k not in ANNOTATIONS} if isinstance(s, dict) else None
                           for s in (both[name], sub))  # fmt: skip
            joined = merge(left, right) if left is not None and right is not None else None
            if joined is None:
                return None
            both[name] = joined
        else:
            both[name] = sub
    return both


_JOIN: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "type": _join_types,
    "properties": _join_properties,
    "required": lambda a, b: [*a, *(x for x in b if x not in a)],
    "enum": lambda a, b: [x for x in a if x in b] or None,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
}
_MERGEABLE: Final = frozenset({*_JOIN, "const", "pattern", "format", "items"})


def _visit_closing(sub: Any, root: dict[str, Any], may_close: bool, open_refs: set[str], pointer: str | None) -> None:
    """First pass (``pointer`` None) collects references out of intersections, the second closes."""
    if not isinstance(sub, dict):
        return
    beside = {key for key in sub if key not in ANNOTATIONS}
    if pointer is not None and "#" + pointer in open_refs:
        may_close = False
    shared = "allOf" in sub or (beside & {"$ref", "anyOf", "oneOf"} and len(beside) > 1)
    inner = may_close and not shared
    if "$ref" in sub and not inner:
        open_refs.add(sub["$ref"])
    untouched = not beside & {"additionalProperties", "patternProperties", "unevaluatedProperties"}
    if pointer is not None and inner and untouched and "properties" in sub:
        sub["additionalProperties"] = False
    for path, child in children(sub):
        part = None if pointer is None else pointer + pointer_of(path)
        definition = path[0] in ("$defs", "definitions")
        _visit_closing(child, root, True if definition else inner, open_refs, part)


def _spread_open(root: dict[str, Any], ref: str, open_refs: set[str], seen: set[int]) -> None:
    node = resolve(root, ref)
    if id(node) in seen or not isinstance(node, dict):
        return
    seen.add(id(node))

    def follow(sub: dict[str, Any], path: tuple[Any, ...]) -> None:
        inner = sub.get("$ref")
        if isinstance(inner, str):
            open_refs.add(inner)
            _spread_open(root, inner, open_refs, seen)

    _each(node, follow)
