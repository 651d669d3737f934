"""How much one token can lengthen what is still to be written, from a grammar's shape."""

from __future__ import annotations

from typing import Final

from .numbers import NumberRange
from .shape import Choice, Node, OneOf, Pattern, Reference, Repeat, Sequence_, shortest, walk
from .shape_json import Array, Object
from .shape_values import Anything, Number, String
from .vocabulary import Vocabulary

_UNKNOWN: Final = 24
"""Tokens, for grammars without a shape."""

_SLACK: Final = 8
"""Tokens for what a text costs more where the token before it ends elsewhere."""


def growth(vocabulary: Vocabulary, shape: Node | None) -> int:
    """Most tokens by which one token lengthens the shortest completion of one way to read the text.

    What is required is in a completion already. A token adds to it by beginning what could have been left out: one
    member or item, and inside of it as many containers as one token opens, each with a branch of its own.
    """
    if shape is None:
        return _UNKNOWN
    deep = _Depths(vocabulary)
    return _SLACK + max([deep.cost(shape, deep.most), *(deep.added(node, deep.most) for node in walk(shape))])


class _Depths:
    """Tokens of the dearest text that a token may begin, by node and by how many containers it opens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.most = vocabulary.most_openers
        self._known: dict[tuple[int, int], int] = {}

    def size(self, text: bytes | None) -> int:
        return 0 if text is None else len(self.vocabulary.tokenize(text))

    def cost(self, node: Node, opened: int) -> int:
        """Of a whole value of which ``opened`` containers are open when its first token is written."""
        key = id(node), opened
        if key not in self._known:
            self._known[key] = 0  # a reference that leads back here without opening anything begins nothing
            self._known[key] = self._cost(node, opened)
        return self._known[key]

    def _cost(self, node: Node, opened: int) -> int:
        if isinstance(node, OneOf):
            return self.size(max(node.texts, key=len, default=b""))
        if isinstance(node, Choice):
            return max((self.cost(option, opened) for option in node.options), default=0)
        if isinstance(node, Reference):
            return 0 if node.target is None else self.cost(node.target, opened)
        whole = self.size(shortest(node))
        if isinstance(node, (Object, Array)):
            return whole + self.added(node, opened - 1) if opened else whole
        if isinstance(node, Sequence_):
            return whole + max((self.cost(part, opened) for part in node.parts), default=0)
        return whole + self.added(node, opened)

    def added(self, node: Node, opened: int) -> int:
        """Most that a token written inside a node adds to it."""
        if isinstance(node, Object):
            members = [self.size(m.name) + 3 + self.cost(m.value, opened) for m in node.members]
            far = max((names.farthest for names, _ in node.free if names), default=0)
            members += [8 + far + self.cost(value, opened) for _, value in node.free]
            return max(members, default=0) * max(1, node.least)
        if isinstance(node, Array):
            items = [*node.first, *([node.item] if node.item else [])]
            return max((self.cost(item, opened) + 2 for item in items), default=0)
        if isinstance(node, Repeat):
            return self.size(node.separator) + self.cost(node.item, opened) + 2
        if isinstance(node, String):
            return node.pattern.farthest if node.pattern else 0
        if isinstance(node, Pattern):
            return node.automaton.farthest
        if isinstance(node, Anything):
            return 8 + 2 * opened
        return _digits(node.range) if isinstance(node, Number) else 0


def _digits(numbers: NumberRange) -> int:
    bounds = [b for b in (numbers.low, numbers.high) if b is not None]
    return max((len(str(float(b))) if b.denominator > 1 else len(str(b)) for b in bounds), default=1)
