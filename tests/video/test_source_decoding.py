"""What decoders hand out: fields, missing times, pixel shapes, sizes that change, high dynamic range, animations."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from made_clips import Picture, encode, interlaced, moving, read_all, square
from PIL import Image

from mmspec_agent.video.clock import SimulatedClock
from mmspec_agent.video.frame import Frame
from mmspec_agent.video.source import open_source


def far_apart(frame: Frame, picture: Picture) -> float:
    """Mean difference of a frame and what was filmed."""
    return float(np.abs(frame.rgb.astype(int) - picture.astype(int)).mean())


@pytest.mark.parametrize(
    ("codec", "name"),
    [("libx264", "i.mp4"), ("libx264", "i.ts"), ("libx264", "i.mkv"), ("mpeg2video", "i.mpg"), ("mpeg2video", "i.ts")],
)
def test_interlaced_clips_give_every_picture_as_it_was_filmed(tmp_path: Path, codec: str, name: str) -> None:
    pictures = moving(25)
    path = interlaced(tmp_path / name, pictures, codec)
    with open_source(path) as source:
        frames = list(source)
        told = [event.text for event in source.take_events() if "whole pictures" in event.text]
    assert len(frames) == 25
    assert len(told) == 1
    # One filmed picture is nearer to its frame than its neighbours are: nothing is late, early or left over.
    for index in range(2, 23):
        near = [far_apart(frames[index], pictures[index + step]) for step in (-1, 0, 1)]
        assert near[1] == min(near)
    assert [f.time_s for f in frames] == pytest.approx([i / 25 for i in range(25)], abs=0.021)


def test_frames_without_times_are_counted_by_the_rate(tmp_path: Path) -> None:
    for codec, kind in (("libx264", "h264"), ("libx265", "hevc"), ("mpeg2video", "mpeg2video"), ("mjpeg", "mjpeg")):
        pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        path = encode(tmp_path / f"raw.{kind}", moving(100), codec, format=kind, pix_fmt=pix_fmt)
        assert [round(f.time_s, 3) for f in read_all(path, fps=1)] == [0.0, 1.0, 2.0, 3.0]
        assert len(read_all(path, fps=1, live=True, clock=SimulatedClock())) >= 3
    assert [round(f.time_s) for f in read_all(tmp_path / "raw.h264", rate=10, fps=0.2)] == [0, 5]


def test_two_recordings_in_one_file_or_in_a_row_go_on_in_time(tmp_path: Path) -> None:
    parts = [encode(tmp_path / f"{n}.ts", moving(50, seed=n), "mpeg2video").read_bytes() for n in (0, 1)]
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join(parts))
    for given in (joined, [tmp_path / "0.ts", tmp_path / "1.ts"]):
        frames = read_all(given, fps=5)
        assert len(frames) in (20, 21)
        assert frames[-1].time_s == pytest.approx(3.8, abs=0.25)
        assert sum(f.discontinuity for f in frames) == 1


@pytest.mark.parametrize(
    ("ratio", "size"),
    [
        (Fraction(2, 1), (256, 96)),
        (Fraction(1, 2), (128, 192)),
        (Fraction(4, 3), (171, 96)),
        (Fraction(1, 1), (128, 96)),
    ],
)
def test_pixels_that_are_not_square_are_stretched(tmp_path: Path, ratio: Fraction, size: tuple[int, int]) -> None:
    path = encode(tmp_path / "wide.mp4", moving(3), attributes=square(ratio))
    with open_source(path) as source:
        assert source.info.size == size
        assert next(source).size == size


def test_a_change_of_size_keeps_its_proportions_and_is_told(tmp_path: Path) -> None:
    sizes = [(96, 128), (192, 64), (96, 128)]
    raw = b"".join(
        encode(tmp_path / f"{n}.h264", moving(10, *size), format="h264").read_bytes() for n, size in enumerate(sizes)
    )
    (tmp_path / "all.h264").write_bytes(raw)
    with open_source(tmp_path / "all.h264") as source:
        frames = list(source)
        events = [event.kind for event in source.take_events()]
    assert [f.size for f in frames] == [(128, 96)] * 10 + [(64, 192)] * 10 + [(128, 96)] * 10
    assert events.count("resized") == 2
    pictures: list[Any] = [np.zeros((40, 60, 3), np.uint8), np.zeros((60, 40, 3), np.uint8)]
    with open_source(pictures) as source:
        assert [f.size for f in source] == [(60, 40), (40, 60)]
        assert [e.kind for e in source.take_events()].count("resized") == 1


@pytest.mark.parametrize("curve", [16, 18])
def test_high_dynamic_range_is_tone_mapped_and_told(tmp_path: Path, curve: int) -> None:
    """A grey wedge: the order of its steps stays, white is bright, and the picture uses the whole range."""
    wedge = np.linspace(0, 255, 16).astype(np.uint8).repeat(8)[None, :, None].repeat(96, 0).repeat(3, 2)
    path = encode(
        tmp_path / "hdr.mp4",
        [wedge] * 3,
        "libx265",
        pix_fmt="yuv420p10le",
        options={"x265-params": "log-level=none"},
        attributes={"color_trc": curve, "color_primaries": 9, "colorspace": 9},
    )
    with open_source(path) as source:
        frame = next(source)
        assert any("tone-mapped" in event.text for event in source.take_events())
    row = frame.rgb[48, 4::8].mean(axis=1)
    assert (np.diff(row) >= -1).all()
    assert row[-1] > 220
    assert row[0] < 12
    assert np.ptp(frame.rgb[48, 4::8].astype(int), axis=1).max() <= 8


def animated(path: Path, durations: list[int]) -> Path:
    images = [Image.fromarray(picture) for picture in moving(len(durations))]
    kinds: dict[str, dict[str, Any]] = {".tif": {"compression": "raw"}, ".webp": {"lossless": True}}
    kind = kinds.get(path.suffix, {})
    timed: dict[str, Any] = {} if path.suffix == ".tif" else {"duration": durations}
    images[0].save(path, save_all=True, append_images=images[1:], **timed, **kind)
    return path


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.apng", "a.tif"])
def test_animations_and_pages_give_all_their_pictures(tmp_path: Path, name: str) -> None:
    durations = [20, 50, 30, 400, 20]
    path = animated(tmp_path / name, durations)
    frames = read_all(path)
    assert len(frames) == 5
    wanted = range(5) if name == "a.tif" else np.cumsum([0, *durations[:-1]]) / 1000
    assert [f.time_s for f in frames] == pytest.approx(list(wanted))
    assert max(far_apart(f, p) for f, p in zip(frames, moving(5), strict=True)) < 9
    with path.open("rb") as file:
        assert len(read_all(file)) == 5
    with Image.open(path) as image:
        assert len(read_all(image)) == 5


def test_a_decoder_that_says_true_and_gives_nothing_is_a_failed_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No picture is handed out that nobody wrote: a frame whose conversion fails counts as a failed read."""
    from mmspec_agent.video import av_picture, reader_av

    path = encode(tmp_path / "clip.mp4", moving(9))
    real, calls = av_picture.rgb_of, list[int]()

    def fails(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) % 3 == 2:
            raise av.error.ArgumentError(22, "cannot convert")
        return real(*arguments)

    monkeypatch.setattr(reader_av, "rgb_of", fails)
    with pytest.warns(UserWarning, match="3 reads failed"):
        frames = read_all(path)
    assert [f.index for f in frames] == [0, 1, 2, 3, 4, 5]
    assert [f.discontinuity for f in frames] == [False, True, False, True, False, True]
