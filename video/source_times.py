"""True, strictly increasing time stamps out of what sources report, and thinning by time."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import NamedTuple

_MIN_STEP = 1e-3
_GAP_FLOOR_S = 0.5
_GAP_FACTOR = 8.0


class Stamp(NamedTuple):
    """``time_s`` strictly increasing, ``raw_time_s`` as given, ``gap``: the raw times jumped before this frame."""

    time_s: float
    raw_time_s: float | None
    gap: bool


class FrameTimes:
    """Makes strictly increasing times of raw ones and notices jumps.

    A jump is a step back, or a step of over half a second that is also eight times the median of recent steps
    (variable frame rates are no jumps). Behind a step back the times go on from the last one: a stream that begins
    anew, or a second file behind a first. A frame without a time comes one step behind the last: ``1 / rate`` where
    the stream names a rate, else the median of recent steps.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._last_raw: float | None = None
        self._offset = 0.0
        self._steps: deque[float] = deque(maxlen=15)

    def stamp(self, raw: float | None, rate: float | None = None) -> Stamp:
        """The stamp of the next frame, whose source says ``raw`` seconds."""
        if raw is None or not math.isfinite(raw):
            time_s = 0.0 if self._last is None else self._last + self._usual_step(rate)
            # Times that come back later go on from here.
            self._last_raw = None if self._last_raw is None else self._last_raw + time_s - (self._last or 0.0)
            self._last = time_s
            return Stamp(time_s, None, False)
        gap = self._jumped(raw)
        if self._last is not None and self._last_raw is None:
            # The first time behind frames without any.
            self._offset = max(0.0, self._last + self._usual_step(rate) - raw)
        elif self._last is not None and self._last_raw is not None and raw < self._last_raw:
            self._offset = self._last + self._usual_step(rate) - raw
        wanted = raw + self._offset
        time_s = wanted if self._last is None else max(wanted, self._last + _MIN_STEP)
        self._last, self._last_raw = time_s, raw
        return Stamp(time_s, raw, gap)

    def _usual_step(self, rate: float | None) -> float:
        if self._steps:
            return median(self._steps)
        return 1.0 / rate if rate else _MIN_STEP

    def _jumped(self, raw: float) -> bool:
        if self._last_raw is None:
            return False
        step = raw - self._last_raw
        if step <= 0:
            return step < 0
        usual = median(self._steps) if len(self._steps) >= 3 else math.inf
        jumped = step > max(_GAP_FLOOR_S, _GAP_FACTOR * usual)
        self._steps.append(step)
        return jumped


class Thinner:
    """Keeps the first frame of every 1/fps of time; all of them without ``fps``."""

    def __init__(self, fps: float | None) -> None:
        self._fps = fps
        self._origin: float | None = None
        self._slot = -1

    def keeps(self, time_s: float) -> bool:
        """Whether the frame at ``time_s`` is to be given out."""
        if self._fps is None:
            return True
        if self._origin is None:
            self._origin = time_s
        slot = math.floor((time_s - self._origin) * self._fps + 1e-6)
        if slot <= self._slot:
            return False
        self._slot = slot
        return True
