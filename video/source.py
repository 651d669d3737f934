"""One door for everything that yields pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from mmspec_agent.core.errors import OptionError

from .clock import Clock, RealClock, SimulatedClock
from .opening import Opening
from .reader import Reader
from .reader_av import AvReader
from .reader_capture import CaptureReader, ObjectReader
from .reader_items import ChainReader, IterableReader
from .reader_pictures import PICTURE_SUFFIXES, PicturesReader, looks_like_a_picture
from .source_base import EventHook, FrameSource
from .source_live import LiveSource
from .source_options import SourceOptions
from .source_recorded import RecordedSource
from .source_replay import PacedReader, ReplaySource
from .source_spec import Spec, told_apart

_FROZEN_AFTER_S = 10.0

__all__ = ["FrameSource", "open_source"]


def open_source(
    spec: Any,
    *,
    fps: float | None = None,
    live: bool | None = None,
    clock: Clock | None = None,
    on_event: EventHook | None = None,
    **options: Any,
) -> FrameSource:
    """Open a camera index, URL, video file, animation, picture, folder, list of files, iterator or capture object.

    Iterators yield pictures (see ``frame.to_rgb``), ``(time_s, picture)`` pairs or ``Frame``s. Capture objects have
    ``read()`` and ``release()``; a function that makes one can be reconnected. Texts may also be "-" (standard
    input), a pattern ("shots/*.png", "shot%04d.png"), a ``file:`` URL or a GStreamer pipeline; open binary files, PIL
    images and arrays are served too. ``live`` decides between the newest frame and every frame; by default cameras,
    capture objects and streams without an end are live, all others are not. A recording opened with ``live=True`` is
    played at its own pace, on a ``SimulatedClock`` without waiting.
    ``on_event`` is called from the source's threads. Other options: see ``SourceOptions``; an unknown one is an
    ``OptionError``. A source that cannot be opened is a ``SourceError`` that says why; use it in a ``with`` block.
    """
    return _Opener(source_options(fps=fps, **options), clock or RealClock(), on_event).opened(told_apart(spec), live)


def source_options(**options: Any) -> SourceOptions:
    """``SourceOptions`` of keywords; an unknown one is an ``OptionError``."""
    known = [f.name for f in fields(SourceOptions)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise OptionError(
            f"unknown source option {unknown[0]!r}; accepted are live, clock, on_event, {', '.join(known)}"
        )
    return SourceOptions(**options)


class _Opener:
    """What every way of opening needs, held once."""

    def __init__(self, options: SourceOptions, clock: Clock, on_event: EventHook | None) -> None:
        self._options = options
        self._clock = clock
        self._on_event = on_event

    def opened(self, spec: Spec, live: bool | None) -> FrameSource:
        """The source a spec means."""
        options = self._options
        if spec.kind == "camera":
            self._refuse_recorded(spec.name, live)
            return self._live(lambda: CaptureReader(spec.target, options), spec.name)
        if spec.kind == "capture":
            return self._capture_object(spec, live)
        if spec.kind == "url":
            return self._url(spec, live)
        if spec.kind == "items":
            # On a simulated clock pictures without times come at ``rate``.
            on_arrival = bool(live) and not isinstance(self._clock, SimulatedClock)
            items: Iterable[Any] = spec.target
            return self._recording(lambda: IterableReader(items, options, is_live=on_arrival), spec.name, bool(live))
        return self._recording(self._maker(spec), spec.name, bool(live))

    def _maker(self, spec: Spec) -> Callable[[], Reader]:
        """What makes the reader of files."""
        options, target = self._options, spec.target
        if spec.kind == "folder":
            return lambda: PicturesReader.of_folder(target, options)
        if spec.kind == "pictures":
            return lambda: PicturesReader(list(target), spec.name, options)
        if spec.kind == "files":
            return lambda: ChainReader([self._file_maker(path) for path in target], spec.name)
        if spec.kind == "open file":
            return lambda: _reader_of_open_file(target, spec.name, options)
        return lambda: AvReader(target, options, spec.name)

    def _file_maker(self, path: Path) -> Callable[[], Reader]:
        if path.suffix.lower() in PICTURE_SUFFIXES:
            return lambda: PicturesReader([path], str(path), self._options)
        return lambda: AvReader(str(path), self._options)

    def _url(self, spec: Spec, live: bool | None) -> FrameSource:
        """Opened first: only then is it known whether it has an end."""
        first = AvReader(spec.target, self._options, spec.name)
        info = Opening(first, spec.name).result(self._options.opening)
        ready = [first]
        make = lambda: ready.pop() if ready else AvReader(spec.target, self._options, spec.name)  # noqa: E731
        try:
            if info.is_live:
                self._refuse_recorded(spec.name, live)
                return self._live(make, spec.name)
            return self._recording(make, spec.name, bool(live))
        except BaseException:
            first.cancel()
            first.close()
            raise

    def _refuse_recorded(self, name: str, live: bool | None) -> None:
        """``live=False`` is refused for cameras and streams, which cannot wait for their consumer."""
        if live is False:
            raise OptionError(
                f"live=False was given for {name}; cameras are always live. Limit the rate with fps instead"
            )

    def _capture_object(self, spec: Spec, live: bool | None) -> FrameSource:
        """An object with ``read`` and ``release``, or a function that makes one and can make another."""
        if live is False:
            raise OptionError("live=False was given for a capture object; wrap it in a generator to have every frame")
        given = spec.target
        is_factory = callable(given) and not hasattr(given, "read")
        make: Callable[[], Any] = given if is_factory else lambda: given
        order = self._options.order or "bgr"
        return self._live(lambda: ObjectReader(make, order), spec.name, can_reconnect=is_factory)

    def _live(self, make: Callable[[], Reader], name: str, can_reconnect: bool = True) -> FrameSource:
        if isinstance(self._clock, SimulatedClock):
            raise OptionError(f"a SimulatedClock was given for {name}; it works for recordings and iterators only")
        frozen = self._options.frozen_timeout
        limit = _FROZEN_AFTER_S if frozen == "auto" else frozen
        return LiveSource(
            make, self._options, self._clock, self._on_event, name, frozen_timeout=limit, can_reconnect=can_reconnect
        )

    def _recording(self, make: Callable[[], Reader], name: str, live: bool) -> FrameSource:
        """Something with an end: every frame, or played at its own pace as if live."""
        if not live:
            return RecordedSource(make, self._options, self._clock, self._on_event, name)
        if isinstance(self._clock, SimulatedClock):
            return ReplaySource(make, self._options, self._clock, self._on_event, name)
        frozen = self._options.frozen_timeout
        return LiveSource(
            lambda: PacedReader(make(), self._clock),
            self._options,
            self._clock,
            self._on_event,
            name,
            frozen_timeout=None if frozen == "auto" else frozen,
            can_reconnect=False,
            may_stall=False,
        )


def _reader_of_open_file(file: Any, name: str, options: SourceOptions) -> Reader:
    """By its first bytes: pictures and animations through Pillow, all others through ffmpeg."""
    seekable = getattr(file, "seekable", None)
    if seekable is not None and seekable():
        place = file.tell()
        head = file.read(16)
        file.seek(place)
        if looks_like_a_picture(head):
            return PicturesReader([file], name, options)
    return AvReader(file, options, name)
