"""Whatever a grammar of a Python type admits is read back as that type."""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import random
import typing
import uuid
from collections.abc import Callable
from typing import Any

import pydantic
import pytest

from mmspec_agent.core.errors import OutputTypeError
from mmspec_agent.grammar.regex import Automaton
from mmspec_agent.grammar.shape import Choice, Literal, Node, OneOf
from mmspec_agent.grammar.shape_values import Number, String
from mmspec_agent.grammar.types import output_type

Price = typing.Annotated[decimal.Decimal, pydantic.Field(max_digits=6, decimal_places=2)]


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


TYPES: list[Any] = [
    datetime.date, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, Price, Level,
    ipaddress.IPv4Address, ipaddress.IPv6Address, pydantic.PositiveInt, typing.Literal["a", 2, None], float, bool,
    typing.Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Z]{3}-\d+$", max_length=9)],
    typing.Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)],
]  # fmt: skip


def walked(automaton: Automaton, draw: random.Random, most: int) -> str:
    """A random text of a language: steps at random, then the shortest end."""
    text, state = "", automaton.start
    for _ in range(draw.randint(0, most)):
        ways = [
            cell for cell, after in automaton.edges(state) if automaton.finish(text + (cell.sample or "")) is not None
        ]
        if not ways:
            break
        low, high = draw.choice(draw.choice(ways).ranges)
        text += chr(draw.randint(max(low, 0x20), max(min(high, low + 90), 0x20)))
        state = automaton.after(text)
    return text + (automaton.finish(text) or "")


def sampled(node: Node, draw: random.Random) -> str:
    if isinstance(node, Choice):
        return sampled(draw.choice(node.options), draw)
    if isinstance(node, Literal):
        return node.text.decode()
    if isinstance(node, OneOf):
        return draw.choice(node.texts).decode()
    if isinstance(node, Number):
        return walked(node.range.automaton, draw, 5)
    assert isinstance(node, String)
    assert node.pattern is not None
    while not node.least <= len(text := walked(node.pattern, draw, 30)) <= (node.most or 99):
        pass
    return f'"{text}"'


@pytest.mark.parametrize("wanted", TYPES, ids=lambda wanted: str(wanted)[:40])
def test_random_documents_of_a_type_are_read_back(wanted: Any) -> None:
    kind = output_type(wanted)
    assert kind is not None
    assert kind.schema is not None
    root, draw = kind.schema.shape(), random.Random(3)
    for _ in range(40):
        text = sampled(root, draw)
        value = kind.parse(text)
        assert pydantic.TypeAdapter(wanted).validate_python(value) == value


class Plain:
    """No type that pydantic reads."""


@pytest.mark.parametrize("wanted", [Plain, Callable[[int], int], Plain()])
def test_types_without_a_schema_are_refused(wanted: Any) -> None:
    with pytest.raises(OutputTypeError):
        output_type(wanted)
