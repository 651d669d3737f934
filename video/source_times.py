"""True, strictly increasing time stamps out of what sources report, and thinning by time (SYSTEM.md V1)."""

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
    """Clamps raw times to strictly increasing ones and notices jumps.

    A jump is a step back, or a step of over half a second that is also eight times the median of recent steps
    (variable frame rates are no jumps). A frame without a time gets one step more than the last.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._last_raw: float | None = None
        self._steps: deque[float] = deque(maxlen=15)

    def stamp(self, raw: float | None) -> Stamp:
        """The stamp of the next frame, whose source says ``raw`` seconds."""
        if raw is None or not math.isfinite(raw):
            step = median(self._steps) if self._steps else _MIN_STEP
            raw_time, wanted, gap = None, (self._last + step if self._last is not None else 0.0), False
        else:
            raw_time, wanted, gap = raw, raw, self._jumped(raw)
            self._last_raw = raw
        time_s = wanted if self._last is None else max(wanted, self._last + _MIN_STEP)
        self._last = time_s
        return Stamp(time_s, raw_time, gap)

    def _jumped(self, raw: float) -> bool:
        if self._last_raw is None:
            return False
        step = raw - self._last_raw
        if step <= 0:
            return step < 0
        usual = median(self._steps) if len(self._steps) >= 3 else math.inf
        self._steps.append(step)
        return step > max(_GAP_FLOOR_S, _GAP_FACTOR * usual)


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
