"""Readers: one connection to one source, blocking, without threads; sources add the rest (SYSTEM.md V1)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mmspec_agent.core.errors import SourceNotFound, SourceOpenError, SourceOpenTimeout, SourceUndecodable

from .frame import Frame, Order, StreamInfo
from .source_container import ContainerFacts, inspect
from .source_options import SourceOptions, redacted

PICTURE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_END_RETRIES = 3
_DAMAGE_RETRIES = 30


class Reader(Protocol):
    """One connection. ``order`` of its pictures; ``has_times``: its times are the stream's own and can be trusted."""

    @property
    def order(self) -> Order: ...

    @property
    def has_times(self) -> bool: ...

    @property
    def discontinuity(self) -> bool:
        """Whether the current picture follows a gap the reader knows of."""
        ...

    def open(self) -> StreamInfo:
        """Connect; a ``SourceError`` where that fails."""
        ...

    def advance(self) -> bool:
        """Go to the next picture; False for a failed read, which may be followed by good ones."""
        ...

    @property
    def time_s(self) -> float | None:
        """What the source says is the time of the current picture, in seconds."""
        ...

    def picture(self) -> Any:
        """The current picture; not overwritten by later ones."""
        ...

    @property
    def patience(self) -> int:
        """Failed reads in a row after which the source is at its end."""
        ...

    def close(self) -> None:
        """Free the device; harmless when repeated."""
        ...


class CaptureReader:
    """A camera index, URL or file through OpenCV."""

    order: Order = "bgr"
    discontinuity = False

    def __init__(self, target: int | str, options: SourceOptions, *, is_live: bool) -> None:
        self._target = target
        self._options = options
        self._is_live = is_live
        self._capture: Any = None
        self._promised: int | None = None
        self._read = 0
        self._time: float | None = None
        self.facts = ContainerFacts()
        self.has_times = not is_live

    @property
    def name(self) -> str:
        """The target, without a password."""
        return f"camera {self._target}" if isinstance(self._target, int) else redacted(self._target)

    def open(self) -> StreamInfo:
        """Connect with time-outs and rotation set explicitly."""
        is_file = isinstance(self._target, str) and "://" not in self._target
        if is_file:
            self.facts = inspect(Path(str(self._target)))
        started = time.monotonic()
        capture = self._new_capture()
        self._capture = capture
        if not capture.isOpened():
            raise self._refusal(is_file, time.monotonic() - started)
        capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1 if self._options.rotation == "auto" else 0)
        count = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        self._promised = count if not self._is_live and count > 0 else None
        return self._describe(capture)

    def _new_capture(self) -> Any:
        if isinstance(self._target, int):
            return cv2.VideoCapture(self._target)
        parameters = [
            cv2.CAP_PROP_OPEN_TIMEOUT_MSEC,
            max(1, round(self._options.opening * 1000)),
            cv2.CAP_PROP_READ_TIMEOUT_MSEC,
            max(1, round(self._options.native_read_timeout * 1000)),
        ]
        return cv2.VideoCapture(self._target, cv2.CAP_FFMPEG, parameters)

    def _refusal(self, is_file: bool, waited_s: float) -> SourceOpenError | SourceNotFound:
        if isinstance(self._target, int):
            return SourceNotFound(
                f"{self.name} does not open. Check that it is plugged in, not used by another program, and that you "
                "may read its device; accepted are indices from 0, URLs, files, folders and iterators."
            )
        if is_file:
            reason = self.facts.damage or "it is not a video OpenCV knows, or it is damaged"
            return SourceOpenError(
                f"{self.name} does not open: {reason}. Try to play it, or convert it to H.264 in MP4."
            )
        if waited_s >= 0.9 * self._options.opening:
            return SourceOpenTimeout(f"{self.name} did not answer within {self._options.opening:g} s (open_timeout)")
        return SourceOpenError(f"{self.name} does not open. Check the address, the password and that the camera is on.")

    def _describe(self, capture: Any) -> StreamInfo:
        size = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        fps = float(capture.get(cv2.CAP_PROP_FPS))
        rotation = max(0, int(capture.get(cv2.CAP_PROP_ORIENTATION_META))) % 360
        streams = self.facts.streams
        chosen = next((i for i, s in enumerate(streams) if s in (size, size[::-1])), None)
        return StreamInfo(
            name=self.name,
            backend=str(capture.getBackendName()),
            is_live=self._is_live,
            size=size if min(size) > 0 else None,
            fps=fps if 0 < fps < 1000 else None,
            frame_count=self._promised,
            rotation=rotation,
            streams=streams,
            stream=chosen,
        )

    def advance(self) -> bool:
        """Grab; ``POS_MSEC`` is asked for after it, when it belongs to the frame just grabbed."""
        try:
            if not self._capture.grab():
                return False
        except cv2.error:
            return False
        milliseconds = float(self._capture.get(cv2.CAP_PROP_POS_MSEC))
        self._time = milliseconds / 1000.0 if milliseconds >= 0 else None
        self._read += 1
        return True

    @property
    def time_s(self) -> float | None:
        """Presentation time of the current frame."""
        return self._time

    def picture(self) -> Any:
        """The decoded frame, or None where decoding it fails."""
        try:
            ok, picture = self._capture.retrieve()
        except cv2.error:
            return None
        return picture if ok else None

    @property
    def patience(self) -> int:
        """Many while the file still owes frames, few at its promised end, few for live sources."""
        return _DAMAGE_RETRIES if self._promised is not None and self._read < self._promised else _END_RETRIES

    def close(self) -> None:
        """Release the device; called by the thread that reads, never beside a read."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None


class ObjectReader:
    """Anything with ``read() -> (ok, picture)`` and ``release()``, such as a ``cv2.VideoCapture`` of the user's."""

    has_times = False
    discontinuity = False
    time_s: float | None = None
    patience = _END_RETRIES

    def __init__(self, make: Callable[[], Any], order: Order = "bgr", name: str = "capture object") -> None:
        self._make = make
        self._name = name
        self._capture: Any = None
        self._picture: Any = None
        self.order: Order = order

    def open(self) -> StreamInfo:
        """Make the object; ``SourceOpenError`` if it cannot be made or says that it is closed."""
        capture = self._make()
        if not (hasattr(capture, "read") and hasattr(capture, "release")):
            raise SourceOpenError(
                f"{self._name} made a {type(capture).__name__}; accepted are objects with read() and release()"
            )
        self._capture = capture
        opened = getattr(capture, "isOpened", None)
        if opened is not None and not opened():
            raise SourceOpenError(f"{self._name} is closed; open it first")
        return StreamInfo(self._name, type(capture).__name__, is_live=True)

    def advance(self) -> bool:
        """Read; a copy is kept, since drivers reuse their buffer."""
        ok, picture = self._capture.read()
        if not ok or picture is None:
            return False
        self._picture = np.array(picture)
        return True

    def picture(self) -> Any:
        """The picture last read."""
        return self._picture

    def close(self) -> None:
        """Release the object."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None


class PicturesReader:
    """Picture files in natural order of their names, turned as EXIF says; an unreadable one is a failed read."""

    order: Order = "rgb"
    has_times = True
    discontinuity = False

    def __init__(self, paths: list[Path], name: str, options: SourceOptions) -> None:
        self._paths = paths
        self._name = name
        self._turn = options.rotation == "auto"
        self._rate = options.rate or 1.0
        self._next = 0
        self._picture: Any = None

    @classmethod
    def of_folder(cls, folder: Path, options: SourceOptions) -> PicturesReader:
        """All pictures directly in ``folder``; ``SourceUndecodable`` if there are none."""
        paths = sorted((p for p in folder.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES), key=_natural)
        if not paths:
            kinds = ", ".join(sorted(PICTURE_SUFFIXES))
            raise SourceUndecodable(f"folder {folder} holds no pictures; accepted are files ending in {kinds}")
        return cls(paths, str(folder), options)

    def open(self) -> StreamInfo:
        """Describe; files are opened one by one."""
        return StreamInfo(self._name, "pillow", is_live=False, fps=self._rate, frame_count=len(self._paths))

    def advance(self) -> bool:
        """Decode the next file."""
        if self._next >= len(self._paths):
            return False
        path = self._paths[self._next]
        self._next += 1
        try:
            with Image.open(path) as opened:
                opened.load()
                self._picture = ImageOps.exif_transpose(opened) if self._turn else opened.copy()
        except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError):
            return False
        return True

    @property
    def time_s(self) -> float | None:
        """Index over ``rate`` (one picture a second by default)."""
        return (self._next - 1) / self._rate

    def picture(self) -> Any:
        """The picture last decoded."""
        return self._picture

    @property
    def patience(self) -> int:
        """Every file left may still be good."""
        return len(self._paths) - self._next

    def close(self) -> None:
        """Nothing is held open."""
        self._picture = None


class IterableReader:
    """Pictures, ``(time_s, picture)`` pairs or ``Frame`` objects of the user's own; errors of theirs pass through."""

    def __init__(self, items: Iterable[Any], options: SourceOptions, *, is_live: bool) -> None:
        self._items: Iterator[Any] = iter(items)
        # Live pictures without times of their own count from their arrival, unless a pace was asked for.
        self._rate = options.rate or (None if is_live else 25.0)
        self._is_live = is_live
        self._count = 0
        self._time: float | None = None
        self._picture: Any = None
        self.order: Order = options.order or "rgb"
        self.has_times = True
        self.discontinuity = False

    def open(self) -> StreamInfo:
        """Describe; nothing is taken yet."""
        return StreamInfo("iterator", "python", is_live=self._is_live)

    def advance(self) -> bool:
        """Take the next item; pictures are copied, since generators reuse their buffer."""
        try:
            item = next(self._items)
        except StopIteration:
            return False
        self._time, self.discontinuity = self._count / self._rate if self._rate else None, False
        self._count += 1
        if isinstance(item, Frame):
            self._time, self.discontinuity, item = item.time_s, item.discontinuity, item.rgb
        elif isinstance(item, tuple) and len(item) == 2:
            self._time, item = float(item[0]), item[1]
        self._picture = item.copy() if hasattr(item, "copy") else np.array(item)
        return True

    @property
    def time_s(self) -> float | None:
        """The item's own time, else its index over ``rate`` (25 by default)."""
        return self._time

    def picture(self) -> Any:
        """The item last taken."""
        return self._picture

    patience = 0

    def close(self) -> None:
        """Close a generator, so that its ``finally`` runs."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


def _natural(path: Path) -> list[Any]:
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", path.name.lower())]
