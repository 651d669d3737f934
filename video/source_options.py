"""What a video source may be told, and what it tells: options, events, counts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from mmspec_agent.core.errors import OptionError

from .frame import MIN_SIDE, Order

Rotation = Literal["auto", "none", 0, 90, 180, 270]
EventKind = Literal[
    "opened", "retried", "stalled", "lost", "frozen", "reconnected", "gap", "resized", "warning", "ended"
]


@dataclass(frozen=True)
class SourceOptions:
    """How a source is read; seconds throughout.

    ``fps`` thins a recording, and limits how often a live source hands out frames. ``rate`` is the pace of
    pictures that carry no times (default: that of the stream, else 25; 1 for picture files). ``read_timeout`` bounds
    one read of a recording, ``stall_timeout`` (default: the same) how long a live source may send nothing before it is
    reconnected; a slow camera needs a larger one.
    ``open_timeout`` defaults to 10 s, or twice ``stall_timeout`` if that is longer.
    ``frozen_timeout``: byte-identical frames for longer are a fault (None: never; "auto": 10 s for cameras and URLs).
    ``reconnect``: whether, or how many times in a row, a lost source is tried again, ``backoff`` apart, doubling
    up to ``backoff_cap``. ``rotation``: "auto" follows the file, "none" ignores it, a number turns clockwise instead.
    """

    fps: float | None = None
    rate: float | None = None
    open_timeout: float | None = None
    read_timeout: float = 10.0
    stall_timeout: float | None = None
    frozen_timeout: float | Literal["auto"] | None = "auto"
    reconnect: bool | int = True
    backoff: float = 0.5
    backoff_cap: float = 10.0
    rotation: Rotation = "auto"
    order: Order | None = None
    bit_depth: int = 16
    min_side: int = MIN_SIDE
    tiny: Literal["upscale", "refuse"] = "upscale"

    def __post_init__(self) -> None:
        for name in ("fps", "rate", "open_timeout", "read_timeout", "stall_timeout", "backoff", "backoff_cap"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise OptionError(f"{name}={value!r} was given; accepted are positive finite numbers")
        if self.frozen_timeout not in (None, "auto") and not float(self.frozen_timeout) > 0:
            raise OptionError(
                f'frozen_timeout={self.frozen_timeout!r} was given; accepted are seconds, None and "auto"'
            )
        if self.rotation not in ("auto", "none", 0, 90, 180, 270):
            raise OptionError(f'rotation={self.rotation!r} was given; accepted are "auto", "none", 0, 90, 180 and 270')
        if self.order not in (None, "rgb", "bgr"):
            raise OptionError(f'order={self.order!r} was given; accepted are "rgb" and "bgr"')
        if self.tiny not in ("upscale", "refuse"):
            raise OptionError(f'tiny={self.tiny!r} was given; accepted are "upscale" and "refuse"')
        if self.min_side < 1:
            raise OptionError(f"min_side={self.min_side} was given; accepted are 1 or more pixels")
        if int(self.reconnect) < 0:
            raise OptionError(
                f"reconnect={self.reconnect!r} was given; accepted are True, False or a number of attempts"
            )

    @property
    def opening(self) -> float:
        """Seconds that opening may take: it includes the first frame, so slow cameras open slowly too."""
        return self.open_timeout or max(10.0, 2.0 * (self.stall_timeout or 0.0))

    @property
    def stall(self) -> float:
        """Seconds without a frame after which a live source counts as stalled."""
        return self.stall_timeout or self.read_timeout

    @property
    def attempts(self) -> float:
        """Attempts in a row at a lost source."""
        if self.reconnect is True:
            return math.inf
        return int(self.reconnect)


@dataclass(frozen=True)
class SourceEvent:
    """Something that happened to a source: ``kind``, the clock's time, and a sentence."""

    kind: EventKind
    time_s: float
    text: str


@dataclass(frozen=True)
class SourceStats:
    """Counts since opening: frames ``grabbed``, ``delivered`` to the consumer, ``dropped`` (superseded before being
    asked for, or ``thinned`` out by ``fps``), failed reads ``retries``, ``reconnects``, ``stalls``, and ``withheld``
    pictures of one flat colour behind a failure."""

    grabbed: int = 0
    delivered: int = 0
    dropped: int = 0
    retries: int = 0
    reconnects: int = 0
    stalls: int = 0
    thinned: int = 0
    withheld: int = 0

    @property
    def superseded(self) -> int:
        """Frames that a newer one replaced before anybody asked."""
        return self.dropped - self.thinned


@dataclass
class Counters:
    """The mutable side of ``SourceStats``; owned by one source, guarded by its lock."""

    grabbed: int = 0
    delivered: int = 0
    dropped: int = 0
    retries: int = 0
    reconnects: int = 0
    stalls: int = 0
    thinned: int = 0
    withheld: int = 0

    def snapshot(self) -> SourceStats:
        """A frozen copy."""
        return SourceStats(**asdict(self))
