"""What every source shares: the protocol, iteration, events, and the step from a raw picture to a Frame."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import cv2
import numpy as np

from mmspec_agent.core.errors import SourceEnded

from .clock import Clock
from .frame import Frame, Order, RGBArray, StreamInfo, fit, to_rgb
from .reader import Reader
from .source_options import Counters, EventKind, SourceEvent, SourceOptions, SourceStats

EventHook = Callable[[SourceEvent], None]
_MAX_EVENTS = 256
_TURNS = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_COUNTERCLOCKWISE}


class FrameSource(Protocol):
    """Frames of one stream; an iterator and a context manager."""

    @property
    def is_live(self) -> bool:
        """Whether frames are superseded by newer ones (newest-frame policy) or all given out."""
        ...

    @property
    def info(self) -> StreamInfo:
        """What the source said of itself."""
        ...

    @property
    def stats(self) -> SourceStats:
        """Counts so far."""
        ...

    def latest(self, timeout: float | None = None) -> Frame | None:
        """The newest frame not yet given out (live), or the next one (recorded).

        Waits for at most ``timeout`` seconds, then returns None. ``SourceEnded`` after the last frame; other
        ``SourceError`` where the source fails. ``SourceFrozen`` may be followed by frames again.
        """
        ...

    def take_events(self) -> list[SourceEvent]:
        """Events since the last call, oldest first (the newest 256 are kept)."""
        ...

    def close(self) -> None:
        """End the threads and free the device; harmless when repeated."""
        ...

    def __iter__(self) -> Iterator[Frame]: ...

    def __next__(self) -> Frame: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Raw(NamedTuple):
    """A grabbed picture before conversion: dropped ones cost none."""

    picture: Any
    order: Order
    time_s: float
    raw_time_s: float | None
    number: int
    arrived_s: float
    discontinuity: bool


class SourceBase:
    """Iteration, events and conversion; subclasses fill ``latest`` and ``close``."""

    is_live = False

    def __init__(self, options: SourceOptions, clock: Clock, on_event: EventHook | None) -> None:
        self._options = options
        self._clock = clock
        self._on_event = on_event
        self._condition = threading.Condition()
        self._counters = Counters()
        self._events: deque[SourceEvent] = deque(maxlen=_MAX_EVENTS)
        self._info: StreamInfo | None = None
        self._size: tuple[int, int] | None = None

    @property
    def info(self) -> StreamInfo:
        """What the source said of itself when last opened."""
        assert self._info is not None, "sources are opened before they are handed out"
        return self._info

    @property
    def stats(self) -> SourceStats:
        """Counts so far."""
        with self._condition:
            return self._counters.snapshot()

    def take_events(self) -> list[SourceEvent]:
        """Events since the last call, oldest first."""
        with self._condition:
            events = list(self._events)
            self._events.clear()
        return events

    def latest(self, timeout: float | None = None) -> Frame | None:
        """See ``FrameSource.latest``."""
        raise SourceEnded("the source was never opened; use open_source")

    def close(self) -> None:
        """See ``FrameSource.close``."""

    def _tell(self, kind: EventKind, text: str) -> None:
        event = SourceEvent(kind, self._clock.now(), text)
        with self._condition:
            self._events.append(event)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception as error:  # the user's own; a source must outlive it, so it is called no more
            self._on_event = None
            with self._condition:
                self._events.append(replace(event, kind="warning", text=f"on_event raised {error!r}; it is left out"))

    def _tell_notes(self, reader: Reader) -> None:
        """What a reader has to say becomes events."""
        for note in reader.take_notes() + reader.take_remarks():
            self._tell("warning", note)

    def _frame(self, raw: Raw) -> Frame:
        rgb = convert(raw.picture, raw.order, self._options)
        size, before = (rgb.shape[1], rgb.shape[0]), self._size
        self._size = size
        if before not in (None, size) and self._info is not None and self._info.backend != "pillow":
            self._tell("resized", f"{self._info.name}: frames of {_by(before)} are now of {_by(size)}")
        return Frame(rgb, raw.time_s, raw.raw_time_s, raw.number, raw.arrived_s, raw.discontinuity, self._info)

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        while True:
            try:
                frame = self.latest()
            except SourceEnded:
                raise StopIteration from None
            if frame is not None:
                return frame

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _by(size: tuple[int, int] | None) -> str:
    return "x".join(map(str, size or ()))


def convert(picture: Any, order: Order, options: SourceOptions) -> RGBArray:
    """RGB uint8 of a picture, turned and sized as the options say."""
    rgb = to_rgb(picture, order=order, bit_depth=options.bit_depth)
    turn = _TURNS.get(options.rotation) if isinstance(options.rotation, int) else None
    if turn is not None:
        rgb = np.asarray(cv2.rotate(rgb, turn), dtype=np.uint8)
        rgb.flags.writeable = False
    return fit(rgb, min_side=options.min_side, tiny=options.tiny)
