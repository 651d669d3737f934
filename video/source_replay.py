"""Recordings played as if live: at their own pace, or on a simulated clock without waiting (SYSTEM.md V1)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from mmspec_agent.core.errors import SourceEnded

from .clock import Clock
from .frame import Frame, Order, StreamInfo
from .source_base import EventHook, Raw, SourceBase, open_reader
from .source_options import SourceOptions
from .source_readers import Reader
from .source_times import FrameTimes


class PacedReader:
    """A reader whose pictures become available at their own times, counted from the first one."""

    def __init__(self, reader: Reader, clock: Clock, stop: threading.Event) -> None:
        self._reader = reader
        self._clock = clock
        self._stop = stop
        self._start: float | None = None
        self._first = 0.0

    @property
    def order(self) -> Order:
        """Of the reader inside."""
        return self._reader.order

    @property
    def has_times(self) -> bool:
        """Whether the current picture came with a time; if not, its arrival counts."""
        return self._reader.time_s is not None

    @property
    def discontinuity(self) -> bool:
        """Of the reader inside."""
        return self._reader.discontinuity

    def open(self) -> StreamInfo:
        """Open the reader inside."""
        return self._reader.open()

    def advance(self) -> bool:
        """Go to the next picture and wait until it is due; a step back in time is due at once."""
        if not self._reader.advance():
            return False
        time_s = self._reader.time_s
        if time_s is None:
            return True
        if self._start is None:
            self._start, self._first = self._clock.now(), time_s
        wait = self._start + (time_s - self._first) - self._clock.now()
        if wait > 0:
            self._stop.wait(wait)
        return True

    @property
    def time_s(self) -> float | None:
        """Time within the recording."""
        return self._reader.time_s

    def picture(self) -> Any:
        """Of the reader inside."""
        return self._reader.picture()

    @property
    def patience(self) -> int:
        """Of the reader inside."""
        return self._reader.patience

    def close(self) -> None:
        """Close the reader inside."""
        self._reader.close()


class ReplaySource(SourceBase):
    """A recording played live on a simulated clock: newest-frame policy, no threads, deterministic.

    Frame k is there once the clock has moved by its time since the first call of ``latest``; waiting moves the
    clock. What the consumer does meanwhile has to be told to the clock by the consumer.
    """

    is_live = True

    def __init__(
        self,
        make: Callable[[], Reader],
        options: SourceOptions,
        clock: Clock,
        on_event: EventHook | None = None,
        name: str = "source",
    ) -> None:
        super().__init__(options, clock, on_event)
        self._name = name
        self._times = FrameTimes()
        self._start: float | None = None
        self._first = 0.0
        self._ahead: Raw | None = None
        self._gap = False
        self._done = False
        self._last_given = -math.inf
        self._reader, self._info = open_reader(make)

    def latest(self, timeout: float | None = None) -> Frame | None:
        """The newest frame that is due; the clock is moved to the next one if there is none."""
        now = self._clock.now()
        earliest = max(now, self._last_given + (1.0 / self._options.fps if self._options.fps else 0.0))
        chosen = self._newest(earliest)
        if chosen is None:
            if self._ahead is None:
                raise SourceEnded(f"{self._name} is at its end")
            earliest = self._ahead.arrived_s
        if timeout is not None and earliest > now + timeout:
            self._ahead = chosen or self._ahead
            self._clock.sleep(timeout)
            return None
        self._clock.sleep(earliest - now)
        chosen = chosen or self._newest(earliest)
        assert chosen is not None
        self._last_given = earliest
        self._counters.delivered += 1
        return self._frame(chosen)

    def _newest(self, now: float) -> Raw | None:
        """Take every frame due by ``now``; all but the last are dropped, their gaps handed on."""
        newest: Raw | None = None
        while not self._done:
            self._ahead = self._ahead or self._next()
            if self._ahead is None or self._ahead.arrived_s > now + 1e-9:
                break
            if newest is not None:
                self._counters.dropped += 1
                if newest.discontinuity:
                    self._ahead = self._ahead._replace(discontinuity=True)
            newest, self._ahead = self._ahead, None
        return newest

    def _next(self) -> Raw | None:
        failures = 0
        while True:
            picture = self._reader.picture() if self._reader.advance() else None
            if picture is not None:
                break
            failures += 1
            if failures > self._reader.patience:
                self._done = True
                self._tell("ended", f"{self._name} is at its end")
                return None
        stamp = self._times.stamp(self._reader.time_s)
        if self._start is None:
            self._start, self._first = self._clock.now(), stamp.time_s
        self._counters.retries += failures
        index = self._counters.grabbed
        self._counters.grabbed += 1
        gap = index > 0 and (stamp.gap or failures > 0 or self._reader.discontinuity)
        due = self._start + stamp.time_s - self._first
        return Raw(picture, self._reader.order, stamp.time_s, stamp.raw_time_s, index, due, gap)

    def close(self) -> None:
        """Free the recording; later calls of ``latest`` end."""
        self._done, self._ahead = True, None
        self._reader.close()
