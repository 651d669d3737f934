"""The shape of objects: members by name, free names by what the schemas say of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from .facts import NEVER, Branch, Members, Part
from .regex import Automaton, TooIntricate
from .regular import ANYTHING, NOTHING, Regular, both, derivative, never
from .shape import Choice, Node
from .shape_json import Free, Member, Object

if TYPE_CHECKING:
    from .shape_build import Builder, Goal

MAX_PATTERNS: Final = 6
"""Expressions for names in one object at most: names are told apart by which of them they match."""


def object_node(builder: Builder, goal: Goal, branch: Branch) -> Node | None:
    """The objects of a branch; None if there are none."""
    rules = [one.value for one in branch if isinstance(one.value, Members)]
    needed = dict.fromkeys(str(one.value) for one in branch if one.name == "required")
    banned = {str(one.value) for one in branch if one.name == "forbidden"}
    names = list(dict.fromkeys([*(name for rule in rules for name, _ in rule.named), *needed, *banned]))
    least, most = _count(branch)
    is_closed = builder.close_objects and _closes(rules, least, len(names) - len(banned))
    values = {name: builder.node(member_goal(branch, name)) for name in names}
    taken = frozenset(builder.text(name) for name, node in values.items() if is_nothing(node))
    if any(is_nothing(values[name]) for name in needed):
        return None
    members = [Member(builder.text(name), node, name in needed) for name, node in values.items()
               if not is_nothing(node)]  # fmt: skip
    free = [] if is_closed or (most is not None and most <= len(needed)) else _free(builder, goal, branch, set(names))
    if len(needed) > (len(needed) if most is None else most):
        return None
    if not free and least > len(members):
        return None
    if free and least - len(needed) >= 2:
        builder.refuse(goal, ("minProperties",), "free names may repeat in the text but count once when read")
        least = len(needed) + 1
    return Object(tuple(members), tuple(free), builder.written_separators, least, most, taken)


def member_goal(branch: Branch, name: str) -> list[Part]:
    """What a member has to fit."""
    goal: list[Part] = []
    for one in branch:
        value = one.value
        if one.name == "forbidden" and value == name:
            goal.append(NEVER)
        elif one.name == "names" and isinstance(value, Regular):
            goal += [] if _matches(value, name) else [NEVER]
        elif isinstance(value, Members):
            said = [part for other, part in value.named if other == name]
            said += [part for pattern, part in value.patterns if _matches(pattern, name)]
            goal += said if said or value.rest is None else [value.rest]
    return goal


def _matches(language: Regular, name: str) -> bool:
    for char in name:
        language = derivative(language, char)
    return language.nullable


def is_nothing(node: Node) -> bool:
    """Whether nothing fits a node, as far as is seen without following references."""
    return isinstance(node, Choice) and all(map(is_nothing, node.options))


def _count(branch: Branch) -> tuple[int, int | None]:
    least, most = 0, None
    for one in branch:
        if one.name == "count" and isinstance(one.value, tuple):
            low, high = one.value
            least = max(least, low)
            most = high if most is None else most if high is None else min(most, high)
    return least, most


def _closes(rules: Iterable[Members], least: int, names: int) -> bool:
    """Whether an object that lists its properties and says nothing of others admits no others."""
    rules = list(rules)
    return any(rule.listed for rule in rules) and not any(rule.speaks for rule in rules) and least <= names


def _free(builder: Builder, goal: Goal, branch: Branch, declared: set[str]) -> list[Free]:
    """Names that are not declared, in cells of those that match the same expressions."""
    rules = [one.value for one in branch if isinstance(one.value, Members)]
    named = [one.value for one in branch if one.name == "names" and isinstance(one.value, Regular)]
    patterns = list(dict.fromkeys(pattern for rule in rules for pattern, _ in rule.patterns))
    if len(patterns) > MAX_PATTERNS:
        builder.refuse(
            goal, ("patternProperties",), f"more than {MAX_PATTERNS} expressions speak of one object's names"
        )
        patterns = []
    found: list[tuple[Regular, Node]] = []
    cells: list[tuple[Regular, tuple[Regular, ...]]] = [(both(*named), ())]
    for pattern in patterns:
        cells = [
            (both(cell, side), (*met, pattern) if side is pattern else met)
            for cell, met in cells
            for side in (pattern, never(pattern))
        ]
    gone = False
    for cell, met in cells:
        parts = [part for rule in rules for part in _parts(rule, met)]
        try:
            is_void = cell is NOTHING or Automaton(cell).finish("") is None
        except TooIntricate as error:
            builder.refuse(goal, ("patternProperties", "propertyNames"), str(error))
            is_void = True
        if is_void:
            continue
        node = builder.node(parts)
        if is_nothing(node):
            gone = True
        else:
            found.append((cell, node))
    if len(found) == 1 and not gone and found[0][0] == ANYTHING:
        return [Free(None, found[0][1])]
    return [Free(Automaton(cell), node) for cell, node in found]


def _parts(rule: Members, met: tuple[Regular, ...]) -> list[Part]:
    said = [part for pattern, part in rule.patterns if pattern in met]
    return said if said or rule.rest is None else [rule.rest]
