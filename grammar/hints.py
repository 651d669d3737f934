"""What a schema says about the value at a place: type, choices, default, words (for drafting only)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from .rewrite import resolve

_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_QUOTED: Final = re.compile(r"'([^'\n]{1,60})'|\"([^\"\n]{1,60})\"|`([^`\n]{1,60})`")
_DEFAULT: Final = re.compile(r"[Dd]efault(?:s)?(?: value)?(?: is| to|:|=)?\s*(?:to |is )?['\"`]?([^\s'\"`,;)]+)")


@dataclass(frozen=True)
class Hint:
    """About one value. ``choices``: JSON texts of an enum; ``examples``: values its description mentions."""

    types: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    default: str | None = None
    examples: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    format: str | None = None
    item: Hint | None = None
    keys: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()

    @cached_property
    def key_texts(self) -> tuple[str, ...]:
        """``keys`` as JSON."""
        return tuple(json.dumps(key, ensure_ascii=False) for key in self.keys)

    @cached_property
    def key_places(self) -> Mapping[str, int]:
        """Where in ``key_texts`` each one stands."""
        return {key: index for index, key in enumerate(self.key_texts)}

    @cached_property
    def required_texts(self) -> frozenset[str]:
        """``required`` as JSON."""
        return frozenset(json.dumps(key, ensure_ascii=False) for key in self.required)

    def may_be(self, name: str) -> bool:
        """Whether the value may have a JSON type; unknown schemas allow all."""
        return not self.types or name in self.types or (name == "number" and "integer" in self.types)


UNKNOWN: Final = Hint()


class Hints:
    """Hints of one schema by path, worked out once each."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._known: dict[tuple[str | int, ...], Hint] = {}

    def at(self, path: Sequence[str | int]) -> Hint:
        """The hint of the value at ``path`` (indices of arrays are all alike)."""
        key = tuple(0 if isinstance(part, int) else part for part in path)
        if key not in self._known:
            name = next((str(part) for part in reversed(key) if isinstance(part, str)), "")
            self._known[key] = self._hint(self._schema_at(key), name)
        return self._known[key]

    def _resolved(self, schema: Any) -> dict[str, Any]:
        for _ in range(8):
            if not isinstance(schema, Mapping):
                return {}
            if "$ref" in schema:
                schema = {**resolve(self._root, schema["$ref"]), **{k: v for k, v in schema.items() if k != "$ref"}}
                continue
            options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
            if options and "type" not in schema and "properties" not in schema:
                solid = [o for o in options if isinstance(o, Mapping) and o.get("type") != "null"]
                if not solid:
                    return dict(schema)
                schema = {**{k: v for k, v in schema.items() if k not in ("anyOf", "oneOf", "allOf")}, **solid[0]}
                continue
            return dict(schema)
        return {}

    def _schema_at(self, path: Sequence[str | int]) -> dict[str, Any]:
        schema = self._resolved(self._root)
        for part in path:
            if isinstance(part, int):
                first = schema.get("prefixItems")
                schema = self._resolved(first[0] if first else schema.get("items", {}))
            else:
                schema = self._resolved(schema.get("properties", {}).get(part, schema.get("additionalProperties", {})))
        return schema

    def _hint(self, schema: dict[str, Any], name: str) -> Hint:
        kind = schema.get("type", ())
        text = str(schema.get("description", ""))
        choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
        found = _DEFAULT.search(text)
        default = json.dumps(schema["default"], ensure_ascii=False) if "default" in schema else None
        if default is None and found:
            default = found[1].rstrip(".")
        item = self._hint(self._resolved(schema.get("items", {})), name) if "array" in kind else None
        return Hint(
            (kind,) if isinstance(kind, str) else tuple(kind),
            tuple(json.dumps(choice, ensure_ascii=False) for choice in choices),
            default,
            tuple(next(filter(None, groups)) for groups in _QUOTED.findall(text)),
            words_of(name),
            schema.get("format"),
            item,
            tuple(schema.get("properties", ())),
            frozenset(schema.get("required", ())),
        )


def words_of(name: str) -> frozenset[str]:
    """Lower-case words of an identifier."""
    return frozenset(word.lower() for word in _WORD.findall(name))
