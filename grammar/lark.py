"""Shapes as rules of llguidance's Lark dialect: the grammar says what the shape says, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from .item_graph import ItemGraph
from .numbers import NumberRange
from .regular import ANY_CHAR, ANYTHING, Regular, both, repeat
from .shape import Choice, Literal, Node, OneOf, Reference, shortest
from .shape_json import Array, Object
from .shape_values import Anything, Number, String
from .terminal import Unwritable, terminal

_MAX_RULES: Final = 60_000
MAX_STEP: Final = 5000
"""Largest step of integers whose remainders the engine tells apart in good time."""

_EXACT_IN_ENGINE: Final = 1 << 53
"""Bounds of a stepped number that the engine reads without rounding."""


def lark_rules(root: Node, start: str, separators: tuple[bytes, bytes]) -> str:
    """Rules whose first, ``start``, generates the texts of ``root``, which is settled. Raises Unwritable."""
    writer = _Writer(start, separators)
    body = writer.expression(root)
    return "\n".join([f"{start}: {body}", *writer.lines]) + "\n"


class _Writer:
    """Writes one rule a node and one terminal a language; names begin with ``prefix``."""

    def __init__(self, prefix: str, separators: tuple[bytes, bytes]) -> None:
        self.prefix = prefix
        self.separators = separators
        self.lines: list[str] = []
        self._nodes: dict[int, str] = {}
        self._terminals: dict[str, str] = {}
        self._kept: list[Node] = []
        self._count = 0

    def _name(self) -> str:
        self._count += 1
        if self._count > _MAX_RULES:
            raise Unwritable(f"more than {_MAX_RULES} rules")
        return f"{self.prefix}_{self._count}"

    def rule(self, body: str) -> str:
        """A rule of its own."""
        name = self._name()
        self.lines.append(f"{name}: {body}")
        return name

    def token(self, body: str) -> str:
        """A terminal of its own, each body once."""
        known = self._terminals.get(body)
        if known is None:
            known = self._terminals[body] = self._name().upper()
            self.lines.append(f"{known}: {body}")
        return known

    def node(self, node: Node) -> str:
        """The name of a node's rule."""
        if isinstance(node, Reference):
            assert node.target is not None
            return self.node(node.target)
        known = self._nodes.get(id(node))
        if known is None:
            known = self._nodes[id(node)] = self._name()
            self._kept.append(node)
            self.lines.append(f"{known}: {self.expression(node)}")
        return known

    def expression(self, node: Node) -> str:
        """The body of a node's rule."""
        if isinstance(node, Reference):
            return self.node(node)
        if isinstance(node, Literal):
            return quoted(node.text)
        if isinstance(node, OneOf):
            return self.token(" | ".join(map(quoted, node.texts)))
        if isinstance(node, String):
            return self.token(terminal(_content(node), True))
        if isinstance(node, Number):
            return self.number(node)
        if isinstance(node, Anything):
            return self.anything()
        if isinstance(node, Choice):
            return " | ".join(self.node(option) for option in node.options if shortest(option) is not None)
        if isinstance(node, Array):
            return self.array(node)
        if isinstance(node, ItemGraph):
            return self.graph(node)
        assert isinstance(node, Object), node
        return _ObjectWriter(self, node).body()

    def number(self, node: Number) -> str:
        """A terminal, or the engine's own rule for steps whose automaton is too large for one."""
        numbers = node.range
        try:
            return self.token(terminal(numbers.texts, False))
        except Unwritable:
            if not _is_simple(numbers):
                raise
            return f"%json {json.dumps(_integers(numbers))}"

    def anything(self) -> str:
        """Any JSON value."""
        text = terminal(ANYTHING, True)
        known = self._nodes.get(-1)
        if known is None:
            known = self._nodes[-1] = self._name()
            item, key = map(quoted, self.separators)
            string = self.token(text)
            number = self.token(terminal(_any_number(), False))
            member = self.rule(f"{string} {key} {known}")
            self.lines.append(
                f'{known}: "null" | "true" | "false" | {number} | {string} '
                f'| "[" ({known} ({item} {known})*)? "]" | "{{" ({member} ({item} {member})*)? "}}"'
            )
        return known

    def array(self, node: Array) -> str:
        """First items by place, then a repetition."""
        item = None if node.item is None or shortest(node.item) is None else self.node(node.item)
        separator = quoted(node.separator)
        places = [self.node(one) for one in self._live(node.first)]
        most = node.most
        if len(places) < len(node.first):
            item = None
        if most is not None:
            places = places[:most]
        size = len(places)
        inner = ""
        if item is not None and (most is None or most > size):
            first = 0 if size else 1
            more = counted(
                f"{separator} {item}", max(0, node.least - size - first), None if most is None else most - size - first
            )
            inner = more if size else f"{item} {more}"
            if not size and node.least == 0:
                inner = f"({inner})?"
        for index in range(size - 1, -1, -1):
            inner = f"{separator if index else ''} {places[index]} {inner}".strip()
            if index >= node.least:
                inner = f"({inner})?"
        return f'"[" {inner} "]"'

    def _live(self, nodes: Sequence[Node]) -> list[Node]:
        end = next((index for index, node in enumerate(nodes) if shortest(node) is None), len(nodes))
        return list(nodes[:end])

    def graph(self, node: ItemGraph) -> str:
        """A rule a state; items after the first have a separator before them."""
        names = [self._name() for _ in node.states]
        separator = quoted(node.separator)
        for state, edges in enumerate(node.states):
            ways = [f"{separator} {self.node(one)} {names[after]}" for one, after in edges if node.leads(one, after)]
            ways += ['""'] if state in node.ends else []
            self.lines.append(f"{names[state]}: {' | '.join(ways) or _never()}")
        first = [f"{self.node(one)} {names[after]}" for one, after in node.states[0] if node.leads(one, after)]
        first += ['""'] if 0 in node.ends else []
        return f'"[" ({" | ".join(first)}) "]"'


class _ObjectWriter:
    """Members in order, then free ones; how many there were is part of a rule where it matters."""

    def __init__(self, writer: _Writer, node: Object) -> None:
        self.writer = writer
        self.node = node
        self.item, self.key = map(quoted, node.separators)
        needed = sum(member.required for member in node.members)
        self.cap = max(node.least if node.least > needed else 0, 0 if node.most is None else node.most, 1)
        self.members = [
            None if shortest(m.value) is None else f"{quoted(m.name)} {self.key} {writer.node(m.value)}"
            for m in node.members
        ]
        self.free = self._free()
        self._rests: dict[tuple[int, int], str | None] = {}
        for index in range(len(self.members), 0, -1):  # from the end, so that wide objects do not nest calls
            for count in range(1, min(index, self.cap) + 1):
                self._rest(index, count)

    def body(self) -> str:
        """The object's rule."""
        first = self._first()
        return f'"{{" ({first}) "}}"'

    def _first(self) -> str:
        """From the opening brace: which member comes first."""
        ways = []
        for index, (member, text) in enumerate(zip(self.node.members, self.members, strict=True)):
            if text is not None and self._may_count(1) and (rest := self._rest(index + 1, 1)):
                ways.append(f"{text} {rest}")
            if member.required:
                return " | ".join(ways) or _never()
        free = self._free_tail(0)
        return " | ".join([*ways, *([free] if free is not None else [])]) or _never()

    def _may_count(self, count: int) -> bool:
        return self.node.most is None or count <= self.node.most

    def _rest(self, index: int, count: int) -> str | None:
        """What follows ``count`` members, the next of which is number ``index`` or later; None if nothing can."""
        key = (index, min(count, self.cap))
        if key not in self._rests:
            body = self._rest_body(index, key[1])
            self._rests[key] = None if body is None else self.writer.rule(body)
        return self._rests[key]

    def _rest_body(self, index: int, count: int) -> str | None:
        if index == len(self.node.members):
            return self._free_tail(count)
        member, text = self.node.members[index], self.members[index]
        ways = []
        if text is not None and self._may_count(count + 1) and (rest := self._rest(index + 1, count + 1)):
            ways.append(f"{self.item} {text} {rest}")
        if not member.required and (rest := self._rest(index + 1, count)):
            ways.append(rest)
        return " | ".join(ways) or None

    def _free_tail(self, count: int) -> str | None:
        """Free members up to the end; None if the object cannot end so."""
        least = max(0, self.node.least - count)
        most = None if self.node.most is None else self.node.most - count
        if self.free is None or most == 0:
            return '""' if least == 0 else None
        if count:
            return counted(f"{self.item} {self.free}", least, most)
        more = counted(f"{self.item} {self.free}", max(0, least - 1), None if most is None else most - 1)
        body = f"{self.free} {more}"
        return body if least else f"({body})?"

    def _free(self) -> str | None:
        names = [member.name for member in self.node.members] + sorted(self.node.taken)
        ways = []
        for free in self.node.free:
            if shortest(free.value) is None:
                continue
            name = terminal(ANYTHING if free.names is None else free.names.start, True)
            if names:
                name = f"({name}) & ~({' | '.join(map(quoted, names))})"
            ways.append(f"{self.writer.token(name)} {self.key} {self.writer.node(free.value)}")
        return self.writer.rule(" | ".join(ways)) if ways else None


def quoted(text: bytes) -> str:
    """A text as a Lark string."""
    return json.dumps(text.decode(), ensure_ascii=False)


def counted(body: str, least: int, most: int | None) -> str:
    """``body`` from ``least`` to ``most`` times."""
    if most == 0:
        return ""
    if most is None:
        return f"({body})" + ("*" if least == 0 else "+" if least == 1 else f"{{{least},}}")
    return f"({body}){{{least},{most}}}"


def _never() -> str:
    raise Unwritable("a state from which nothing is legal")


def _content(node: String) -> Regular:
    lengths = repeat(ANY_CHAR, node.least, node.most)
    return lengths if node.pattern is None else both(node.pattern.start, lengths)


def _any_number() -> Regular:
    return NumberRange().texts


def is_writable(numbers: NumberRange) -> bool:
    """Whether a range of numbers has a rule. NumberError if a bound needs too many digits."""
    try:
        terminal(numbers.texts, False)
    except Unwritable:
        return _is_simple(numbers)
    return True


def _is_simple(numbers: NumberRange) -> bool:
    """Whether the engine's own rule for integers of one step is exact here."""
    bounds = [bound for bound in (numbers.low, numbers.high) if bound is not None]
    plain = not (numbers.excluded or numbers.fractional or numbers.nonmultiples)
    if numbers.step is None or not plain or any(abs(bound) >= _EXACT_IN_ENGINE for bound in bounds):
        return False
    return numbers.step.denominator == 1 and numbers.step.numerator <= MAX_STEP


def _integers(numbers: NumberRange) -> dict[str, object]:
    assert numbers.step is not None
    schema: dict[str, object] = {"type": "integer", "multipleOf": numbers.step.numerator}
    if numbers.low is not None:
        schema["minimum"] = numbers.low // 1 + 1 if numbers.low_open else -(-numbers.low // 1)
    if numbers.high is not None:
        schema["maximum"] = -(-numbers.high // 1) - 1 if numbers.high_open else numbers.high // 1
    return schema
