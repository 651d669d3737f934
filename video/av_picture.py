"""From a decoder's frame to an upright RGB picture of square pixels in a range that screens show."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.filter import Graph

from .frame import RGBArray

_TURNS = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_COUNTERCLOCKWISE}
_PQ, _HLG = 16, 18
"""Transfer characteristics of ITU-T H.273, table 3."""
_CURVES = {_PQ: "PQ", _HLG: "HLG"}
_SQUARE = 0.01
"""Pixels within so much of square are left as they are."""
_MOST_STRETCH = 16.0
_PEAK_NITS, _WHITE_NITS = 1000.0, 203.0
_ROWS = 64
_TO_BT709 = np.array([[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32)
"""BT.2020 to BT.709 primaries, linear light (ITU-R BT.2087)."""


class Deinterlacer:
    """Makes whole pictures of fields by ffmpeg's bwdif; frames that are not interlaced pass as they are."""

    def __init__(self) -> None:
        self._graph: Any = None
        self._shape: tuple[Any, ...] | None = None
        self.used = False

    def feed(self, frame: Any) -> Iterator[Any]:
        """Pictures that are ready once ``frame`` is in; the filter holds one back."""
        self.used = self.used or frame.interlaced_frame
        if not self.used:
            yield frame
            return
        shape = (frame.width, frame.height, frame.format.name)
        if self._shape != shape:
            yield from self.flush()
            self._graph, self._shape = self._build(frame), shape
        self._graph.vpush(frame)
        yield from self._ready()

    def flush(self) -> Iterator[Any]:
        """What is held back; the filter starts anew behind it."""
        if self._graph is not None:
            self._graph.vpush(None)
            yield from self._ready()
        self._graph = self._shape = None

    def _build(self, frame: Any) -> Any:
        graph = Graph()
        source = graph.add_buffer(
            width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base or Fraction(1, 25)
        )
        filtered = graph.add("bwdif", "mode=send_frame:parity=auto:deint=interlaced")
        sink = graph.add("buffersink")
        source.link_to(filtered)
        filtered.link_to(sink)
        graph.configure()
        return graph

    def _ready(self) -> Iterator[Any]:
        while True:
            try:
                yield self._graph.vpull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return


def turn_of(frame: Any) -> int:
    """Degrees clockwise by which a frame has to be turned to stand upright: a multiple of 90, else 0."""
    degrees = round(-float(frame.rotation)) % 360
    return degrees if degrees in _TURNS else 0


def curve_of(frame: Any) -> str | None:
    """The name of a high-dynamic-range curve, None for what screens show as it is."""
    return _CURVES.get(int(frame.color_trc))


def rgb_of(frame: Any, aspect: Fraction | None, turn: int) -> RGBArray:
    """uint8 [h, w, 3]: stretched by ``aspect`` (width over height of a pixel), tone-mapped where it is PQ or HLG,
    turned clockwise. The longer reading of the two is taken, so that no pixel is lost."""
    width, height = square_size(frame.width, frame.height, aspect)
    size = {} if (width, height) == (frame.width, frame.height) else {"width": width, "height": height}
    if curve_of(frame) is not None:
        rgb = tone_mapped(frame.to_ndarray(format="rgb48le", **size), int(frame.color_trc))
    else:
        rgb = frame.to_ndarray(format="rgb24", **size)
    if turn:
        rgb = np.asarray(cv2.rotate(rgb, _TURNS[turn]), dtype=np.uint8)
    return np.asarray(rgb, dtype=np.uint8)


def square_size(width: int, height: int, aspect: Fraction | None) -> tuple[int, int]:
    """The size with square pixels: the picture is made wider or higher, never smaller."""
    ratio = float(aspect) if aspect else 1.0
    if not 1 / _MOST_STRETCH <= ratio <= _MOST_STRETCH or abs(ratio - 1.0) <= _SQUARE:
        return width, height
    return (round(width * ratio), height) if ratio > 1.0 else (width, round(height / ratio))


def tone_mapped(picture: npt.NDArray[np.uint16], transfer: int) -> RGBArray:
    """uint8 BT.709 of uint16 BT.2020 [h, w, 3] in PQ (SMPTE ST 2084) or HLG (ITU-R BT.2100).

    203 nits, the white of BT.2408, become a bright white; what is brighter is rolled off up to 1,000 nits (the curve
    of Reinhard et al. 2002, with its white point).
    """
    table = _linear_table(transfer)
    out = np.empty(picture.shape, np.uint8)
    white = _PEAK_NITS / _WHITE_NITS
    for top in range(0, picture.shape[0], _ROWS):
        light = table[picture[top : top + _ROWS]] @ _TO_BT709.T
        np.clip(light, 0.0, white, out=light)
        peak = light.max(axis=2, keepdims=True)
        light *= (1.0 + peak / white**2) / (1.0 + peak) * 1.25
        np.clip(light, 0.0, 1.0, out=light)
        out[top : top + _ROWS] = np.rint(255.0 * light ** (1 / 2.2))
    return out


def _linear_table(transfer: int) -> npt.NDArray[np.float32]:
    """Light of every 16-bit level, in units of 203 nits."""
    signal = np.arange(65536, dtype=np.float64) / 65535.0
    if transfer == _PQ:
        power = signal ** (1 / 78.84375)
        nits = 10000.0 * (np.maximum(power - 0.8359375, 0.0) / (18.8515625 - 18.6875 * power)) ** (1 / 0.1593017578125)
    else:
        high = (np.exp((signal - 0.55991073) / 0.17883277) + 0.28466892) / 12.0
        nits = 1000.0 * np.where(signal <= 0.5, signal**2 / 3.0, high) ** 1.2
    return (nits / _WHITE_NITS).astype(np.float32)
