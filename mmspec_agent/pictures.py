"""Pictures from whatever people hand over, as upright 8-bit RGB, or an error that says what is wrong with them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import urllib.parse
import urllib.request
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from mmspec_agent.core.errors import PictureError, PictureNotFound

MAX_PIXELS = 89_478_485
"""What Pillow itself warns at: a quarter of a gigabyte of RGB. A file of a few kilobytes can claim more."""

MAX_REMOTE_BYTES = 64 << 20
REMOTE_TIMEOUT_SECONDS = 20

PICTURE_PARTS = ("image", "image_url", "input_image")
ACCEPTED = (
    "a path, bytes, a data: URL, a PIL image, a numpy array or torch tensor (H×W, H×W×C or C×H×W; uint8, uint16, or "
    "float from 0 to 1)"
)
_VIDEO_SUFFIXES = {".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v"}


@dataclass(frozen=True, eq=False)
class Picture:
    """An upright RGB picture; ``digest`` is the hash of its size and pixels."""

    image: Image.Image
    digest: str

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return self.image.size

    def png(self) -> bytes:
        """The picture as a PNG file."""
        buffer = io.BytesIO()
        self.image.save(buffer, format="PNG")
        return buffer.getvalue()


@dataclass(frozen=True)
class PictureRules:
    """Where pictures may come from, and how large they may be.

    ``allow_remote``: fetch http(s) URLs. ``allow_local``: read paths and file: URLs (a server for others says no).
    """

    allow_remote: bool = False
    allow_local: bool = True
    max_pixels: int = MAX_PIXELS


class Extracted(NamedTuple):
    """Messages for a chat template, where each picture part is ``{"type": "image"}``, and the pictures in order."""

    messages: list[dict[str, Any]]
    pictures: tuple[Picture, ...] = ()


def load_picture(source: Any, rules: PictureRules = PictureRules()) -> Picture:
    """The picture behind ``source``. PictureError names what is wrong, PictureNotFound a missing file."""
    if isinstance(source, Picture):
        return source
    if isinstance(source, Image.Image):
        return _from_pil(source, "the PIL image", rules)
    if isinstance(source, torch.Tensor):
        source = source.detach().to("cpu", torch.float32 if source.dtype == torch.bfloat16 else None).numpy()
    if isinstance(source, np.ndarray):
        return _finish(_from_array(source, rules))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(source), "the bytes", rules)
    if isinstance(source, Path):
        return _from_path(source, rules)
    if isinstance(source, str):
        return _from_text(source, rules)
    raise PictureError(f"a picture cannot be made of a {type(source).__name__}; accepted is {ACCEPTED}")


def is_picture_part(part: Any) -> bool:
    """Whether a content part of a message is a picture, in OpenAI's or transformers' form."""
    return isinstance(part, Mapping) and part.get("type") in PICTURE_PARTS


def has_pictures(messages: list[dict[str, Any]]) -> bool:
    """Whether any message holds a picture part."""
    return any(is_picture_part(part) for message in messages for part in _parts(message))


def with_loaded_pictures(messages: list[dict[str, Any]], rules: PictureRules) -> list[dict[str, Any]]:
    """The messages with every picture loaded, as ``{"type": "image", "image": Picture}``; PictureError says where."""
    return [_loaded(index, message, rules) for index, message in enumerate(messages)]


def extract(messages: list[dict[str, Any]], rules: PictureRules) -> Extracted:
    """Messages and pictures apart, as templates and processors take them."""
    pictures: list[Picture] = []
    shown = []
    for message in with_loaded_pictures(messages, rules):
        parts = []
        for part in _parts(message):
            if is_picture_part(part):
                pictures.append(part["image"])
                part = {"type": "image"}
            parts.append(part)
        shown.append({**message, "content": parts} if parts else message)
    return Extracted(shown, tuple(pictures))


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return list(content) if isinstance(content, (list, tuple)) else []


def _loaded(index: int, message: dict[str, Any], rules: PictureRules) -> dict[str, Any]:
    if not any(is_picture_part(part) for part in _parts(message)):
        return message
    parts = []
    for part in _parts(message):
        if is_picture_part(part):
            try:
                part = {"type": "image", "image": load_picture(_source(part), rules)}
            except PictureError as error:
                raise type(error)(f"message {index}: {error}") from error
        parts.append(part)
    return {**message, "content": parts}


def _source(part: Mapping[str, Any]) -> Any:
    """Where a picture part says its picture is."""
    for name in ("image", "image_url", "url", "path", "base64", "source"):
        value = part.get(name)
        if isinstance(value, Mapping):
            value = value.get("url") or value.get("data")
            name = "base64" if name == "source" else name
        if value is None:
            continue
        if name == "base64":
            return _decode(value)
        return value
    raise PictureError(
        f"a part of type {part.get('type')!r} holds no picture; accepted are {{'type': 'image', 'image': …}} and "
        "{'type': 'image_url', 'image_url': {'url': …}}"
    )


def _from_text(text: str, rules: PictureRules) -> Picture:
    lower = text[:8].lower()
    if lower.startswith("data:"):
        head, _, body = text.partition(",")
        return _from_bytes(
            _decode(body) if head.endswith(";base64") else urllib.parse.unquote_to_bytes(body), "the data: URL", rules
        )
    if lower.startswith(("http:", "https:")):
        return _from_bytes(_fetch(text, rules), text, rules)
    if lower.startswith("file:"):
        return _from_path(Path(urllib.request.url2pathname(urllib.parse.urlparse(text).path)), rules)
    return _from_path(Path(text), rules)


def _decode(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=False)
    except (binascii.Error, TypeError, ValueError) as error:
        raise PictureError(f"the picture's base64 text is damaged: {error}") from error


def _fetch(url: str, rules: PictureRules) -> bytes:
    if not rules.allow_remote:
        raise PictureError(
            f"{url} would have to be fetched from the network; pass allow_remote=True to allow it, or a local path "
            "or a data: URL"
        )
    try:
        with urllib.request.urlopen(url, timeout=REMOTE_TIMEOUT_SECONDS) as answer:
            body: bytes = answer.read(MAX_REMOTE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise PictureError(f"{url} cannot be fetched: {error}") from error
    if len(body) > MAX_REMOTE_BYTES:
        raise PictureError(f"{url} is larger than {MAX_REMOTE_BYTES >> 20} MiB; download and shrink it first")
    return body


def _from_path(path: Path, rules: PictureRules) -> Picture:
    shown = str(path) if len(str(path)) < 200 else f"{str(path)[:80]}…"
    if not rules.allow_local:
        raise PictureError("paths are not read here; pass the picture itself as a data: URL")
    try:
        body = path.expanduser().read_bytes()
    except FileNotFoundError as error:
        raise PictureNotFound(f"there is no picture {shown!r}; accepted is {ACCEPTED}") from error
    except (OSError, ValueError, RuntimeError) as error:
        raise PictureError(f"{shown!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return _from_bytes(body, shown, rules)


def _from_bytes(body: bytes, name: str, rules: PictureRules) -> Picture:
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
    frames = int(getattr(image, "n_frames", 1))
    if frames > 1 and not image.format == "MPO":
        raise PictureError(
            f"{name} has {frames} frames or pages; pass the one you mean, or use engine.watch for an animation"
        )
    try:
        image.load()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            upright = ImageOps.exif_transpose(image)
        return _finish(_to_rgb(upright if upright is not None else image, name))
    except PictureError:
        raise
    except Exception as error:  # decoders raise their own kinds on damaged files
        raise PictureError(f"{name} is damaged: {error}") from error


def _too_large(name: str, size: tuple[int, int] | None, rules: PictureRules) -> PictureError:
    given = f"{size[0]}×{size[1]} = {size[0] * size[1]:,} pixels" if size else "far too many pixels"
    return PictureError(f"{name}: {given}, the limit is {rules.max_pixels:,}; shrink the picture first")


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _from_deep(np.asarray(image), name)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        clear = image.convert("RGBA")
        # What lies under full transparency is arbitrary; on white it looks as viewers show it.
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return image.convert("RGB")


def _from_deep(values: np.ndarray[Any, np.dtype[Any]], name: str) -> Image.Image:
    """16-bit and floating-point grey scaled to 8 bits."""
    if np.issubdtype(values.dtype, np.floating):
        return _grey(_eight_bit(values, name))
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise PictureError(f"{name}: grey values from {low} to {high}; accepted are 8 and 16 bits")
    return _grey((values.astype(np.uint32) // 257).astype(np.uint8))


def _grey(values: np.ndarray[Any, np.dtype[np.uint8]]) -> Image.Image:
    return Image.fromarray(values).convert("RGB")


def _eight_bit(values: np.ndarray[Any, np.dtype[Any]], name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return (values * 255).astype(np.uint8)
    if values.dtype == np.uint16:
        return (values // 257).astype(np.uint8)
    if np.issubdtype(values.dtype, np.floating):
        if not np.isfinite(values).all():
            raise PictureError(f"{name} holds NaN or infinite values")
        if values.size and (values.min() < -1e-3 or values.max() > 1.001):
            raise PictureError(
                f"{name} holds floats from {values.min():.3g} to {values.max():.3g}; accepted are floats from 0 to 1 "
                "(undo the normalisation), or uint8 from 0 to 255"
            )
        return (values.clip(0, 1) * 255).round().astype(np.uint8)
    if values.size and values.min() >= 0 and values.max() <= 255:
        return values.astype(np.uint8)
    raise PictureError(f"{name} holds {values.dtype} values beyond 0 to 255; accepted is {ACCEPTED}")


def _from_array(array: np.ndarray[Any, np.dtype[Any]], rules: PictureRules) -> Image.Image:
    name = f"the array of shape {array.shape}"
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim == 3 and array.shape[-1] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in (1, 3, 4)):
        raise PictureError(f"{name} is no picture; accepted is {ACCEPTED}")
    height, width = array.shape[:2]
    if not height or not width:
        raise PictureError(f"{name}: an empty picture")
    if height * width > rules.max_pixels:
        raise _too_large(name, (width, height), rules)
    values = np.ascontiguousarray(_eight_bit(array, name))
    return _to_rgb(Image.fromarray(values[:, :, 0] if values.ndim == 3 and values.shape[2] == 1 else values), name)


def _finish(image: Image.Image) -> Picture:
    state = hashlib.blake2b(f"{image.size}".encode(), digest_size=16)
    state.update(image.tobytes())
    return Picture(image, state.hexdigest())
