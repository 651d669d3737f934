"""Cameras, pipelines and capture objects: what speaks like ``cv2.VideoCapture``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import cv2
import numpy as np

from mmspec_agent.core.errors import SourceNotFound, SourceOpenError, SourceUndecodable

from .frame import Order, StreamInfo
from .reader import Reader
from .redaction import shown
from .source_options import SourceOptions

_END_RETRIES = 3
MAX_SAME_PICTURES = 50
"""Pictures of OpenCV's FFmpeg that may be the same bytes before one differs."""
_LOG_LOCK = threading.Lock()


class CaptureReader(Reader):
    """A camera's index, its device, or a GStreamer pipeline, through OpenCV."""

    order: Order = "bgr"
    has_times = False
    ends = False
    patience = _END_RETRIES

    def __init__(self, target: int | str, options: SourceOptions) -> None:
        super().__init__()
        self._target = target
        self._options = options
        self._capture: Any = None
        self.name = shown(target)

    def open(self) -> StreamInfo:
        """Connect; OpenCV's own words on a camera that is not there are kept off the screen."""
        is_pipeline = isinstance(self._target, str) and not self._target.startswith("/dev/")
        with _silent_opencv():
            backend = cv2.CAP_GSTREAMER if is_pipeline else cv2.CAP_ANY
            self._capture = cv2.VideoCapture(self._target, backend)
        if not self._capture.isOpened():
            raise self._refusal(is_pipeline)
        self._capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1 if self._options.rotation == "auto" else 0)
        return self._describe()

    def _refusal(self, is_pipeline: bool) -> SourceOpenError | SourceNotFound:
        if is_pipeline:
            return SourceOpenError(
                f"the {self.name} does not open. It needs an OpenCV that was built with GStreamer, ends in appsink, "
                "and its elements have to be installed; accepted are also addresses and files."
            )
        return SourceNotFound(
            f"{self.name} does not open. Check that it is plugged in, not used by another program, and that you "
            "may read its device; accepted are indices from 0, URLs, files, folders and iterators."
        )

    def _describe(self) -> StreamInfo:
        capture = self._capture
        size = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        fps = float(capture.get(cv2.CAP_PROP_FPS))
        return StreamInfo(
            name=self.name,
            backend=str(capture.getBackendName()),
            is_live=True,
            size=size if min(size) > 0 else None,
            fps=fps if 0 < fps < 1000 else None,
        )

    def advance(self) -> bool:
        """Grab; the picture is decoded when it is asked for."""
        with suppress(cv2.error):
            return bool(self._capture.grab())
        return False

    def picture(self) -> Any:
        """The decoded frame, or None where decoding it fails."""
        with suppress(cv2.error):
            ok, picture = self._capture.retrieve()
            return picture if ok else None
        return None

    def close(self) -> None:
        """Release the device; called by the thread that reads, never beside a read."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None


class ObjectReader(Reader):
    """Anything with ``read() -> (ok, picture)`` and ``release()``, such as a ``cv2.VideoCapture`` of the user's."""

    has_times = False
    ends = False
    patience = _END_RETRIES

    def __init__(self, make: Callable[[], Any], order: Order = "bgr", name: str = "capture object") -> None:
        super().__init__()
        self._make = make
        self._name = name
        self._capture: Any = None
        self._picture: Any = None
        self._is_written = True
        self.order = order

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
        self._is_written = not _may_leave_unwritten(capture)
        return StreamInfo(self._name, type(capture).__name__, is_live=True)

    def advance(self) -> bool:
        """Read; a copy is kept, since drivers reuse their buffer."""
        if self._is_written:
            return self._read()
        return self._read_until_written()

    def _read(self) -> bool:
        ok, picture = self._capture.read()
        if not ok or picture is None:
            return False
        self._picture = np.array(picture)
        return True

    def _read_until_written(self) -> bool:
        """Read until a picture differs from the one before, which memory that nobody writes to never does."""
        first: Any = None
        for _ in range(MAX_SAME_PICTURES):
            if self.cancelled.is_set():
                return False
            if not self._read():
                if first is None:
                    return False
                break
            first = self._picture if first is None else first
            if not np.array_equal(first, self._picture):
                self._is_written = True
                return True
        self.is_hopeless = True
        raise SourceUndecodable(
            f"{self._name}: the first pictures of OpenCV's FFmpeg are the same bytes. Nothing tells whether it "
            "wrote them: it leaves memory as it is where a clip is interlaced, and calls that a picture. Give the "
            "file's path or the stream's address itself, which is decoded without OpenCV."
        )

    def picture(self) -> Any:
        """The picture last read."""
        return self._picture

    def close(self) -> None:
        """Release the object."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None


def _may_leave_unwritten(capture: Any) -> bool:
    """Whether pictures come by OpenCV's FFmpeg, which reports success where it could not convert a frame."""
    name = getattr(capture, "getBackendName", None)
    if name is None:
        return False
    with suppress(cv2.error):
        return bool(name() == "FFMPEG")
    return False


@contextmanager
def _silent_opencv() -> Iterator[None]:
    """OpenCV's log level is one for the whole process: it is put back at once."""
    logging = cv2.utils.logging
    with _LOG_LOCK:
        before = logging.getLogLevel()
        logging.setLogLevel(logging.LOG_LEVEL_SILENT)
        try:
            yield
        finally:
            logging.setLogLevel(before)
