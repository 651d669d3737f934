"""How alike two pictures are: SSIM as scikit-image computes it, a hundred times faster, and what SSIM does not see.

Everything works on a *thumbnail*: the picture reduced by a whole factor to about 224 pixels of width,
because reducing by an odd factor costs more than all the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from .frame import RGBArray

GrayArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float64]

WIDTH = 224
WINDOW = 7
TILES = 8
_STANDS_OUT = 8.0
"""Standard deviations by which a single pixel's change has to exceed the usual one."""
_C1 = (0.01 * 255) ** 2
_C2 = (0.03 * 255) ** 2
_BORDER = (WINDOW - 1) // 2
_SAMPLE = WINDOW**2 / (WINDOW**2 - 1)


@dataclass(frozen=True, eq=False)
class Thumbnail:
    """A reduced picture with what every comparison needs of it.

    ``gray`` uint8 [h, w]; ``soft`` uint8 [h, w]: the same, blurred; ``chroma`` uint8 [h, w, 2], blurred; ``moments``:
    window mean and variance of ``gray``, None below 7 pixels; ``luma`` and ``saturation``: means over the picture;
    ``full_size`` (width, height) before.
    """

    gray: GrayArray
    soft: GrayArray
    chroma: npt.NDArray[np.uint8]
    moments: tuple[FloatArray, FloatArray] | None
    luma: float
    saturation: float
    full_size: tuple[int, int]


class Likeness(NamedTuple):
    """``ssim``: mean over the picture. ``tile_min``: the lowest of an 8x8 grid. ``colour``: largest blurred change of
    chroma, in levels. ``luma``: the same of luma, of single pixels where they stand out. ``luma_ratio`` >= 1: change of
    brightness. ``saturation_ratio`` <= 1: how much colour went."""

    ssim: float
    tile_min: float
    colour: float
    luma_ratio: float
    saturation_ratio: float
    luma: float = 0.0


def factor_for(width: int, height: int) -> int:
    """The whole factor that brings the longer side to about 224, one that divides both sides if it is as good."""
    longer = max(width, height)
    nearest = max(1, round(longer / WIDTH))
    for factor in (nearest, nearest - 1, nearest + 1):
        if factor >= 1 and width % factor == 0 and height % factor == 0 and 190 <= longer / factor <= 280:
            return factor
    return nearest


def reduce(rgb: RGBArray) -> RGBArray:
    """The picture averaged over whole blocks of ``factor_for`` pixels; edges are repeated to fill the last blocks."""
    height, width = rgb.shape[:2]
    factor = factor_for(width, height)
    if factor == 1:
        return rgb
    right, bottom = -width % factor, -height % factor
    if right or bottom:
        rgb = np.asarray(cv2.copyMakeBorder(rgb, 0, bottom, 0, right, cv2.BORDER_REPLICATE), dtype=np.uint8)
    size = rgb.shape[1] // factor, rgb.shape[0] // factor
    # Reading memory is the cost from 1080p on; every 2nd row (4th at 4K) still averages 4 rows of each block.
    rgb = rgb[:: max(1, factor // 4)]
    return np.asarray(cv2.resize(rgb, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def thumbnail(rgb: RGBArray) -> Thumbnail:
    """What comparisons need of ``rgb`` uint8 [h, w, 3]."""
    small = reduce(rgb)
    gray = np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
    soft = np.asarray(cv2.blur(gray, (3, 3), borderType=cv2.BORDER_REPLICATE), dtype=np.uint8)
    ycc = cv2.blur(cv2.cvtColor(small, cv2.COLOR_RGB2YCrCb), (3, 3), borderType=cv2.BORDER_REPLICATE)
    chroma = np.ascontiguousarray(ycc[:, :, 1:], dtype=np.uint8)
    saturation = cv2.norm(chroma.reshape(-1), np.full(chroma.size, 128, np.uint8), cv2.NORM_L1) / chroma.size
    moments = _moments(gray) if min(gray.shape) >= WINDOW else None
    size = rgb.shape[1], rgb.shape[0]
    return Thumbnail(gray, soft, chroma, moments, float(gray.mean()), saturation, size)


def compare(one: Thumbnail, other: Thumbnail) -> Likeness:
    """How alike two thumbnails of equal size are; below 7 pixels SSIM is replaced by 1 - mean difference / 255."""
    if one.gray.shape != other.gray.shape:
        raise ValueError(f"thumbnails of {one.gray.shape} and {other.gray.shape} differ in size; compare equal sizes")
    if one.moments is None or other.moments is None:
        ssim = tile_min = 1.0 - float(cv2.absdiff(one.gray, other.gray).mean()) / 255.0
    else:
        similarity = _ssim_map(one.gray, one.moments, other.gray, other.moments)
        ssim, tile_min = float(similarity.mean()), _tile_min(similarity)
    colour = float(cv2.absdiff(one.chroma, other.chroma).max())
    return Likeness(
        ssim,
        tile_min,
        colour,
        _ratio(one.luma, other.luma),
        1.0 / _ratio(one.saturation, other.saturation),
        _luma_change(one, other),
    )


def _luma_change(one: Thumbnail, other: Thumbnail) -> float:
    """The largest change of blurred luma; of a single pixel too, where it stands out of the noise by far: at 4K a
    thing of 20 pixels is one pixel of the thumbnail."""
    blurred = float(cv2.absdiff(one.soft, other.soft).max())
    sharp = cv2.absdiff(one.gray, other.gray)
    mean, spread = (float(value) for value in np.ravel(cv2.meanStdDev(sharp)))
    single = float(sharp.max())
    return max(blurred, single if single > mean + _STANDS_OUT * max(spread, 0.5) else 0.0)


def compare_shaken(one: Thumbnail, other: Thumbnail, limit: float = 8.0) -> float:
    """SSIM after undoing a shift of up to ``limit`` thumbnail pixels found by phase correlation: a shaking camera.

    The plain value where the pictures are too small, or no such shift is found.
    """
    plain = ssim(one.gray, other.gray)
    if min(one.gray.shape) < 4 * limit:
        return plain
    a, b = one.gray.astype(np.float32), other.gray.astype(np.float32)
    window = cv2.createHanningWindow((a.shape[1], a.shape[0]), cv2.CV_32F)
    (right, down), _ = cv2.phaseCorrelate(a, b, window)
    if max(abs(right), abs(down)) > limit:
        return plain
    matrix = np.asarray([[1, 0, right], [0, 1, down]], dtype=np.float32)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    back = np.asarray(cv2.warpAffine(other.gray, matrix, other.gray.shape[::-1], flags=flags), dtype=np.uint8)
    edge = int(max(abs(right), abs(down))) + 1
    return max(plain, ssim(one.gray[edge:-edge, edge:-edge], back[edge:-edge, edge:-edge]))


def ssim(one: GrayArray, other: GrayArray) -> float:
    """Mean SSIM of two uint8 [h, w] pictures; equals scikit-image's default to 1e-4, absdiff below 7 pixels."""
    if min(one.shape) < WINDOW:
        return 1.0 - float(cv2.absdiff(one, other).mean()) / 255.0
    return float(_ssim_map(one, _moments(one), other, _moments(other)).mean())


def ssim_reference(one: GrayArray, other: GrayArray) -> float:
    """The same from scikit-image: the yardstick, slow, at least 7 pixels a side."""
    from skimage.metrics import structural_similarity

    return float(structural_similarity(one, other, data_range=255))


def _box(values: FloatArray) -> FloatArray:
    """Window means, without the border that the window does not cover."""
    means: FloatArray = cv2.blur(values, (WINDOW, WINDOW))[_BORDER:-_BORDER, _BORDER:-_BORDER]
    return means


def _moments(gray: GrayArray) -> tuple[FloatArray, FloatArray]:
    values = gray.astype(np.float64)
    mean = _box(values)
    variance = (_box(values * values) - mean * mean) * _SAMPLE
    return mean, variance


def _ssim_map(
    one: GrayArray,
    one_moments: tuple[FloatArray, FloatArray],
    other: GrayArray,
    other_moments: tuple[FloatArray, FloatArray],
) -> FloatArray:
    """SSIM at every window (uniform 7x7, sample covariance), as scikit-image has it by default."""
    (mean_a, var_a), (mean_b, var_b) = one_moments, other_moments
    product = mean_a * mean_b
    covariance = (_box(cv2.multiply(one, other, dtype=cv2.CV_64F)) - product) * _SAMPLE
    upper = (2 * product + _C1) * (2 * covariance + _C2)
    result: FloatArray = upper / ((mean_a * mean_a + mean_b * mean_b + _C1) * (var_a + var_b + _C2))
    return result


def _tile_min(similarity: FloatArray) -> float:
    """The lowest mean of an 8x8 grid of tiles (fewer where the picture has fewer windows)."""
    rows, columns = similarity.shape
    grid = min(TILES, columns), min(TILES, rows)
    return float(cv2.resize(similarity, grid, interpolation=cv2.INTER_AREA).min())


def _ratio(one: float, other: float) -> float:
    """How many times the larger is the smaller; one level is added, so that darkness is not an infinity."""
    low, high = sorted((one + 1.0, other + 1.0))
    return high / low
