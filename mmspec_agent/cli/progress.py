"""Progress of long work on the terminal: a bar where somebody looks, plain lines in a log."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Bars:
    """Draws stages one below the other, on standard error; implements the models' Progress."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._total: float | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        self._bars.stop()

    def stage(self, text: str, total: float | None = None) -> None:
        """The stage before is done; a new line begins."""
        self._finish()
        if not self._console.is_terminal:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._total = total
        self._task = self._bars.add_task(text, total=total)

    def advance_to(self, done: float) -> None:
        """`done` of the stage's total; what exceeds an estimated total stops at its end."""
        if self._task is not None:
            self._bars.update(self._task, completed=done if self._total is None else min(done, self._total))

    def _finish(self) -> None:
        if self._task is not None:
            total = self._total or 1
            self._bars.update(self._task, total=total, completed=total)
            self._bars.stop_task(self._task)
