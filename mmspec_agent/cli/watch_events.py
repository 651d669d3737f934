"""What happens to a source, told when it happens: from the source's own threads, between the answers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mmspec_agent.video.source_options import SourceEvent

_EXPECTED = ("opened", "ended")


class EventTeller:
    """A line for each event: an object where answers are JSON lines, a sentence elsewhere."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._lock = threading.Lock()
        self._console: Console | None = None

    def tell(self, event: "SourceEvent") -> None:
        """Called by the source as soon as something happens."""
        if self._as_json:
            self.line(json.dumps({"event": {"kind": event.kind, "text": event.text}}))
        elif event.kind not in _EXPECTED:
            self._say(f"{event.kind}: {event.text}")

    def line(self, text: str) -> None:
        """A whole line of JSON, never mixed with another thread's."""
        with self._lock:
            typer.echo(text)

    @contextmanager
    def on(self, console: "Console") -> Iterator[None]:
        """Within the block sentences go above the panel that ``console`` draws."""
        self._console = console
        try:
            yield
        finally:
            self._console = None

    def _say(self, text: str) -> None:
        console = self._console
        with self._lock:
            if console is None:
                typer.secho(text, fg=typer.colors.YELLOW, err=True)
            else:
                console.print(text, style="yellow", markup=False, soft_wrap=True)
