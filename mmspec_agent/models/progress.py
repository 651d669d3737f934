"""How long work on models reports itself, without knowing who shows it."""

from typing import Protocol


class Progress(Protocol):
    """Receives what is being done; the command line draws a bar from it."""

    def stage(self, text: str, total: float | None = None) -> None:
        """A new piece of work begins. `total` is its size in any unit, None when unknown."""

    def advance_to(self, done: float) -> None:
        """`done` of the current stage's total is finished."""


class Silent:
    """Progress that nobody watches."""

    def stage(self, text: str, total: float | None = None) -> None:
        """Nothing is shown."""

    def advance_to(self, done: float) -> None:
        """Nothing is shown."""
