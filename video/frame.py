"""One picture of a stream, and the rules by which anything becomes RGB uint8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from mmspec_agent.core.errors import FrameError

RGBArray = npt.NDArray[np.uint8]
Order = Literal["rgb", "bgr"]

MIN_SIDE = 28
"""Below this many pixels vision processors of the Qwen-VL type refuse a picture."""
MAX_ASPECT = 200.0
"""Above this ratio of the sides no vision processor accepts a picture."""


@dataclass(frozen=True)
class StreamInfo:
    """What a source said of itself when it was opened; counts and rates are promises, not facts.

    ``name`` carries no password. ``size`` is (width, height) as delivered, ``rotation`` the degrees named by the
    file. ``streams`` lists (width, height) of every video stream found where the container could be read, of
    which ``stream`` is the one decoded.
    """

    name: str
    backend: str
    is_live: bool
    size: tuple[int, int] | None = None
    fps: float | None = None
    frame_count: int | None = None
    rotation: int = 0
    streams: tuple[tuple[int, int], ...] = ()
    stream: int | None = None


@dataclass(frozen=True, eq=False)
class Frame:
    """A picture with its place in time.

    ``rgb`` uint8 [height, width, 3], read-only. ``time_s`` is strictly increasing within a source; ``raw_time_s``
    is what the source said (None where it says nothing). ``arrived_s`` is the clock's reading when the frame was
    taken, so ``clock.now() - arrived_s`` is its age. ``index`` counts grabbed frames, dropped ones included.
    ``discontinuity``: something was lost right before it; no draft may cross.
    """

    rgb: RGBArray
    time_s: float
    raw_time_s: float | None
    index: int
    arrived_s: float = 0.0
    discontinuity: bool = False
    source: StreamInfo | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)"""
        return self.rgb.shape[1], self.rgb.shape[0]


def to_rgb(picture: Any, *, order: Order = "rgb", bit_depth: int = 16) -> RGBArray:
    """A fresh, read-only uint8 [h, w, 3] of any picture; the input is never aliased.

    Accepted: PIL images; torch tensors, also channel-first; arrays [h, w], [h, w, 1] (grey: three equal channels),
    [h, w, 2] (grey and alpha), [h, w, 3] and [h, w, 4] (``order`` says which way round; alpha is dropped, as PIL's
    ``convert("RGB")`` does); of uint8, bool, uint16 (``bit_depth`` significant bits, scaled to 8), or floats within
    0..1. Everything else is a ``FrameError`` that names what was given.
    """
    if hasattr(picture, "convert") and hasattr(picture, "getbands"):
        picture, order = _from_pil(picture), "rgb"
    elif hasattr(picture, "detach"):
        picture = _from_tensor(picture)
    array = np.asarray(picture)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 2, 3, 4):
        hint = " It looks channel-first: transpose it to (height, width, 3)." if _channel_first(array) else ""
        raise FrameError(
            f"a picture of shape {np.shape(picture)} was given; accepted are (h, w) and (h, w, c), c of 1 to 4.{hint}"
        )
    if 0 in array.shape:
        raise FrameError(f"an empty picture of shape {np.shape(picture)} was given; give at least one pixel")
    levels = _to_uint8(array, bit_depth)
    if levels.shape[2] <= 2:
        rgb = np.repeat(levels[:, :, :1], 3, axis=2)
    elif order == "bgr" and levels.shape[2] == 3:
        rgb = np.asarray(cv2.cvtColor(np.ascontiguousarray(levels), cv2.COLOR_BGR2RGB), dtype=np.uint8)
    elif order == "bgr":
        rgb = np.ascontiguousarray(levels[:, :, 2::-1])
    else:
        rgb = np.array(levels[:, :, :3], order="C")
    rgb.flags.writeable = False
    return rgb


def _from_tensor(tensor: Any) -> npt.NDArray[Any]:
    """An array [h, w, c] of a torch tensor of any device and type; tensors of pictures are channel-first as a rule."""
    tensor = tensor.detach().cpu()
    if tensor.dtype.is_floating_point:
        tensor = tensor.float()
    array = np.asarray(tensor)
    if _channel_first(array) and array.shape[2] not in (1, 2, 3, 4):
        array = np.moveaxis(array, 0, 2)
    return array


def _from_pil(image: Any) -> Any:
    """Eight-bit RGB, except that deep grey pictures keep their bits: PIL itself would clip them to white."""
    if image.mode == "F":
        return np.asarray(image)
    if not image.mode.startswith("I"):
        return image.convert("RGB")
    levels = np.asarray(image)
    if levels.min() < 0 or levels.max() > 65535:
        raise FrameError(
            f"a picture of mode {image.mode} holds {levels.min()} to {levels.max()}; accepted are 0 to 65535"
        )
    return levels.astype(np.uint16)


def _channel_first(array: npt.NDArray[Any]) -> bool:
    return array.ndim == 3 and array.shape[0] in (1, 3, 4)


def _to_uint8(array: npt.NDArray[Any], bit_depth: int) -> npt.NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return np.where(array, np.uint8(255), np.uint8(0))
    if array.dtype == np.uint16:
        return _from_uint16(array, bit_depth)
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if not (low >= -1e-3 and high <= 1.0 + 1e-3):
            raise FrameError(
                f"a float picture with values {low:g} to {high:g} was given; accepted are finite floats within 0..1. "
                "Divide by its maximum, or convert to uint8 yourself."
            )
        levels: npt.NDArray[np.uint8] = np.rint(np.clip(array.astype(np.float32), 0.0, 1.0) * 255.0).astype(np.uint8)
        return levels
    raise FrameError(f"a picture of type {array.dtype} was given; accepted are uint8, uint16, bool and floats in 0..1")


def _from_uint16(array: npt.NDArray[Any], bit_depth: int) -> npt.NDArray[np.uint8]:
    if not 8 <= bit_depth <= 16:
        raise FrameError(f"bit_depth {bit_depth} was given; accepted are 8 to 16")
    top = (1 << bit_depth) - 1
    if int(array.max()) > top:
        raise FrameError(f"a uint16 picture holds {int(array.max())}, above {bit_depth} bits ({top}); raise bit_depth")
    levels: npt.NDArray[np.uint8] = ((array.astype(np.uint32) * 255 + top // 2) // top).astype(np.uint8)
    return levels


def fit(rgb: RGBArray, *, min_side: int = MIN_SIDE, tiny: Literal["upscale", "refuse"] = "upscale") -> RGBArray:
    """The picture with both sides at least ``min_side``: enlarged (aspect kept), or refused, as ``tiny`` says.

    A ``FrameError`` names the limit where it is refused, and where one side is over 200 times the other.
    """
    height, width = rgb.shape[:2]
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise FrameError(
            f"a picture of {width}x{height} was given; sides may differ by a factor of {MAX_ASPECT:g} at most"
        )
    short = min(height, width)
    if short >= min_side:
        return rgb
    if tiny == "refuse":
        raise FrameError(
            f"a picture of {width}x{height} was given; both sides must have at least {min_side} pixels. "
            'Enlarge it, or pass tiny="upscale".'
        )
    scale = min_side / short
    size = (max(min_side, round(width * scale)), max(min_side, round(height * scale)))
    enlarged = np.asarray(cv2.resize(rgb, size, interpolation=cv2.INTER_CUBIC), dtype=np.uint8)
    enlarged.flags.writeable = False
    return enlarged
