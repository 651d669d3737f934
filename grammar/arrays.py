"""The shape of arrays: items by place, counted items, items that are all different."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from .facts import Branch, Items, Part, Refused
from .item_graph import ItemGraph
from .objects import is_nothing
from .shape import Choice, Literal, Node, OneOf
from .shape_json import Array

if TYPE_CHECKING:
    from .shape_build import Builder, Goal

MAX_STATES: Final = 3000
"""States of an array whose items depend on one another at most."""

_MOST_CONTAINS: Final = 4


def array_node(builder: Builder, goal: Goal, branch: Branch) -> Node | None:
    """The arrays of a branch; None if there are none."""
    least, most = 0, None
    for one in branch:
        if one.name == "count" and isinstance(one.value, tuple):
            least = max(least, one.value[0])
            most = one.value[1] if most is None else most if one.value[1] is None else min(most, one.value[1])
    rules = [one.value for one in branch if isinstance(one.value, Items)]
    size = max((len(rule.first) for rule in rules), default=0)
    places = [item_goal(rules, index) for index in range(size + 1)]
    first = [builder.node(place) for place in places[:-1]]
    rest = builder.node(places[-1])
    end = next((index for index, node in enumerate(first) if is_nothing(node)), size if is_nothing(rest) else None)
    if end is not None:
        first, most = first[:end], end if most is None else min(most, end)
    if most is not None and least > most:
        return None
    contains = [one.value for one in branch if one.name == "contains"]
    unique = any(one.name == "unique" for one in branch)
    if contains or (unique and (most is None or most > 1)):
        try:
            return _Graph(builder, places, least, most, contains, unique).node()
        except Refused as error:
            builder.refuse(goal, ("contains",) if contains else ("uniqueItems",), str(error))
    item = None if end is not None else rest
    return Array(tuple(first), item, builder.written_separators[0], least, most)


def item_goal(rules: list[Items], index: int) -> list[Part]:
    """What the item at a place has to fit."""
    goal = []
    for rule in rules:
        if index < len(rule.first):
            goal.append(rule.first[index])
        elif rule.rest is not None:
            goal.append(rule.rest)
    return goal


class _Graph:
    """Builds an ItemGraph: a state is how many items there are, how many of each kind, and which are used up."""

    def __init__(
        self,
        builder: Builder,
        places: list[list[Part]],
        least: int,
        most: int | None,
        contains: list[Any],
        unique: bool,
    ) -> None:
        if len(contains) > _MOST_CONTAINS:
            raise Refused(f"more than {_MOST_CONTAINS} kinds of items are counted")
        self.builder = builder
        self.places = places
        self.least, self.most = least, most
        self.contains = contains
        self.unique = unique
        self.cap = max(len(places) - 1, least, most or 0)

    def node(self) -> Node | None:
        State = tuple[int, tuple[int, ...], frozenset[bytes]]
        start: State = (0, (0,) * len(self.contains), frozenset())
        known: dict[State, int] = {start: 0}
        order = [start]
        edges: list[tuple[tuple[Node, int], ...]] = []
        for state in order:
            if len(order) > MAX_STATES:
                raise Refused(f"its items have more than {MAX_STATES} states")
            found = []
            for node, after in self.steps(*state):
                if after not in known:
                    known[after] = len(order)
                    order.append(after)
                found.append((node, known[after]))
            edges.append(tuple(found))
        ends = frozenset(known[state] for state in order if self.may_end(*state))
        return ItemGraph(tuple(edges), ends, self.builder.written_separators[0]) if ends else None

    def may_end(self, count: int, counts: tuple[int, ...], used: frozenset[bytes]) -> bool:
        enough = all(have >= least for have, (_, least, _) in zip(counts, self.contains, strict=True))
        return count >= self.least and enough

    def steps(
        self, count: int, counts: tuple[int, ...], used: frozenset[bytes]
    ) -> list[tuple[Node, tuple[int, tuple[int, ...], frozenset[bytes]]]]:
        """The items that may come next, and the state after each."""
        if self.most is not None and count >= self.most:
            return []
        found = []
        place = self.places[min(count, len(self.places) - 1)]
        for met in range(1 << len(self.contains)):
            signs = [bool(met >> index & 1) for index in range(len(self.contains))]
            goal = [*place, *(Part(part.pointer, sign is part.positive) for (part, _, _), sign
                              in zip(self.contains, signs, strict=True))]  # fmt: skip
            after = self._counted(counts, signs)
            if after is None:
                continue
            for node in self._apart(self.builder.node(goal), used):
                more = used | {_key(node)} if self.unique else used
                found.append((node, (min(count + 1, self.cap), after, more)))
        return found

    def _counted(self, counts: tuple[int, ...], signs: list[bool]) -> tuple[int, ...] | None:
        after = []
        for have, sign, (_, least, most) in zip(counts, signs, self.contains, strict=True):
            if sign and most is not None and have >= most:
                return None
            after.append(min(have + sign, least if most is None else most))
        return tuple(after)

    def _apart(self, node: Node, used: frozenset[bytes]) -> list[Node]:
        """The node as it is, or the constants it consists of that are left."""
        if is_nothing(node):
            return []
        if not self.unique:
            return [node]
        return [one for one in constants(node) if _key(one) not in used]


def constants(node: Node) -> list[Node]:
    """The constants that a node consists of. Refused if it is no finite choice."""
    if isinstance(node, Literal):
        return [node]
    if isinstance(node, OneOf):
        return [Literal(text) for text in node.texts]
    if isinstance(node, Choice):
        return [one for option in node.options for one in constants(option)]
    raise Refused("its items are no constants")


def _key(node: Node) -> bytes:
    """Equal for texts of values that JSON holds to be equal."""
    assert isinstance(node, Literal)
    value = json.loads(node.text)
    if isinstance(value, float) and value.is_integer():
        return str(int(value)).encode()
    return node.text
