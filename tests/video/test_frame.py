"""Any picture becomes RGB uint8, or an error that says why not (bgr-rgb, gray-2d, tiny-min-factor)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmspec_agent.core.errors import FrameError
from mmspec_agent.video.frame import Frame, fit, to_rgb


def test_blue_in_bgr_is_blue_in_rgb() -> None:
    blue = np.zeros((8, 9, 3), np.uint8)
    blue[:, :, 0] = 255
    assert to_rgb(blue, order="bgr")[0, 0].tolist() == [0, 0, 255]
    assert to_rgb(blue)[0, 0].tolist() == [255, 0, 0]
    bgra = np.dstack([blue, np.full((8, 9), 7, np.uint8)])
    assert to_rgb(bgra, order="bgr")[0, 0].tolist() == [0, 0, 255]


@pytest.mark.parametrize(
    ("picture", "level"),
    [
        (np.full((4, 5), 77, np.uint8), 77),
        (np.full((4, 5, 1), 77, np.uint8), 77),
        (np.full((4, 5, 2), 77, np.uint8), 77),
        (np.full((4, 5, 4), 77, np.uint8), 77),
        (np.full((4, 5), 65535, np.uint16), 255),
        (np.full((4, 5, 3), 257 * 77, np.uint16), 77),
        (np.full((4, 5, 3), 0.5, np.float32), 128),
        (np.full((4, 5, 3), 1.0, np.float64), 255),
        (np.full((4, 5), 1.0, np.float16), 255),
        (np.full((4, 5), True), 255),
        (Image.new("L", (5, 4), 77), 77),
        (Image.new("P", (5, 4), 0), 0),
        (Image.fromarray(np.full((4, 5), 257 * 77, np.uint16)), 77),
        (Image.fromarray(np.full((4, 5), 257 * 77, np.int32)), 77),
        (Image.fromarray(np.full((4, 5), 0.5, np.float32)), 128),
        (Image.new("RGBA", (5, 4), (77, 77, 77, 3)), 77),
    ],
)
def test_kinds_of_pictures(picture: Any, level: int) -> None:
    rgb = to_rgb(picture)
    assert rgb.shape == (4, 5, 3)
    assert rgb.dtype == np.uint8
    assert (rgb == level).all()


def test_ten_bits_in_sixteen() -> None:
    assert to_rgb(np.full((2, 2), 1023, np.uint16), bit_depth=10).max() == 255
    with pytest.raises(FrameError, match="above 10 bits"):
        to_rgb(np.full((2, 2), 1024, np.uint16), bit_depth=10)


@pytest.mark.parametrize(
    ("picture", "text"),
    [
        (np.zeros((3, 40, 50), np.uint8), "channel-first"),
        (np.zeros((2, 3, 4, 5), np.uint8), "shape"),
        (np.zeros((0, 5, 3), np.uint8), "empty"),
        (np.zeros((4, 5, 3), np.int64), "int64"),
        (np.full((4, 5, 3), 200.0), "0..1"),
        (np.full((4, 5, 3), np.nan), "0..1"),
        (np.zeros(7, np.uint8), "shape"),
    ],
)
def test_refused_by_name(picture: Any, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        to_rgb(picture)


def test_the_input_is_neither_aliased_nor_changed() -> None:
    picture = np.zeros((30, 30, 3), np.uint8)
    rgb = to_rgb(picture)
    picture[:] = 9
    assert rgb.max() == 0
    with pytest.raises(ValueError):
        rgb[0, 0, 0] = 1


def test_a_reversed_view_is_converted_too() -> None:
    picture = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    assert (to_rgb(picture[::-1, ::-1], order="bgr") == picture[::-1, ::-1, ::-1]).all()


def test_tiny_pictures_are_enlarged_or_refused_with_the_limit() -> None:
    tiny = to_rgb(np.full((20, 10, 3), 50, np.uint8))
    enlarged = fit(tiny)
    assert enlarged.shape == (56, 28, 3)
    assert (enlarged == 50).all()
    with pytest.raises(FrameError, match="28"):
        fit(tiny, tiny="refuse")
    assert fit(to_rgb(np.zeros((1, 1), np.uint8))).shape == (28, 28, 3)
    assert fit(to_rgb(np.zeros((29, 31), np.uint8))).shape == (29, 31, 3)


def test_a_line_is_no_picture() -> None:
    with pytest.raises(FrameError, match="200"):
        fit(to_rgb(np.zeros((1, 300), np.uint8)))


def test_a_frame_knows_its_size() -> None:
    assert Frame(to_rgb(np.zeros((4, 7), np.uint8)), 0.0, None, 0).size == (7, 4)
