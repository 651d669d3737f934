"""An annotated clip: every answered frame, held until the next, with its answer and the gate's word below it."""

import textwrap
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mmspec_agent.core.errors import OptionError

if TYPE_CHECKING:
    from mmspec_agent.video.watch import WatchAnswer

FPS = 10.0
_WIDTH = 480
_LINES = 5
_LINE = 20
_LONGEST_S = 10.0


class AnnotatedClip:
    """Writes an MP4 while answers come; complete after ``close``."""

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in (".mp4", ".avi", ".mkv"):
            raise OptionError(f"--save {path}: accepted are files that end in .mp4, .avi or .mkv")
        if not path.parent.is_dir():
            raise OptionError(f"--save {path}: there is no folder {path.parent}; make it first")
        self._path = path
        self._writer: Any = None
        self._size = (0, 0)
        self._pending: tuple[float, Any] | None = None
        self.frames = 0

    def add(self, answer: "WatchAnswer") -> None:
        """The next answer; its frame is shown until the one after it."""
        if answer.frame is None:
            return
        picture = self._drawn(answer)
        if self._pending is not None:
            # A second question on the same frame, or a source that starts anew, takes one picture's time.
            self._write(self._pending[1], answer.time_s - self._pending[0])
        self._pending = (answer.time_s, picture)

    def close(self) -> None:
        """Write what is left; harmless when repeated."""
        if self._pending is not None:
            self._write(self._pending[1], 1.0)
            self._pending = None
        if self._writer is not None:
            self._writer.release()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drawn(self, answer: "WatchAnswer") -> Any:
        import cv2
        import numpy as np

        frame = answer.frame
        assert frame is not None
        if self._size == (0, 0):
            height = round(frame.size[1] * _WIDTH / frame.size[0] / 2) * 2
            self._size = (_WIDTH, max(2, height))
        shown = cv2.resize(cv2.cvtColor(frame.rgb, cv2.COLOR_RGB2BGR), self._size, interpolation=cv2.INTER_AREA)
        canvas = np.full((self._size[1] + _LINE * (_LINES + 1), _WIDTH, 3), 24, np.uint8)
        canvas[: self._size[1]] = shown
        drafted = answer.stats.emitted - answer.stats.sources["target"]
        state = "skipped (lossy)" if answer.skipped else f"gate: {answer.decision.reason}, {drafted} tokens drafted"
        head = f"{answer.time_s:7.2f} s  lag {answer.lag_s:.2f} s  {state}"
        lines = textwrap.wrap(answer.text, 62)[: _LINES - 1]
        for row, line in enumerate([head, *lines]):
            place = (8, self._size[1] + _LINE * (row + 1) - 4)
            # OpenCV's own letters are Latin only.
            text = line.encode("ascii", "replace").decode()
            color = (150, 200, 150) if row == 0 else (235, 235, 235)
            cv2.putText(canvas, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.42, color, 1, cv2.LINE_AA)
        return canvas

    def _write(self, picture: Any, seconds: float) -> None:
        import cv2

        if self._writer is None:
            code = "MJPG" if self._path.suffix.lower() == ".avi" else "mp4v"
            size = (picture.shape[1], picture.shape[0])
            self._writer = cv2.VideoWriter(str(self._path), cv2.VideoWriter.fourcc(*code), FPS, size)
            if not self._writer.isOpened():
                raise OptionError(f"--save {self._path}: this build of OpenCV cannot write such a file; try .avi")
        for _ in range(max(1, round(min(seconds, _LONGEST_S) * FPS))):
            self._writer.write(picture)
            self.frames += 1
