"""A schema as it was given: its dialect, its subschemas by pointer, and what its references name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from mmspec_agent.core.errors import SchemaError

MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLES: Final = (
    "items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "contentSchema",
)  # fmt: skip
_DRAFTS: Final = (("draft-03", 3), ("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 8), ("2020-12", 9))


def pointer_of(path: Iterable[Any]) -> str:
    """JSON pointer of a path of keys and indices; empty for none."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def place_of(pointer: str) -> str:
    """A pointer as errors say it."""
    return pointer or "the root"


def at_pointer(root: Any, pointer: str) -> Any:
    """What a JSON pointer names. Raises LookupError."""
    node = root
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list):
            if not part.isdigit():
                raise LookupError(part)
            node = node[int(part)]
        elif isinstance(node, dict):
            node = node[part]
        else:
            raise LookupError(part)
    return node


def subschemas(schema: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Every subschema with its JSON pointer, outermost first."""
    todo = [(pointer, schema)]
    while todo:
        here, sub = todo.pop()
        yield here, sub
        if isinstance(sub, dict):
            todo.extend(reversed([(here + pointer_of(path), child) for path, child in _children(sub)]))


def _children(schema: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key in MAPS:
        value = schema.get(key)
        if isinstance(value, dict):
            yield from (((key, name), sub) for name, sub in value.items() if isinstance(sub, (dict, bool)))
    for key in LISTS:
        value = schema.get(key)
        if isinstance(value, list):
            yield from (((key, index), sub) for index, sub in enumerate(value))
    for key in SINGLES:
        value = schema.get(key)
        if isinstance(value, (dict, bool)):
            yield (key,), value


def _spoken(root: Any) -> int:
    """The draft that a schema without ``$schema`` speaks: 2020-12 unless it says what that has no meaning for."""
    draft = 9
    for _, sub in subschemas(root):
        if not isinstance(sub, dict):
            continue
        if any(isinstance(sub.get(key), bool) for key in ("exclusiveMinimum", "exclusiveMaximum")):
            return 4
        if isinstance(sub.get("items"), list):
            draft = 7
    return draft


class Document:
    """One schema. ``draft``: 4, 6, 7, 8 (2019-09) or 9 (2020-12, also where none is named)."""

    def __init__(self, root: Any) -> None:
        self.root = root
        named = str(root.get("$schema", "")) if isinstance(root, dict) else ""
        self.draft = next((number for name, number in _DRAFTS if name in named), 0) or _spoken(root)

    def at(self, pointer: str) -> Any:
        """The subschema at a pointer of ``target`` or of this document."""
        return at_pointer(self.root, pointer)

    @property
    def refs_stand_alone(self) -> bool:
        """Whether what lies beside a ``$ref`` is ignored, as up to draft 7."""
        return self.draft <= 7

    @cached_property
    def _id_keyword(self) -> str:
        return "id" if self.draft <= 4 else "$id"

    @cached_property
    def bases(self) -> dict[str, str]:
        """Base URI of each subschema that sets one, by pointer."""
        found: dict[str, str] = {}
        for pointer, sub in subschemas(self.root):
            identifier = sub.get(self._id_keyword) if isinstance(sub, dict) else None
            if isinstance(identifier, str) and not (self.refs_stand_alone and "$ref" in sub):
                base = urldefrag(urljoin(self.base_of(pointer, found), identifier))[0]
                if urldefrag(identifier)[0]:
                    found[pointer] = base
        return found

    def base_of(self, pointer: str, bases: dict[str, str] | None = None) -> str:
        """The base URI that holds at a pointer."""
        known = self.bases if bases is None else bases
        parts = pointer.split("/")
        for end in range(len(parts), 0, -1):
            base = known.get("/".join(parts[:end]))
            if base is not None:
                return base
        return ""

    @cached_property
    def _names(self) -> dict[str, str]:
        """Pointers by absolute URI, of documents and of anchors."""
        names = {"": "", **{base: pointer for pointer, base in reversed(self.bases.items())}}
        for pointer, sub in subschemas(self.root):
            if not isinstance(sub, dict):
                continue
            base = self.base_of(pointer)
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(sub.get(key), str):
                    names.setdefault(f"{base}#{sub[key]}", pointer)
            identifier = sub.get(self._id_keyword)
            if isinstance(identifier, str) and identifier.startswith("#") and self.draft <= 7:
                names.setdefault(base + identifier, pointer)
        return names

    def target(self, pointer: str, ref: str) -> str:
        """Pointer of what a reference at ``pointer`` names. SchemaError if that is not in this document."""
        if ref == "#" and not self.base_of(pointer):
            return ""
        base, fragment = urldefrag(urljoin(self.base_of(pointer), ref))
        fragment = unquote(fragment)
        start = self._names.get(base)
        if start is None:
            raise SchemaError(
                f"$ref {ref!r} at {place_of(pointer)} points outside this schema; remote references are never fetched. "
                "Put the definition under $defs and refer to it as '#/$defs/name'."
            )
        found = start + fragment if not fragment or fragment.startswith("/") else self._names.get(f"{base}#{fragment}")
        try:
            if found is not None and isinstance(self.at(found), (dict, bool)):
                return found
        except LookupError:
            pass
        raise SchemaError(f"$ref {ref!r} at {place_of(pointer)} names nothing in this schema; check its spelling.")

    def dynamic_target(self, pointer: str, ref: str) -> str | None:
        """Pointer of a ``$dynamicRef`` that can name one thing only; None where it depends on the way taken."""
        fragment = ref.rpartition("#")[2]
        holders = [
            p for p, sub in subschemas(self.root) if isinstance(sub, dict) and sub.get("$dynamicAnchor") == fragment
        ]
        target = self.target(pointer, ref)
        found = self.at(target)
        if not isinstance(found, dict) or found.get("$dynamicAnchor") != fragment or holders == [target]:
            return target
        return None

    @cached_property
    def has_dynamic_scope(self) -> bool:
        """Whether ``$recursiveRef`` may name something else than the document."""
        return any(isinstance(sub, dict) and sub.get("$recursiveAnchor") for _, sub in subschemas(self.root))
