"""Two forms of a reply of which the model takes one: a tool call, or a document."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_

from mmspec_agent.core.constraint import TokenMask, Veto
from mmspec_agent.core.errors import ConstraintError

from .constraint import GrammarCursor, GrammarPlan
from .forced import forced_steps


@dataclass(frozen=True)
class EitherPlan:
    """Whatever one of ``plans`` allows (ConstraintPlan); which one it is, the text shows as it is written."""

    plans: tuple[GrammarPlan, ...]

    @property
    def minimum_tokens(self) -> int:
        return min(plan.minimum_tokens for plan in self.plans)

    @property
    def sections(self) -> tuple[GrammarPlan, ...]:
        """Each form by itself: what forbids one of them is an error even if the other is left."""
        return self.plans

    @property
    def unenforced(self) -> tuple[tuple[str, str], ...]:
        """What the grammars leave to a later check."""
        return tuple(found for plan in self.plans for found in plan.unenforced)

    def open(self, max_new_tokens: int) -> EitherCursor:
        fitting = [plan for plan in self.plans if plan.minimum_tokens <= max_new_tokens]
        if not fitting:
            raise ConstraintError(
                f"max_new_tokens={max_new_tokens} is below the {self.minimum_tokens} tokens of the shortest reply, be "
                "it a call or a document; raise it."
            )
        return EitherCursor(tuple(plan.open(max_new_tokens) for plan in fitting))


class EitherCursor:
    """A position in all forms that what was written may still become (Constraint)."""

    __slots__ = ("_mask", "alive")

    def __init__(self, alive: tuple[GrammarCursor, ...]) -> None:
        self.alive = alive
        self._mask: TokenMask | None = None

    @property
    def grammar(self) -> GrammarCursor:
        """The first form that is left."""
        return self.alive[0]

    @property
    def witness(self) -> tuple[int, ...]:
        """A short completion from here."""
        return min((cursor.witness for cursor in self.alive), key=len)

    @property
    def state(self) -> str:
        return self.alive[0].state

    @property
    def held_back(self) -> int:
        return 0

    @property
    def done(self) -> bool:
        """Whether the reply has ended."""
        return any(cursor.done for cursor in self.alive)

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is a whole reply."""
        return any(cursor.is_complete for cursor in self.alive)

    def veto(self, token: int) -> Veto | None:
        return None

    def fork(self) -> EitherCursor:
        copy = EitherCursor(tuple(cursor.fork() for cursor in self.alive))
        copy._mask = self._mask
        return copy

    def advance(self, token: int) -> None:
        left = tuple(cursor for cursor in self.alive if not cursor.done and cursor.mask().allows(token))
        if not left:
            self.alive[0].advance(token)  # says what is wrong
        for cursor in left:
            cursor.advance(token)
        self.alive, self._mask = left, None

    def mask(self) -> TokenMask:
        if self._mask is None:
            masks = [cursor.mask() for cursor in self.alive]
            words = reduce(or_, (mask.words for mask in masks))
            self._mask = TokenMask(words, masks[0].vocab_size)
        return self._mask

    def forced_run(self, limit: int) -> list[int]:
        return forced_steps(
            self, limit, lambda here: here.alive[0] if len(here.alive) == 1 else None, lambda here, _: here.done
        )
