"""Time as a seam: the real clock for cameras, a simulated one for hours of stream in a second."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never run backwards."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; nothing happens for zero or less."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait; nothing happens for zero or less."""
        if seconds > 0:
            time.sleep(seconds)


class SimulatedClock:
    """A clock that moves only when told to, by ``sleep`` or ``advance``; safe to share between threads."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> float:
        """Simulated seconds."""
        with self._lock:
            return self._now

    def sleep(self, seconds: float) -> None:
        """Move forward without waiting."""
        self.advance(max(seconds, 0.0))

    def advance(self, seconds: float) -> None:
        """Move forward; ``ValueError`` if asked to go back."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s; accepted are 0 or more seconds")
        with self._lock:
            self._now += seconds
