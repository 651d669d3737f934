"""Recordings: every frame in order, decoded by a thread so that no file can hang the caller."""

from __future__ import annotations

import math
import threading
import warnings
from collections import deque
from collections.abc import Callable

from mmspec_agent.core.errors import (
    SourceEnded,
    SourceOpenTimeout,
    SourceStalled,
    SourceUndecodable,
    SourceWarning,
)

from .clock import Clock
from .frame import Frame, StreamInfo
from .opening import join_all
from .reader import Reader
from .source_base import EventHook, Raw, SourceBase
from .source_options import SourceOptions
from .source_times import FrameTimes, Thinner

_AHEAD = 2
_MISSING_SHARE = 0.8


class RecordedSource(SourceBase):
    """A file, folder or iterator: all frames, or ``fps`` of them a second, none skipped for being late."""

    def __init__(
        self,
        make: Callable[[], Reader],
        options: SourceOptions,
        clock: Clock,
        on_event: EventHook | None = None,
        name: str = "source",
    ) -> None:
        super().__init__(options, clock, on_event)
        self._make = make
        self._reader: Reader | None = None
        self._name = name
        self._ready: deque[Raw] = deque()
        self._warnings: deque[str] = deque()
        self._error: BaseException | None = None
        self._done = False
        self._closed = False
        self._beat = clock.now()
        self._stall = options.read_timeout
        self._thread = threading.Thread(target=self._run, name=f"mmspec-read-{name}", daemon=True)
        self._thread.start()
        try:
            self._await_first()
        except BaseException:
            self.close()
            raise

    def latest(self, timeout: float | None = None) -> Frame | None:
        """The next frame in order; ``SourceStalled`` if decoding makes no progress for ``read_timeout``."""
        deadline = None if timeout is None else self._clock.now() + timeout
        with self._condition:
            while not self._ready and not self._done and not self._closed:
                if not self._wait(deadline):
                    return None
            raw = self._ready.popleft() if self._ready and not self._closed else None
            self._beat = self._clock.now()
            # What a recording decodes ahead has not waited for anybody: its age counts from here.
            raw = raw._replace(arrived_s=self._beat) if raw is not None else None
            self._condition.notify_all()
        self._warn()
        if raw is None:
            self._raise_end()
            return None
        frame = self._frame(raw)
        with self._condition:
            self._counters.delivered += 1
        return frame

    def _wait(self, deadline: float | None) -> bool:
        """Wait for news; False when the caller's time is up."""
        now = self._clock.now()
        if deadline is not None and now >= deadline:
            return False
        stall = self._beat + self._stall - now
        if stall <= 0:
            self._closed = True
            raise SourceStalled(
                f"{self._name}: decoding made no progress for {self._stall:g} s. The file may be damaged, or lie "
                "on a drive that went away; a larger read_timeout waits longer."
            )
        rest = min(stall, math.inf if deadline is None else deadline - now)
        self._condition.wait(None if math.isinf(rest) else rest)
        return True

    def _raise_end(self) -> None:
        if self._error is not None and not self._closed:
            raise self._error
        raise SourceEnded(f"{self._name} is {'closed' if self._closed else 'at its end'}")

    def _await_first(self) -> None:
        limit = self._clock.now() + self._options.opening
        with self._condition:
            while self._info is None and not self._done:
                rest = limit - self._clock.now()
                if rest <= 0:
                    raise SourceOpenTimeout(
                        f"{self._name} did not open within {self._options.opening:g} s (open_timeout)"
                    )
                self._condition.wait(rest)
            if self._counters.grabbed == 0 and self._error is not None:
                raise self._error

    def close(self) -> None:
        """End the thread and free the file; a read in progress is ended too where the reader can."""
        with self._condition:
            self._closed = True
            self._ready.clear()
            self._condition.notify_all()
        if self._reader is not None:
            self._reader.cancel()
        join_all([self._thread])

    def _warn(self) -> None:
        while self._warnings:
            warnings.warn(self._warnings.popleft(), SourceWarning, stacklevel=4)

    def _run(self) -> None:
        try:
            self._reader = reader = self._make()
            try:
                info = reader.open()
                if not reader.is_decoded:
                    self._stall = math.inf  # a generator may take its time, also for its first picture
                    self._announce(info)
                self._read_all(reader, info.frame_count, announce=lambda: self._announce(info))
            finally:
                reader.close()
        except BaseException as error:
            self._error = error
        with self._condition:
            self._done = True
            self._condition.notify_all()

    def _announce(self, info: StreamInfo) -> None:
        """Hand out the description once a first frame is there: a file that yields none fails when it is opened."""
        with self._condition:
            self._info = info
            self._condition.notify_all()

    def _tell_notes(self, reader: Reader) -> None:
        for note in reader.take_notes():
            self._note(note)
        super()._tell_notes(reader)

    def _note(self, text: str) -> None:
        self._warnings.append(text)
        self._tell("warning", text)

    def _read_all(self, reader: Reader, promised: int | None, announce: Callable[[], None]) -> None:
        times, thinner = FrameTimes(), Thinner(self._options.fps)
        failures, lost, cut = 0, 0, False
        while not self._closed:
            good = reader.advance()
            picture = None
            if good:
                stamp = times.stamp(reader.time_s, reader.rate)
                cut = cut or stamp.gap or reader.discontinuity or failures > 0
                lost, failures = lost + failures, 0
                self._counters.retries = lost
                if stamp.gap:
                    self._tell("gap", f"{self._name}: time jumps at {stamp.raw_time_s} s")
                keep = thinner.keeps(stamp.time_s)
                picture = reader.picture() if keep else None
                good = picture is not None or not keep
            self._count(good, skipped=good and picture is None)
            self._tell_notes(reader)
            if not good:
                failures += 1
                if failures > reader.patience:
                    break
                continue
            if picture is not None:
                announce()
                self._offer(picture, reader, stamp.time_s, stamp.raw_time_s, cut)
                cut = False
        self._report_end(reader, promised, lost)

    def _count(self, good: bool, skipped: bool) -> None:
        with self._condition:
            self._beat = self._clock.now()
            self._counters.grabbed += good
            self._counters.dropped += skipped
            self._counters.thinned += skipped

    def _offer(self, picture: object, reader: Reader, time_s: float, raw: float | None, cut: bool) -> None:
        with self._condition:
            index = self._counters.grabbed - 1
            item = Raw(picture, reader.order, time_s, raw, index, self._clock.now(), cut and index > 0)
            while len(self._ready) >= _AHEAD and not self._closed:
                self._condition.wait()
            if not self._closed:
                self._beat = self._clock.now()
                self._ready.append(item)
                self._condition.notify_all()

    def _report_end(self, reader: Reader, promised: int | None, lost: int) -> None:
        """Typed error for nothing at all, a warning for less than promised."""
        grabbed = self._counters.grabbed
        if self._closed:
            return
        if grabbed == 0 and reader.is_decoded:
            raise SourceUndecodable(f"{self._name} opens and none of its pictures can be decoded; is it damaged?")
        if reader.damage:
            self._note(f"{self._name}: {reader.damage}; {grabbed} frames were read")
        elif lost:
            self._note(f"{self._name}: {lost} reads failed on the way; {grabbed} frames were read")
        elif promised and grabbed < _MISSING_SHARE * promised:
            self._note(f"{self._name} promised {promised} frames and gave {grabbed}")
        self._tell("ended", f"{self._name}: {grabbed} frames")
