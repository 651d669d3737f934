"""Tags: a member whose constants tell the branches of a ``oneOf`` apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .facts import Branch, Members, Part
from .objects import member_goal

if TYPE_CHECKING:
    from .branches import Reader

Constants = frozenset[str]


def tag_of(reader: Reader, parts: list[Part], hint: Any) -> str | None:
    """The name of a member that has other constants in each of ``parts``; None if there is none.

    ``hint``: the schema's ``discriminator``, whose name is tried first.
    """
    named = hint.get("propertyName") if isinstance(hint, dict) else None
    first = [named] if isinstance(named, str) else []
    for name in dict.fromkeys([*first, *_names(reader, parts[0])]):
        found: list[Constants] = []
        for part in parts:
            constants = _constants(reader, part, name)
            if constants is None or any(constants & other for other in found):
                break
            found.append(constants)
        if len(found) == len(parts):
            return name
    return None


def _names(reader: Reader, part: Part) -> list[str]:
    rules = [one.value for branch in reader.part(part, "object") for one in branch if isinstance(one.value, Members)]
    return list(dict.fromkeys(name for rule in rules for name, _ in rule.named))


def _constants(reader: Reader, part: Part, name: str) -> Constants | None:
    """All that a member may be, as JSON texts of strings; None if it may be anything else."""
    found: set[str] = set()
    for branch in reader.part(part, "object"):
        goal = member_goal(branch, name)
        if not goal or any(reader.goal(goal, kind) for kind in ("null", "boolean", "number", "array", "object")):
            return None
        for option in reader.goal(goal, "string"):
            values = _values(option)
            if values is None:
                return None
            found |= values
    return frozenset(found) if found else None


def _values(branch: Branch) -> set[str] | None:
    value: Any = next((one.value for one in branch if one.name == "values"), None)
    return None if value is None else set(value)
