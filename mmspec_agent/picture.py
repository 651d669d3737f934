"""Pictures from whatever people hand over, as upright 8-bit RGB, or an error that says what is wrong with them."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from mmspec_agent.core.errors import PictureError

from .picture_bytes import Encoded, PictureRules, bytes_of_file, bytes_of_path, bytes_of_text
from .pixels import ACCEPTED, array_of_tensor, height_and_width, rgb_of_array, upright_rgb

_VIDEO_SUFFIXES = {".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v"}


@dataclass(frozen=True, eq=False)
class Picture:
    """An upright RGB picture; ``digest`` is the hash of its size and pixels."""

    image: Image.Image
    digest: str

    @classmethod
    def of(cls, image: Image.Image) -> Picture:
        """An RGB image that nobody changes any more."""
        state = hashlib.blake2b(f"{image.size}".encode(), digest_size=16)
        state.update(image.tobytes())
        return cls(image, state.hexdigest())

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return self.image.size

    def png(self) -> bytes:
        """The picture as a PNG file."""
        buffer = io.BytesIO()
        self.image.save(buffer, format="PNG")
        return buffer.getvalue()


def load_picture(source: Any, rules: PictureRules | None = None) -> Picture:
    """The picture behind ``source``. PictureError names what is wrong, PictureNotFound a missing file."""
    if isinstance(source, Picture):
        return source
    try:
        return _load(source, rules or PictureRules())
    except PictureError:
        raise
    except Exception as error:  # decoders and foreign objects raise their own kinds
        raise PictureError(
            f"a picture cannot be made of this {type(source).__name__} ({type(error).__name__}: {error}); accepted is "
            f"{ACCEPTED}"
        ) from error


def is_picture(value: Any) -> bool:
    """Whether a value is pixels, rather than a text that says where they are."""
    return isinstance(value, (Picture, Image.Image, np.ndarray, torch.Tensor))


def _load(source: Any, rules: PictureRules) -> Picture:
    if isinstance(source, Image.Image):
        return _from_pil(source, "the PIL image", rules)
    if isinstance(source, (np.ndarray, torch.Tensor)):
        return _from_values(source, rules)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decoded(Encoded(bytes(source), "the bytes"), rules)
    if isinstance(source, str):
        return _decoded(bytes_of_text(source, rules), rules)
    if isinstance(source, os.PathLike):
        return _decoded(bytes_of_path(Path(os.fsdecode(source)), rules), rules)
    if callable(getattr(source, "read", None)):
        return _decoded(bytes_of_file(source), rules)
    raise PictureError(f"a picture cannot be made of a {type(source).__name__}; accepted is {ACCEPTED}")


def _from_values(values: np.ndarray[Any, np.dtype[Any]] | torch.Tensor, rules: PictureRules) -> Picture:
    """Pixels in an array or a tensor; too many are refused before one is converted."""
    is_tensor = isinstance(values, torch.Tensor)
    array = array_of_tensor(values) if isinstance(values, torch.Tensor) else values
    name = f"the {'tensor' if is_tensor else 'array'} of shape {tuple(array.shape)}"
    height, width = height_and_width(array)
    if height * width > rules.max_pixels:
        raise _too_large(name, (width, height), rules)
    return Picture.of(rgb_of_array(array, name, channels_first=is_tensor))


def _decoded(encoded: Encoded, rules: PictureRules) -> Picture:
    body, name = encoded
    if not body:
        raise PictureError(f"{name}: empty, no picture in it")
    try:
        with warnings.catch_warnings():
            # Our own limit, with our own text, takes the place of Pillow's warning.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(body))
    except Image.DecompressionBombError as error:
        raise _too_large(name, None, rules) from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        hint = "; it looks like a video: use engine.watch" if Path(name).suffix.lower() in _VIDEO_SUFFIXES else ""
        raise PictureError(f"{name} is not a picture Pillow can read (PNG, JPEG, WebP, BMP, TIFF, …){hint}") from error
    return _from_pil(image, name, rules)


def _from_pil(image: Image.Image, name: str, rules: PictureRules) -> Picture:
    """Checked by its header before a pixel is decoded."""
    width, height = image.size
    if not width or not height:
        raise PictureError(f"{name}: {width}×{height} pixels, an empty picture")
    if width * height > rules.max_pixels:
        raise _too_large(name, image.size, rules)
    try:
        frames = int(getattr(image, "n_frames", 1))
        if frames > 1 and not image.format == "MPO":
            raise PictureError(
                f"{name} has {frames} frames or pages; pass the one you mean, or use engine.watch for an animation"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image.load()
            upright = upright_rgb(image, name)
        # The caller's own image may be drawn on later; what was shown stays.
        return Picture.of(upright.copy() if upright is image else upright)
    except PictureError:
        raise
    except Exception as error:  # decoders raise their own kinds on damaged files
        raise PictureError(f"{name} is damaged: {error}") from error


def _too_large(name: str, size: tuple[int, int] | None, rules: PictureRules) -> PictureError:
    given = f"{size[0]}×{size[1]} = {size[0] * size[1]:,} pixels" if size else "far too many pixels"
    return PictureError(f"{name}: {given}, the limit is {rules.max_pixels:,}; shrink the picture first")
