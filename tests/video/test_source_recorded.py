"""Files, folders and iterators: every frame, true times, rotation, damage (see the cases of issue 5, V1)."""

from __future__ import annotations

import random
import shutil
import threading
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from mmspec_agent.core.errors import (
    OptionError,
    SourceEnded,
    SourceError,
    SourceNotFound,
    SourceOpenError,
    SourceStalled,
    SourceUndecodable,
    SourceWarning,
)
from mmspec_agent.video.frame import Frame
from mmspec_agent.video.source import open_source

DATA = Path(__file__).parent / "data"
Picture = npt.NDArray[np.uint8]


def pictures(count: int, height: int = 64, width: int = 96) -> list[Picture]:
    """BGR pictures with a grey level that counts and a noisy half."""
    rng = np.random.default_rng(0)
    made = []
    for index in range(count):
        picture = np.full((height, width, 3), index * 8 % 250, np.uint8)
        picture[:, : width // 2] = rng.integers(0, 255, (height, width // 2, 3))
        made.append(picture)
    return made


def write(path: Path, frames: list[Picture], code: str = "mp4v", fps: float = 10.0) -> Path:
    height, width = frames[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*code), fps, (width, height))
    for frame in frames:
        writer.write(frame)
    writer.release()
    return path


def read_all(spec: Any, **options: Any) -> list[Frame]:
    with open_source(spec, **options) as source:
        return list(source)


def readers() -> int:
    return sum(thread.name.startswith("mmspec-") for thread in threading.enumerate())


def test_every_frame_of_a_file_in_order_with_its_time(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mp4", pictures(25))
    with open_source(path) as source:
        assert not source.is_live
        assert source.info.size == (96, 64)
        assert source.info.streams == ((96, 64),)
        frames = list(source)
        assert source.stats.grabbed == source.stats.delivered == 25
        with pytest.raises(SourceEnded):
            source.latest(timeout=1)
    assert [f.index for f in frames] == list(range(25))
    assert [round(f.time_s, 6) for f in frames] == [i / 10 for i in range(25)]
    assert not any(f.discontinuity for f in frames)
    assert readers() == 0


def test_thinning_takes_the_first_frame_of_each_slot(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mp4", pictures(25))
    with open_source(str(path), fps=2) as source:
        frames = list(source)
        assert source.stats.dropped == 20
    assert [round(f.time_s, 3) for f in frames] == [0, 0.5, 1.0, 1.5, 2.0]
    assert [f.index for f in frames] == [0, 5, 10, 15, 20]


def test_colour_of_a_file_is_that_of_its_picture(tmp_path: Path) -> None:
    bgr = np.zeros((64, 64, 3), np.uint8)
    bgr[:, :, 0] = 255
    frame = read_all(write(tmp_path / "blue.avi", [bgr] * 3, "MJPG"))[0]
    cv2.imwrite(str(tmp_path / "blue.png"), bgr)
    still = read_all(tmp_path / "blue.png")[0]
    assert still.rgb[0, 0].tolist() == [0, 0, 255]
    assert np.abs(frame.rgb.astype(int) - still.rgb).max() <= 2


@pytest.mark.parametrize("size", [(81, 121), (33, 47), (241, 321)])
def test_odd_sizes(tmp_path: Path, size: tuple[int, int]) -> None:
    """OpenCV's own writer makes sizes even; a GIF keeps them."""
    images = [Image.fromarray(picture) for picture in pictures(4, *size)]
    images[0].save(tmp_path / "odd.gif", save_all=True, append_images=images[1:], duration=40)
    frames = read_all(tmp_path / "odd.gif")
    assert [f.rgb.shape for f in frames] == [(*size, 3)] * 4
    assert abs(int(frames[3].rgb[-1, -1, 0]) - 24) < 4


def test_tiny_video_is_enlarged_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.avi", pictures(2, 20, 20), "MJPG")
    assert read_all(path)[0].size == (28, 28)
    with open_source(path, tiny="refuse") as source, pytest.raises(Exception, match="28"):
        source.latest()


@pytest.mark.parametrize(("name", "degrees"), [("rot_0", 0), ("rot_90", 90), ("rot_180", 180), ("rot_270", 270)])
def test_rotation_of_the_file_is_applied_once(name: str, degrees: int) -> None:
    path = DATA / f"{name}.mov"
    stored = read_all(path, rotation="none")[0].rgb
    upright = read_all(path)[0].rgb
    assert (upright == np.rot90(stored, -degrees // 90)).all()
    with open_source(path) as source:
        assert source.info.rotation == degrees
    turned = read_all(path, rotation=90)[0].rgb
    assert (turned == np.rot90(stored, -1)).all()


def test_variable_frame_times_are_those_of_the_file(tmp_path: Path) -> None:
    steps = [20, 50, 30, 400, 20, 50, 40, 40]
    images = [Image.fromarray(np.full((40, 60, 3), i * 20, np.uint8)) for i in range(8)]
    images[0].save(tmp_path / "vfr.gif", save_all=True, append_images=images[1:], duration=steps)
    frames = read_all(tmp_path / "vfr.gif")
    wanted = np.cumsum([0, *steps[:-1]]) / 1000
    assert np.allclose([f.time_s for f in frames], wanted)
    assert [int(f.rgb.mean()) for f in frames] == pytest.approx([i * 20 for i in range(8)], abs=3)
    assert not any(f.discontinuity for f in frames)


def test_a_failing_read_is_retried_and_marks_a_discontinuity(tmp_path: Path) -> None:
    path = write(tmp_path / "damaged.avi", pictures(30), "MJPG")
    content = bytearray(path.read_bytes())
    starts = [i for i in range(len(content) - 4) if content[i : i + 4] == b"00dc"]
    content[starts[12] + 8 : starts[12] + 1200] = bytes(1192)
    path.write_bytes(content)
    with pytest.warns(SourceWarning, match="1 reads failed"), open_source(path) as source:
        frames = list(source)
    assert len(frames) == 29
    assert sum(f.discontinuity for f in frames) == 1
    assert source.stats.retries == 1
    assert all(a.time_s < b.time_s for a, b in pairwise(frames))


def test_promised_frames_that_cannot_be_decoded_are_an_error(tmp_path: Path) -> None:
    content = write(tmp_path / "whole.avi", pictures(20), "MJPG").read_bytes()
    unknown, empty = tmp_path / "unknown.avi", tmp_path / "empty.mp4"
    unknown.write_bytes(content.replace(b"MJPG", b"ZZZZ"))
    content = write(tmp_path / "whole.mp4", pictures(20)).read_bytes()
    start = content.index(b"mdat") + 4
    size = int.from_bytes(content[start - 8 : start - 4], "big") - 8
    empty.write_bytes(content[:start] + bytes(size) + content[start + size :])
    for name, said in ((unknown, "codec"), (empty, "promises 20 frames")):
        with pytest.raises(SourceUndecodable, match=said):
            open_source(name)
    assert readers() == 0


def test_av1_is_decoded() -> None:
    assert len(read_all(DATA / "av1_video.mkv")) == 125


def test_cut_files(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.mp4", pictures(20))
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(SourceOpenError, match="cut"):
        open_source(cut)

    stream = write(tmp_path / "whole.ts", pictures(20), "mpg2")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SourceWarning)
        assert len(read_all(stream)) == 20
    content = stream.read_bytes()
    half = tmp_path / "half.ts"
    half.write_bytes(content[: len(content) // 2 // 188 * 188])
    with pytest.warns(SourceWarning, match="cut"):
        frames = read_all(half)
    assert 5 <= len(frames) < 20


def test_which_of_two_video_streams_is_read_is_said(tmp_path: Path) -> None:
    """A second video track that reuses the first one's samples is enough for the container to have two."""
    path = write(tmp_path / "one.mp4", pictures(6))
    two = tmp_path / "two.mp4"
    two.write_bytes(_with_second_track(path.read_bytes()))
    with pytest.warns(SourceWarning, match="2 video streams"), open_source(two) as source:
        frames = list(source)
    assert source.info.streams == ((96, 64), (96, 64))
    assert source.info.stream is not None
    assert frames


def _with_second_track(content: bytes) -> bytes:
    """Double the trak box of an MP4 whose moov lies behind mdat, so that no offsets move."""
    moov = content.rindex(b"moov") - 4
    trak = content.index(b"trak", moov) - 4
    size = int.from_bytes(content[trak : trak + 4], "big")
    copy = bytearray(content[trak : trak + size])
    tkhd = copy.index(b"tkhd") - 4
    copy[tkhd + 20 : tkhd + 24] = (2).to_bytes(4, "big")
    longer = (int.from_bytes(content[moov : moov + 4], "big") + size).to_bytes(4, "big")
    return content[:moov] + longer + content[moov + 4 : trak + size] + bytes(copy) + content[trak + size :]


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_gives_frames_or_a_typed_error(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = write(tmp_path / "flip.mp4", pictures(12))
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 20, 200])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    started = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SourceWarning)
            frames = read_all(path, read_timeout=5)
        assert all(a.time_s < b.time_s for a, b in pairwise(frames))
    except SourceError:
        pass
    assert time.monotonic() - started < 8
    assert readers() == 0


def test_folder_in_natural_order_with_exif_rotation(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(tmp_path / f"shot{number}.png")
    turned = Image.new("RGB", (60, 30), (200, 0, 0))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "shot11.jpg", exif=exif)
    (tmp_path / "notes.txt").write_text("no picture")
    frames = read_all(tmp_path)
    assert [int(f.rgb[0, 0, 0]) for f in frames[:3]] == [1, 9, 10]
    assert frames[3].size == (30, 60)
    assert [f.time_s for f in frames] == [0, 1, 2, 3]


def test_deep_pictures_are_scaled_not_clipped(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "deep.png"), np.full((40, 40), 257 * 100, np.uint16))
    cv2.imwrite(str(tmp_path / "alpha.png"), np.full((40, 40, 4), 50, np.uint8))
    assert {int(f.rgb.mean()) for f in read_all(tmp_path)} == {50, 100}


def test_a_broken_picture_in_a_folder_is_stepped_over(tmp_path: Path) -> None:
    for number in range(5):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "2.png").write_bytes(b"nothing")
    with pytest.warns(SourceWarning, match="1 reads failed"):
        frames = read_all(tmp_path)
    assert [int(f.rgb[0, 0, 0]) for f in frames] == [0, 1, 3, 4]
    assert [f.discontinuity for f in frames] == [False, False, True, False]


def test_an_iterator_of_everything() -> None:
    same = np.full((32, 32, 3), 5, np.uint8)

    def items() -> Iterator[Any]:
        for level in range(3):
            same[:] = level
            yield same
        yield np.full((32, 32), 3, np.uint8)
        yield (9.5, Image.new("L", (32, 32), 4))
        yield Frame(np.full((32, 32, 3), 5, np.uint8), 11.0, None, 0, discontinuity=True)

    frames = read_all(items())
    assert [int(f.rgb[0, 0, 0]) for f in frames] == [0, 1, 2, 3, 4, 5]
    assert [round(f.time_s, 2) for f in frames] == [0, 0.04, 0.08, 0.12, 9.5, 11.0]
    assert frames[5].discontinuity


def test_times_that_go_back_are_clamped_and_flagged() -> None:
    picture = np.zeros((32, 32), np.uint8)
    raw = [0.0, 0.04, 0.08, 0.12, 0.16, 0.80, 0.20, 0.24, 0.84, 0.88]
    frames = read_all([(t, picture) for t in raw])
    assert [f.raw_time_s for f in frames] == raw
    assert all(a.time_s < b.time_s for a, b in pairwise(frames))
    assert [f.index for f in frames if f.discontinuity] == [5, 6, 8]


def test_errors_of_the_users_iterator_pass_through_and_it_is_closed() -> None:
    ended = threading.Event()

    def items() -> Iterator[Picture]:
        try:
            yield np.zeros((32, 32, 3), np.uint8)
            raise KeyError("mine")
        finally:
            ended.set()

    with open_source(items()) as source:
        assert source.latest() is not None
        with pytest.raises(KeyError, match="mine"):
            source.latest()
    assert ended.wait(1)
    assert read_all([]) == []


def test_closing_half_way_ends_the_thread(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "clip.mp4", pictures(30)))
    next(source)
    source.close()
    source.close()
    assert readers() == 0
    with pytest.raises(SourceEnded):
        source.latest()
    assert list(source) == []
    shutil.rmtree(tmp_path)


def test_a_slow_consumer_loses_nothing_and_is_no_stall(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mp4", pictures(5))
    with open_source(path, read_timeout=0.25) as source:
        count = 0
        for _ in source:
            time.sleep(0.3)
            count += 1
    assert count == 5


def test_a_decoder_that_hangs_does_not_hang_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "clip.mp4", pictures(8))
    release = threading.Event()
    from mmspec_agent.video.reader_av import AvReader

    real = AvReader.advance

    def hangs(self: AvReader) -> bool:
        if self.time_s is not None and self.time_s > 0.25:
            release.wait(5)
        return real(self)

    monkeypatch.setattr(AvReader, "advance", hangs)
    with open_source(path, read_timeout=0.3) as source:
        got: list[Frame] = []
        with pytest.raises(SourceStalled):
            got.extend(source)
        release.set()
    assert readers() == 0


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("no/such/file.mp4", SourceNotFound),
        (None, SourceNotFound),
        (True, SourceNotFound),
        (3.5, SourceNotFound),
        (b"bytes", SourceNotFound),
        (731, SourceNotFound),
    ],
)
def test_what_is_no_source_is_said_to_be_none(spec: Any, error: type[SourceError]) -> None:
    with pytest.raises(error):
        open_source(spec)


def test_files_that_are_no_videos(tmp_path: Path) -> None:
    empty, text, folder = tmp_path / "empty.mp4", tmp_path / "text.mp4", tmp_path / "folder"
    empty.touch()
    text.write_text("not a video " * 50)
    folder.mkdir()
    with pytest.raises(SourceOpenError, match="0 bytes"):
        open_source(empty)
    with pytest.raises(SourceError):
        open_source(text)
    with pytest.raises(SourceUndecodable, match="no pictures"):
        open_source(folder)


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="fsp"):
        open_source([], fsp=3)
    for options in ({"fps": 0}, {"rotation": 45}, {"read_timeout": -1}, {"tiny": "crop"}, {"order": "gbr"}):
        with pytest.raises(OptionError, match=next(iter(options))):
            open_source([], **options)
