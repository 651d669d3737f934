"""Whatever is given as a source is served or refused by name: spellings of paths, arrays, files, odd objects."""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_clips import encode, moving, read_all, source_threads
from PIL import Image

from mmspec_agent.core.errors import FrameError, SourceError, SourceNotFound, SourceOpenError, SourceUndecodable
from mmspec_agent.video.frame import to_rgb
from mmspec_agent.video.source import open_source

P = np.zeros((144, 192, 3), np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip and five numbered pictures under names that need care."""
    root = tmp_path_factory.mktemp("odd names")
    encode(root / "a clip.mp4", moving(4))
    (root / "50%25 & [x] #1?.mp4").write_bytes((root / "a clip.mp4").read_bytes())
    (root / "-").write_bytes((root / "a clip.mp4").read_bytes())
    (root / "x[").mkdir()
    (root / "x[" / "y].mp4").write_bytes((root / "a clip.mp4").read_bytes())
    for number in (0, 1, 9, 10, 11):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(root / f"shot{number:04d}.png")
    return root


@pytest.mark.parametrize(
    ("spell", "count"),
    [
        (lambda r: str(r / "a clip.mp4"), 4),
        (lambda r: r / "a clip.mp4", 4),
        (lambda r: os.fsencode(r / "a clip.mp4").decode(), 4),
        (lambda r: f"file://{r}/a clip.mp4", 4),
        (lambda r: f"file://{r}/a%20clip.mp4", 4),
        (lambda r: f"file:{r}/a%20clip.mp4", 4),
        (lambda r: f"FILE://{r}/a%20clip.mp4", 4),
        (lambda r: f"file://localhost{r}/a%20clip.mp4", 4),
        (lambda r: (r / "a clip.mp4").as_uri(), 4),
        (lambda r: (r / "50%25 & [x] #1?.mp4").as_uri(), 4),
        (lambda r: str(r / "50%25 & [x] #1?.mp4"), 4),
        (lambda r: str(r / "x[" / "y].mp4"), 4),
        (lambda r: "./-", 4),
        (lambda r: "~/a clip.mp4", 4),
        (lambda r: "a clip.mp4", 4),
        (lambda r: str(r / "shot%04d.png"), 5),
        (lambda r: str(r / "shot%d.png"), 5),
        (lambda r: "~/shot%04d.png", 5),
        (lambda r: str(r / "shot*.png"), 5),
        (lambda r: str(r / "shot000?.png"), 3),
        (lambda r: str(r / "shot00[01]?.png"), 5),
        (lambda r: [r / "shot0001.png", str(r / "shot0009.png")], 2),
        (lambda r: (str(r / "shot0001.png"), str(r / "shot0009.png")), 2),
        (lambda r: [r / "a clip.mp4", r / "shot0001.png"], 5),
        (lambda r: iter([r / "shot0001.png", r / "shot0009.png"]), 2),
        (lambda r: r, 5),
        (lambda r: (r / "a clip.mp4").open("rb"), 4),
        (lambda r: io.BytesIO((r / "a clip.mp4").read_bytes()), 4),
        (lambda r: io.BytesIO((r / "shot0001.png").read_bytes()), 1),
        (lambda r: Image.open(r / "shot0001.png"), 1),
        (lambda r: Image.new("L", (50, 40)), 1),
        (lambda r: P, 1),
        (lambda r: P[:, :, 0], 1),
        (lambda r: np.stack([P, P]), 2),
        (lambda r: torch.zeros(3, 40, 60, dtype=torch.bfloat16), 1),
        (lambda r: torch.zeros(40, 60, 3, dtype=torch.uint8), 1),
        (lambda r: torch.zeros(2, 3, 40, 60), 2),
        (lambda r: [P, Image.new("RGB", (50, 40)), torch.zeros(3, 40, 60)], 3),
        (lambda r: [(None, P), (None, P)], 2),
        (lambda r: map(np.asarray, [P, P, P]), 3),
    ],
)
def test_spellings_that_are_served(
    folder: Path, spell: Callable[[Path], Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    frames = read_all(spell(folder))
    assert len(frames) == count
    assert all(frame.rgb.ndim == 3 for frame in frames)


class Strange:
    """An object that is nothing."""


@pytest.mark.parametrize(
    "given",
    [
        "", " ", "\n", "\0", "a\0b", "-1", -1, np.int64(-1), 10**12, "9" * 30, True, False, np.bool_(True), None, 3.5,
        np.float32(1), b"bytes", bytearray(b"x"), memoryview(b"x"), {"a": 1}, {1, 2}, frozenset(), Strange(), 2 + 1j,
        np.array(0), np.zeros(7, np.uint8), np.zeros((0, 5, 3)), np.zeros((1, 2, 3, 4, 5)),
        "no/such/file.mp4", "~nobody-here/x.mp4", "*.nothing", "shot%04d.nothing", "file:///no/such.mp4",
        "file://other.host/x.mp4", "data:image/png;base64,AAAA", "nosuchscheme://host/x", "[", "videotestsrc ! appsink",
        ["no/such.png"], ["/tmp"], io.StringIO("text"), io.BytesIO(b""), io.BytesIO(b"not a video at all" * 99), 731,
    ],
    ids=lambda given: re.sub(" at 0x[0-9a-f]+", "", repr(given))[:40],
)  # fmt: skip
def test_what_is_no_source_is_refused_by_name(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder holds a picture: a text that means nothing must not come to mean it."""
    Image.new("RGB", (40, 30)).save(tmp_path / "here.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as caught:
        open_source(given)
    assert len(str(caught.value)) > 20
    assert source_threads() == 0


def test_a_closed_file_and_a_wrong_item_are_named(tmp_path: Path) -> None:
    file = encode(tmp_path / "clip.mp4", moving(2)).open("rb")
    file.close()
    with pytest.raises(SourceOpenError, match="closed"):
        open_source(file)
    with pytest.raises(SourceNotFound, match=r"missing\.png"):
        read_all(iter(["missing.png"]))
    for item in ("x", 3, None, Strange()):
        with pytest.raises((FrameError, SourceError)):
            read_all(iter([item]))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(SourceUndecodable, match="no pictures"):
        open_source(empty)


def test_numbers_of_numpy_are_camera_indices() -> None:
    for given in (np.int64(731), np.uint8(200)):
        with pytest.raises(SourceNotFound, match=f"camera {int(given)} does not open"):
            open_source(given)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("shape", [(3, 40, 60), (40, 60, 3), (1, 40, 60), (40, 60)])
def test_tensors_of_every_type_become_pictures(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    rgb = to_rgb(torch.ones(shape, dtype=dtype, requires_grad=dtype.is_floating_point))
    assert rgb.shape == (40, 60, 3)
    assert rgb.min() == (1 if dtype == torch.uint8 else 255)


def test_a_tensor_is_copied_when_it_is_taken() -> None:
    same = torch.zeros(3, 40, 60, dtype=torch.uint8)

    def items() -> Iterator[torch.Tensor]:
        for level in range(3):
            same[:] = level
            yield same

    assert [int(frame.rgb[0, 0, 0]) for frame in read_all(items())] == [0, 1, 2]


def test_opening_leaves_no_thread_behind(folder: Path) -> None:
    before = threading.active_count()
    for _ in range(5):
        open_source(folder / "a clip.mp4").close()
    assert threading.active_count() <= before
