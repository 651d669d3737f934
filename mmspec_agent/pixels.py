"""Pixels of any mode, dtype and layout as upright 8-bit RGB, by stated rules, or an error that says what they are."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmspec_agent.core.errors import PictureError

ACCEPTED = (
    "a path, a URL, bytes, an open file, base64 text, a data: URL, a PIL image, a numpy array or torch tensor (H×W, "
    "H×W×C or C×H×W; 8-bit integers, uint16, or float from 0 to 1)"
)
CHANNELS = (1, 3, 4)
_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""By EXIF orientation, what makes the pixels upright."""

Array = np.ndarray[Any, np.dtype[Any]]


def upright_rgb(image: Image.Image, name: str) -> Image.Image:
    """A loaded PIL image of any mode as RGB, turned as its EXIF orientation says."""
    return _to_rgb(_upright(image), name)


def rgb_of_array(array: Array, name: str, channels_first: bool) -> Image.Image:
    """An array as RGB. ``channels_first``: what a shape means that fits both layouts (True for torch tensors)."""
    _check_dtype(array, name)
    array = _channels_last(array, name, channels_first)
    if not array.shape[0] or not array.shape[1]:
        raise PictureError(f"{name}: an empty picture")
    values = np.ascontiguousarray(_eight_bit(array, name))
    return _to_rgb(Image.fromarray(values[:, :, 0] if values.ndim == 3 and values.shape[2] == 1 else values), name)


def array_of_tensor(tensor: torch.Tensor) -> Array:
    """A tensor's values on the CPU. PictureError if it has none that can be read (meta, sparse, quantised, …)."""
    shown = f"the tensor of shape {tuple(tensor.shape)}"
    kind = (
        "on the meta device, without values"
        if tensor.is_meta
        else "sparse"
        if tensor.layout != torch.strided
        else "quantised"
        if tensor.is_quantized
        else ""
    )
    if kind:
        raise PictureError(f"{shown} is {kind}; pass a plain tensor of pixels")
    wide = tensor.dtype.is_floating_point and tensor.dtype not in (torch.float32, torch.float64)
    try:
        plain = tensor.detach().to("cpu", torch.float32 if wide else None)
        return plain.resolve_conj().resolve_neg().numpy()
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise PictureError(f"{shown} of {tensor.dtype} cannot be read: {error}") from error


def height_and_width(array: Array) -> tuple[int, int]:
    """Of an array in either layout, as far as its shape tells."""
    shape = array.shape[1:] if array.ndim == 4 else array.shape
    if len(shape) == 3:
        shape = shape[1:] if shape[-1] not in CHANNELS and shape[0] in CHANNELS else shape[:2]
    return (int(shape[0]), int(shape[1])) if len(shape) == 2 else (0, 0)


def _upright(image: Image.Image) -> Image.Image:
    orientation: Any = None
    # Cameras and editors write damaged EXIF; it says nothing about the pixels, which are fine.
    with contextlib.suppress(Exception):
        orientation = image.getexif().get(_ORIENTATION_TAG)
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _from_deep(image, name)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        clear = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        # What lies under full transparency is arbitrary; on white it looks as viewers show it.
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return image.convert("RGB")


def _from_deep(image: Image.Image, name: str) -> Image.Image:
    """Grey of more than 8 bits. 32-bit integers up to 255 are read as 8 bits, as an array of them is."""
    values = np.asarray(image)
    if image.mode == "F":
        return _grey(_eight_bit(values, name))
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise PictureError(f"{name}: grey values from {low} to {high}; accepted are 8 and 16 bits")
    if image.mode == "I" and high <= 255 and image.format != "PPM":
        return _grey(values.astype(np.uint8))
    return _grey((values.astype(np.uint32) // 257).astype(np.uint8))


def _grey(values: np.ndarray[Any, np.dtype[np.uint8]]) -> Image.Image:
    return Image.fromarray(values).convert("RGB")


def _check_dtype(array: Array, name: str) -> None:
    if array.dtype.kind not in "buif":
        kind = "complex numbers" if array.dtype.kind == "c" else f"values of dtype {array.dtype}"
        raise PictureError(f"{name} holds {kind}; accepted is {ACCEPTED}")
    if np.ma.isMaskedArray(array) and np.ma.getmaskarray(array).any():
        raise PictureError(f"{name} has masked values; fill them first")


def _eight_bit(values: Array, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind == "b":
        return values.astype(np.uint8) * 255
    if kind == "u" and size == 1:
        return values.astype(np.uint8, copy=False)
    if kind == "u" and size == 2:
        return (values // 257).astype(np.uint8)
    if kind == "f":
        return _from_floats(values, name)
    if values.size and values.min() >= 0 and values.max() <= 255:
        return values.astype(np.uint8)
    raise PictureError(
        f"{name} holds {values.dtype} values from {values.min()} to {values.max()}, beyond 0 to 255; accepted is "
        f"{ACCEPTED}"
    )


def _from_floats(values: Array, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if not np.isfinite(values).all():
        raise PictureError(f"{name} holds NaN or infinite values")
    if values.size and (values.min() < -1e-3 or values.max() > 1.001):
        raise PictureError(
            f"{name} holds floats from {values.min():.3g} to {values.max():.3g}; accepted are floats from 0 to 1 "
            "(undo the normalisation), or uint8 from 0 to 255"
        )
    return (values.astype(np.float64).clip(0, 1) * 255).round().astype(np.uint8)


def _channels_last(array: Array, name: str, channels_first: bool) -> Array:
    """[H, W] or [H, W, C]. A shape that fits both layouts is C×H×W for tensors, and refused for arrays."""
    if array.ndim == 4 and len(array) != 1:
        raise PictureError(f"{name} holds {len(array)} pictures; pass one part for each of them")
    if array.ndim == 4:
        array = array[0]
    if array.ndim != 3:
        if array.ndim == 2:
            return array
        raise PictureError(f"{name} is no picture; accepted is {ACCEPTED}")
    first, last = array.shape[0] in CHANNELS, array.shape[-1] in CHANNELS
    if first and last and not channels_first and array.shape[0] > 1:
        raise PictureError(
            f"{name} may be {array.shape[0]} rows of H×W×C or {array.shape[0]} channels of C×H×W; pass a PIL image, "
            "or a torch tensor in C×H×W"
        )
    if first and (channels_first or not last):
        return np.moveaxis(array, 0, -1)
    if not last:
        raise PictureError(f"{name} is no picture; accepted is {ACCEPTED}")
    return array
