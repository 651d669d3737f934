"""Recordings played as if live: at their own pace, or on a simulated clock without waiting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mmspec_agent.core.errors import SourceEnded

from .clock import Clock
from .frame import Frame, StreamInfo
from .opening import open_reader
from .reader import Reader
from .source_base import EventHook, Raw, SourceBase
from .source_options import SourceOptions
from .source_times import FrameTimes


class PacedReader(Reader):
    """A reader whose pictures become available at their own times, counted from the first one."""

    def __init__(self, reader: Reader, clock: Clock) -> None:
        super().__init__()
        self._reader = reader
        self._clock = clock
        self._times = FrameTimes()
        self._start: float | None = None
        self._first = 0.0

    def open(self) -> StreamInfo:
        """Open the reader inside."""
        info = self._reader.open()
        self.order, self.rate = self._reader.order, self._reader.rate
        self.is_decoded = self._reader.is_decoded
        return info

    def advance(self) -> bool:
        """Go to the next picture and wait until it is due; behind a step back in time it goes on from there."""
        if not self._reader.advance():
            return False
        self.order, self.discontinuity = self._reader.order, self._reader.discontinuity
        self.time_s = self._reader.time_s
        # A picture without a time or a rate counts from its arrival.
        self.has_times = self.time_s is not None or self._reader.rate is not None
        if not self.has_times:
            return True
        stamp = self._times.stamp(self.time_s, self._reader.rate)
        if self._start is None:
            self._start, self._first = self._clock.now(), stamp.time_s
        wait = self._start + (stamp.time_s - self._first) - self._clock.now()
        if wait > 0:
            self.cancelled.wait(wait)
        return True

    def picture(self) -> Any:
        """Of the reader inside."""
        return self._reader.picture()

    @property
    def patience(self) -> int:  # type: ignore[override]
        """Of the reader inside."""
        return self._reader.patience

    def take_notes(self) -> list[str]:
        """Of the reader inside."""
        return self._reader.take_notes()

    def take_remarks(self) -> list[str]:
        """Of the reader inside."""
        return self._reader.take_remarks()

    def cancel(self) -> None:
        """End the wait, and the read inside."""
        super().cancel()
        self._reader.cancel()

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
        stamp = self._times.stamp(self._reader.time_s, self._reader.rate)
        if self._start is None:
            self._start, self._first = self._clock.now(), stamp.time_s
        self._tell_notes(self._reader)
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
