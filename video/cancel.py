"""Ending a blocking read from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mmspec_agent.core.errors import SourceEnded


class Cancel:
    """A flag that wakes whoever waits: every hook registered is called once, when it is set."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._hooks: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._event.is_set()

    def set(self) -> None:
        """Set it, and call the hooks; harmless when repeated."""
        with self._lock:
            self._event.set()
            hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook()

    def wait(self, seconds: float) -> bool:
        """Wait for it, at most so long."""
        return self._event.wait(seconds)

    def on_set(self, hook: Callable[[], None]) -> None:
        """Call ``hook`` when it is set, now if it is set already."""
        with self._lock:
            if not self._event.is_set():
                self._hooks.append(hook)
                return
        hook()

    def forget(self, hook: Callable[[], None]) -> None:
        """Take a hook back."""
        with self._lock:
            if hook in self._hooks:
                self._hooks.remove(hook)

    def check(self) -> None:
        """``SourceEnded`` once it is set."""
        if self._event.is_set():
            raise SourceEnded("the source was closed while it was read")
