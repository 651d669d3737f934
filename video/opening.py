"""Opening in a thread of its own, which can be given up in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mmspec_agent.core.errors import SourceOpenTimeout

from .frame import StreamInfo
from .reader import Reader

CLOSE_WAIT_S = 1.5
"""Longest wait for threads when a source is closed; what hangs in a driver is left to end by itself."""


def open_reader(make: Callable[[], Reader]) -> tuple[Reader, StreamInfo]:
    """A reader that is open; it is closed again where opening fails."""
    reader = make()
    try:
        return reader, reader.open()
    except BaseException:
        reader.close()
        raise


class Opening:
    """A reader being opened by a thread."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self._name = name
        self._done = threading.Event()
        self._info: StreamInfo | None = None
        self._error: BaseException | None = None
        self._given_up = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"mmspec-open-{name}", daemon=True)

    def _run(self) -> None:
        try:
            self._info = self._reader.open()
        except BaseException as error:
            self._error = error
        with self._lock:
            self._done.set()
            close = self._given_up or self._error is not None
        if close:
            self._reader.close()

    def result(self, seconds: float) -> StreamInfo:
        """What the reader says; its error, or ``SourceOpenTimeout``. Nothing is left behind by either."""
        self._thread.start()
        try:
            self._done.wait(seconds)
        finally:
            with self._lock:
                self._given_up = not self._done.is_set()
            if self._given_up:
                self._reader.cancel()
            self._thread.join(CLOSE_WAIT_S)
        if self._error is not None and not self._given_up:
            raise self._error
        if self._info is None or self._given_up:
            raise SourceOpenTimeout(f"{self._name} did not open within {seconds:g} s (open_timeout)")
        return self._info


def join_all(threads: list[threading.Thread]) -> None:
    """Wait for threads, for all of them together no longer than ``CLOSE_WAIT_S``."""
    until = time.monotonic() + CLOSE_WAIT_S
    for thread in threads:
        if thread is not threading.current_thread() and thread.ident is not None:
            thread.join(max(0.0, until - time.monotonic()))
