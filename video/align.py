"""Finding a reply's place in an earlier answer by its last tokens, not by counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

State = Literal["start", "strong", "weak", "resync", "skip"]
"""How the place was found: nothing said yet; two or more tokens agree; one agrees; none agrees (one token was
replaced); none agrees (one was put in, or two replaced)."""

_LONGEST = 16
_LOOK_BACK = 8


@dataclass(frozen=True)
class Answer:
    """An earlier answer with an index of where each token stands."""

    tokens: tuple[int, ...]

    @cached_property
    def places(self) -> dict[int, tuple[int, ...]]:
        """Positions of every token, ascending."""
        found: dict[int, list[int]] = {}
        for position, token in enumerate(self.tokens):
            found.setdefault(token, []).append(position)
        return {token: tuple(positions) for token, positions in found.items()}


class Place(NamedTuple):
    """The continuation starts at ``at``."""

    state: State
    at: int


@dataclass(frozen=True)
class Alignment:
    """The best place to go on from, and other readings of a divergence."""

    state: State
    at: int
    others: tuple[Place, ...] = ()


def align(answer: Answer, reply: Sequence[int]) -> Alignment:
    """Where in ``answer`` the reply goes on.

    The longest run of last tokens that stands in the answer decides; among equals the place nearest to where the
    reply would be by count. If even the last token is new, the last place known is found a few tokens back, and the
    new tokens are taken for replacements of as many, or for insertions.
    """
    if not reply:
        return Alignment("start", 0)
    length, at = _match(answer, reply, len(reply))
    if length >= min(2, len(reply)):
        return Alignment("strong", at)
    behind = _before_divergence(answer, reply)
    if behind is None:
        return Alignment("weak", at) if length else Alignment("resync", min(len(reply), len(answer.tokens)))
    known, new = behind
    replaced, inserted = known + new, known
    if length:
        # One token agrees: it may be chance, so the reading by replacement stays beside it.
        others = () if replaced == at else (Place("skip", replaced),)
        return Alignment("weak", at, others)
    return Alignment("resync", replaced, (Place("skip", inserted), Place("skip", replaced + 1)))


def _before_divergence(answer: Answer, reply: Sequence[int]) -> tuple[int, int] | None:
    """The place known last (two tokens agreeing, or the whole beginning), and how many new tokens came since."""
    for new in range(1, min(_LOOK_BACK, len(reply)) + 1):
        end = len(reply) - new
        if end == 0:
            return 0, new
        length, at = _match(answer, reply, end)
        if length >= min(2, end):
            return at, new
    return None


def _match(answer: Answer, reply: Sequence[int], end: int) -> tuple[int, int]:
    """Length of the longest run ending before ``reply[end]`` that stands in the answer, and what follows it there."""
    best, place = 0, 0
    tokens = answer.tokens
    for position in answer.places.get(reply[end - 1], ()):
        length = 1
        while length < min(_LONGEST, end, position + 1) and tokens[position - length] == reply[end - 1 - length]:
            length += 1
        nearer = abs(position + 1 - end) < abs(place - end)
        if length > best or (length == best and nearer):
            best, place = length, position + 1
    return best, place
