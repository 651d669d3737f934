"""Named pipes and standard input as files whose reads can be ended from another thread."""

from __future__ import annotations

import os
import select
import stat
import sys
from pathlib import Path

from mmspec_agent.core.errors import SourceOpenError

from .cancel import Cancel


class PipeStream:
    """What comes through a pipe, for a decoder that calls ``read``. A pipe without a writer is waited for."""

    name = "pipe"

    def __init__(self, path: Path | None, cancel: Cancel) -> None:
        self._cancel = cancel
        self._started = False
        self._file = self._opened(path)
        self._is_pipe = not stat.S_ISREG(os.fstat(self._file).st_mode)
        self._wake_out, self._wake_in = os.pipe()
        cancel.on_set(self._wake)

    @staticmethod
    def _opened(path: Path | None) -> int:
        if path is not None:
            return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            if sys.stdin.isatty():
                raise SourceOpenError('"-" reads standard input, which is a terminal here; pipe a video into it')
            return os.dup(sys.stdin.fileno())
        except (OSError, ValueError, AttributeError):
            pass
        raise SourceOpenError('"-" reads standard input, which is closed here; pipe a video into it')

    def _wake(self) -> None:
        os.write(self._wake_in, b"x")

    def seekable(self) -> bool:
        """Never."""
        return False

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes as soon as there are any; none at the end."""
        while True:
            self._cancel.check()
            if self._is_pipe:
                select.select([self._file, self._wake_out], [], [])
                self._cancel.check()
            try:
                content = os.read(self._file, size)
            except BlockingIOError:
                continue
            if content or self._started or not self._is_pipe:
                self._started = True
                return content
            if stat.S_ISFIFO(os.fstat(self._file).st_mode) and self._has_no_writer_yet():
                # Nobody writes yet: such a pipe is always readable and always empty.
                self._cancel.wait(0.02)
                continue
            return content

    def _has_no_writer_yet(self) -> bool:
        """A named pipe waits for its writer; an anonymous one whose writer left is at its end."""
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        hung_up = any(event & select.POLLHUP for _, event in poll.poll(0))
        return not hung_up

    def close(self) -> None:
        """Free the descriptors; harmless when repeated."""
        self._cancel.forget(self._wake)
        for name in ("_file", "_wake_out", "_wake_in"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)
