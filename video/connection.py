"""One generation of a live source: a reader, and what has become of it."""

from __future__ import annotations

from typing import Literal

from .reader import Reader

Fate = Literal["running", "ended", "lost", "stalled", "frozen", "failed", "hopeless"]


class Connection:
    """One generation: what has become of it; guarded by the source's condition."""

    def __init__(self, now: float) -> None:
        self.started = now
        self.opened = False
        self.last_arrival = now
        self.fate: Fate = "running"
        self.error: BaseException | None = None
        self.delivered_any = False
        self.reader: Reader | None = None

    def cancel(self) -> None:
        """End whatever its reader is doing."""
        if self.reader is not None:
            self.reader.cancel()
