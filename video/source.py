"""One door for everything that yields pictures (SYSTEM.md V1)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mmspec_agent.core.errors import OptionError, SourceNotFound, SourceOpenError

from .clock import Clock, RealClock, SimulatedClock
from .source_base import EventHook, FrameSource
from .source_live import LiveSource
from .source_options import SourceOptions, redacted
from .source_readers import PICTURE_SUFFIXES, CaptureReader, IterableReader, ObjectReader, PicturesReader, Reader
from .source_recorded import RecordedSource
from .source_replay import PacedReader, ReplaySource

_FILE_SUFFIXES = frozenset(
    {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".gif", ".ts", ".mpg", ".mpeg", ".ogv", ".flv"}
)
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
    """Open a camera index, URL, video file, GIF, picture, folder of pictures, iterator or capture object.

    Iterators yield pictures (see ``frame.to_rgb``), ``(time_s, picture)`` pairs or ``Frame``s. Capture objects have
    ``read()`` and ``release()``; a function that makes one can be reconnected. ``live`` decides between the newest
    frame and every frame; by default cameras, streams and capture objects are live, files, folders and iterators
    are not. A recording opened with ``live=True`` is played at its own pace, on a ``SimulatedClock`` without waiting.
    ``on_event`` is called from the source's threads. Other options: see ``SourceOptions``; an unknown one is an
    ``OptionError``. A source that cannot be opened is a ``SourceError`` that says why; use it in a ``with`` block.
    """
    known = [f.name for f in fields(SourceOptions)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise OptionError(
            f"unknown source option {unknown[0]!r}; accepted are live, clock, on_event, {', '.join(known)}"
        )
    settings = SourceOptions(fps=fps, **options)
    opener = _Opener(settings, clock or RealClock(), on_event)
    if isinstance(spec, int) and not isinstance(spec, bool):
        return opener.device(spec, f"camera {spec}", live)
    if isinstance(spec, (str, os.PathLike)):
        return opener.text(os.fspath(spec), live)
    if callable(spec) or (hasattr(spec, "read") and hasattr(spec, "release")):
        return opener.capture_object(spec, live)
    if isinstance(spec, Iterable) and not isinstance(spec, bytes):
        return opener.iterable(spec, bool(live))
    raise SourceNotFound(f"a {type(spec).__name__} was given as a video source; {_ACCEPTED}")


_ACCEPTED = (
    "accepted are a camera index, a URL, a video file, a GIF, a picture, a folder of pictures, an iterator of pictures "
    "and objects with read() and release()"
)


class _Opener:
    """What every way of opening needs, held once."""

    def __init__(self, options: SourceOptions, clock: Clock, on_event: EventHook | None) -> None:
        self._options = options
        self._clock = clock
        self._on_event = on_event

    def text(self, text: str, live: bool | None) -> FrameSource:
        """A URL, path, or a camera's number written as text."""
        if text.isdecimal() and not Path(text).exists():
            return self.device(int(text), f"camera {text}", live)
        if "://" in text and not text.startswith("file://"):
            if live is None:
                live = not (urlsplit(text).scheme in ("http", "https") and _suffix(text) in _FILE_SUFFIXES)
            if live:
                return self.device(text, redacted(text), live)
            return self.recording(lambda: CaptureReader(text, self._options, is_live=False), redacted(text), False)
        return self._path(Path(text.removeprefix("file://")), bool(live))

    def _path(self, path: Path, live: bool) -> FrameSource:
        options = self._options
        if path.is_dir():
            return self.recording(lambda: PicturesReader.of_folder(path, options), str(path), live)
        if not path.exists():
            raise SourceNotFound(f"{path} was given as a video source and does not exist; {_ACCEPTED}")
        if path.suffix.lower() in PICTURE_SUFFIXES:
            return self.recording(lambda: PicturesReader([path], str(path), options), str(path), live)
        if str(path).startswith("/dev/video"):
            return self.device(str(path), str(path), True)
        if path.is_file() and path.stat().st_size == 0:
            raise SourceOpenError(f"{path} is empty (0 bytes); was its download or recording cut short?")
        # An absolute path: OpenCV would take a "%" in a relative one, or a leading "-", for something else.
        return self.recording(lambda: CaptureReader(str(path.absolute()), options, is_live=False), str(path), live)

    def device(self, target: int | str, name: str, live: bool | None) -> FrameSource:
        """A camera or stream; ``live=False`` is refused, since a camera cannot wait for its consumer."""
        if live is False:
            raise OptionError(
                f"live=False was given for {name}; cameras are always live. Limit the rate with fps instead"
            )
        return self._live(lambda: CaptureReader(target, self._options, is_live=True), name)

    def capture_object(self, spec: Any, live: bool | None) -> FrameSource:
        """An object with ``read`` and ``release``, or a function that makes one and can make another."""
        if live is False:
            raise OptionError("live=False was given for a capture object; wrap it in a generator to have every frame")
        is_factory = callable(spec) and not hasattr(spec, "read")
        make: Callable[[], Any] = spec if is_factory else lambda: spec
        order = self._options.order or "bgr"
        return self._live(lambda: ObjectReader(make, order), "capture object", can_reconnect=is_factory)

    def _live(self, make: Callable[[], Reader], name: str, can_reconnect: bool = True) -> FrameSource:
        if isinstance(self._clock, SimulatedClock):
            raise OptionError(f"a SimulatedClock was given for {name}; it works for recordings and iterators only")
        frozen = self._options.frozen_timeout
        limit = _FROZEN_AFTER_S if frozen == "auto" else frozen
        return LiveSource(
            make, self._options, self._clock, self._on_event, name, frozen_timeout=limit, can_reconnect=can_reconnect
        )

    def iterable(self, items: Iterable[Any], live: bool) -> FrameSource:
        """The user's own pictures; on a simulated clock those without times come at ``rate`` (25)."""
        on_arrival = live and not isinstance(self._clock, SimulatedClock)
        return self.recording(lambda: IterableReader(items, self._options, is_live=on_arrival), "iterator", live)

    def recording(self, make: Callable[[], Reader], name: str, live: bool) -> FrameSource:
        """Something with an end: every frame, or played at its own pace as if live."""
        if not live:
            return RecordedSource(make, self._options, self._clock, self._on_event, name)
        if isinstance(self._clock, SimulatedClock):
            return ReplaySource(make, self._options, self._clock, self._on_event, name)
        frozen = self._options.frozen_timeout
        stop = threading.Event()
        return LiveSource(
            lambda: PacedReader(make(), self._clock, stop),
            self._options,
            self._clock,
            self._on_event,
            name,
            frozen_timeout=None if frozen == "auto" else frozen,
            can_reconnect=False,
            may_stall=False,
            stop=stop,
        )


def _suffix(url: str) -> str:
    return Path(urlsplit(url).path).suffix.lower()
