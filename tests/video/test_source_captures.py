"""``cv2.VideoCapture`` objects of the user's: memory that OpenCV never wrote to is not handed out as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from made_clips import encode, interlaced, moving

from mmspec_agent.core.errors import SourceUndecodable
from mmspec_agent.video.reader_capture import MAX_SAME_PICTURES, ObjectReader
from mmspec_agent.video.source import open_source

PATIENCE = 60.0


class Capture:
    """OpenCV's words; ``writes`` numbers the pictures that its backend wrote, the rest is memory as it was."""

    def __init__(self, backend: str, count: int, writes: range = range(0)) -> None:
        self._backend, self._count, self._writes = backend, count, writes
        self._memory = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        self.reads = 0

    def isOpened(self) -> bool:
        return True

    def getBackendName(self) -> str:
        return self._backend

    def read(self) -> tuple[bool, npt.NDArray[np.uint8] | None]:
        if self.reads == self._count:
            return False, None
        if self.reads in self._writes:
            self._memory[:] = 40 + self.reads
        self.reads += 1
        return True, self._memory

    def release(self) -> None:
        """Nothing is held."""


def opened(capture: Any) -> ObjectReader:
    reader = ObjectReader(lambda: capture)
    reader.open()
    return reader


@pytest.mark.parametrize("count", [1, 2, 7, MAX_SAME_PICTURES, 10 * MAX_SAME_PICTURES])
def test_pictures_that_were_never_written_are_refused(count: int) -> None:
    capture = Capture("FFMPEG", count)
    reader = opened(capture)
    with pytest.raises(SourceUndecodable, match=r"same bytes.*interlaced"):
        reader.advance()
    assert capture.reads <= MAX_SAME_PICTURES


@pytest.mark.parametrize("first", [0, 1, 5, MAX_SAME_PICTURES - 2])
def test_the_first_picture_handed_out_is_one_that_was_written(first: int) -> None:
    reader = opened(Capture("FFMPEG", 1000, range(first, 1000)))
    assert reader.advance()
    level = int(reader.picture()[0, 0, 0])
    assert level >= 40 + first
    assert reader.advance()
    assert int(reader.picture()[0, 0, 0]) == level + 1


def test_cameras_and_objects_without_a_backend_may_be_still() -> None:
    for backend in ("V4L2", "GSTREAMER"):
        assert opened(Capture(backend, 3)).advance()


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
@pytest.mark.parametrize("fields", [True, False])
def test_a_real_capture_of_a_clip(codec: str, fields: bool, tmp_path: Path) -> None:
    pictures, path = moving(25), tmp_path / "clip.mkv"
    interlaced(path, pictures, codec) if fields else encode(path, pictures, codec)
    with open_source(cv2.VideoCapture(str(path))) as source:
        if fields:
            with pytest.raises(SourceUndecodable, match="path"):
                source.latest(timeout=PATIENCE)
            return
        frame = source.latest(timeout=PATIENCE)
        assert frame is not None
        assert min(np.abs(frame.rgb.astype(int) - one).mean() for one in pictures) < 15
