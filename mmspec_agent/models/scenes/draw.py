"""Pixels of a scene: numpy, OpenCV and PIL's built-in font; the same bytes for the same scene."""

from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage
from PIL import ImageDraw, ImageFont

from .charts import draw_chart
from .scene import Background, Image, Scene, Sign, Thing
from .shapes import outline
from .vocabulary import MOTION_STEPS, RGB, SIDE

Canvas = NDArray[np.float32]
_SHIFT = 4


def draw(scene: Scene, size: int) -> tuple[Image, NDArray[np.int8]]:
    """uint8 RGB [size, size, 3] and the ids of what covers each pixel (see `Scene.render_with_ids`)."""
    scale = size / SIDE
    canvas = _background(scene.background, size)
    ids = np.full((size, size), -1, np.int8)
    if scene.chart is not None:
        canvas = draw_chart(scene.chart, canvas, ids, scale)
    for index, thing in enumerate(scene.things):
        _draw_thing(thing, index, canvas, ids, scale, scene.aspect)
    if scene.sign is not None:
        _draw_sign(scene.sign, canvas, ids, scale)
    return _develop(scene, canvas), ids


def _develop(scene: Scene, canvas: Canvas) -> Image:
    if scene.exposure != 1.0:
        canvas *= scene.exposure
    if scene.blur > 0:
        canvas = cv2.GaussianBlur(canvas, (0, 0), scene.blur).astype(np.float32)
    if scene.noise > 0:
        rng = np.random.default_rng((scene.noise_seed, 77))
        canvas = canvas + rng.standard_normal(canvas.shape, dtype=np.float32) * np.float32(scene.noise)
    picture: Image = np.clip(canvas + 0.5, 0, 255).astype(np.uint8)
    return picture


def _background(background: Background, size: int) -> Canvas:
    first, second = np.array(background.rgb, np.float32), np.array(background.rgb2, np.float32)
    canvas = np.empty((size, size, 3), np.float32)
    rng = np.random.default_rng((background.seed, 5))
    if background.kind == "flat":
        canvas[:] = first
    elif background.kind == "textured":
        _weave(canvas, first, second, rng)
    elif background.kind == "speckled":
        coarse = rng.standard_normal((size // 4, size // 4, 1), dtype=np.float32)
        grain = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)[..., None]
        canvas[:] = first + grain * (second - first) * 0.35
    else:
        ramp = np.linspace(0, 1, size, dtype=np.float32)
        sideways = background.kind == "gradient" and background.seed % 2 == 1
        weight = ramp[None, :, None] if sideways else ramp[:, None, None]
        canvas[:] = first * (1 - weight) + second * weight
        if background.kind == "night":
            for x, y in rng.integers(0, size, (24, 2)):
                canvas[y, x] = 200
    return canvas


def _weave(canvas: Canvas, first: Canvas, second: Canvas, rng: np.random.Generator) -> None:
    size = canvas.shape[0]
    y, x = np.mgrid[0:size, 0:size].astype(np.float32)
    period = float(rng.uniform(5, 14)) * size / SIDE
    kind = int(rng.integers(0, 3))
    wave = x + y if kind == 0 else (x if kind == 1 else y)
    weight = 0.5 + 0.5 * np.sin(wave * np.float32(2 * np.pi / period))
    if kind != 0:
        weight = weight * (0.5 + 0.5 * np.sin((y if kind == 1 else x) * np.float32(2 * np.pi / period)))
    canvas[:] = first + weight[..., None] * (second - first)


@lru_cache(maxsize=4096)
def _mask(
    shape: str, radius: float, angle: float, fx: float, fy: float, part: int, aspect: float = 1.0
) -> NDArray[np.uint8]:
    """Anti-aliased mask of the body (part -1) or of one detail, on a square of side 2 * ceil(radius) + 5."""
    half = int(np.ceil(radius)) + 2
    shapes = outline(shape)
    polygons = shapes.body if part < 0 else (shapes.details[part][0],)
    turn = np.deg2rad(angle)
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    squash = (radius * min(1.0, aspect), radius * min(1.0, 1 / aspect))
    mask = np.zeros((2 * half + 1, 2 * half + 1), np.uint8)
    for polygon in polygons:
        points = (polygon @ rotation) * squash + (half + fx, half + fy)
        fixed = np.round(points * (1 << _SHIFT)).astype(np.int32)
        cv2.fillPoly(mask, [fixed], 255, lineType=cv2.LINE_AA, shift=_SHIFT)
    return mask


def _window(canvas: Canvas, cx: int, cy: int, half: int) -> tuple[slice, slice, slice, slice]:
    """Slices into the canvas and into a patch of side 2 * half + 1 centred at (cx, cy), clipped."""
    size = canvas.shape[0]
    top, left = max(0, cy - half), max(0, cx - half)
    bottom, right = min(size, cy + half + 1), min(size, cx + half + 1)
    inner_y = slice(top - cy + half, max(top, bottom) - cy + half)
    inner_x = slice(left - cx + half, max(left, right) - cx + half)
    return slice(top, max(top, bottom)), slice(left, max(left, right)), inner_y, inner_x


def _paste(canvas: Canvas, mask: NDArray[np.uint8], cx: int, cy: int, color: Canvas, alpha: float = 1.0) -> None:
    ys, xs, my, mx = _window(canvas, cx, cy, mask.shape[0] // 2)
    weight = mask[my, mx, None].astype(np.float32) * np.float32(alpha / 255)
    paint = color[my, mx] if color.ndim == 3 else color
    canvas[ys, xs] += weight * (paint - canvas[ys, xs])


def _texture(thing: Thing, side: int, scale: float) -> Canvas:
    main, second = np.array(thing.rgb, np.float32), np.array(thing.second, np.float32)
    if thing.texture in ("plain", "outlined"):
        return main
    y, x = np.mgrid[0:side, 0:side].astype(np.float32) - side // 2
    radius = thing.radius * scale
    if thing.texture == "striped":
        turn = np.deg2rad(thing.texture_angle)
        period = max(5 * scale, radius * 0.5)
        other = np.mod(x * np.float32(np.cos(turn)) + y * np.float32(np.sin(turn)), period) < 0.42 * period
    elif thing.texture == "dotted":
        pitch = max(6 * scale, radius * 0.5)
        other = np.hypot(np.mod(x, pitch) - pitch / 2, np.mod(y, pitch) - pitch / 2) < 0.3 * pitch
    else:
        pitch = max(4 * scale, radius * 0.36)
        other = (np.floor(x / pitch) + np.floor(y / pitch)) % 2 == 0
    return np.where(other[..., None], second, main).astype(np.float32)


def _draw_thing(thing: Thing, index: int, canvas: Canvas, ids: NDArray[np.int8], scale: float, aspect: float) -> None:
    radius, x, y = thing.radius * scale, thing.x * scale, thing.y * scale
    _draw_trail(thing, canvas, scale, aspect)
    if thing.shape == "lamp" and thing.color == "yellow":
        _draw_glow(thing, canvas, scale)
    cx, cy = int(np.floor(x)), int(np.floor(y))
    fx, fy = round(x - cx, 2), round(y - cy, 2)
    body = _mask(thing.shape, round(radius, 2), thing.angle, fx, fy, -1, aspect)
    ys, xs, my, mx = _window(canvas, cx, cy, body.shape[0] // 2)
    ids[ys, xs][body[my, mx] > 127] = index
    if thing.texture == "outlined":
        width = max(2, round(radius * 0.17))
        kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * width + 1, 2 * width + 1))
        inner = cv2.erode(body, kernel).astype(np.int16)
        _paste(canvas, (body.astype(np.int16) - inner).clip(0, 255).astype(np.uint8), cx, cy, _rgb(thing.rgb))
        return
    if thing.edge is not None:
        kernel = np.ones((3, 3), np.uint8)
        _paste(canvas, cv2.dilate(body, kernel), cx, cy, _rgb(thing.edge))
    _paste(canvas, body, cx, cy, _texture(thing, body.shape[0], scale))
    for part, (_, shade) in enumerate(outline(thing.shape).details):
        detail = _mask(thing.shape, round(radius, 2), thing.angle, fx, fy, part, aspect)
        _paste(canvas, detail, cx, cy, _shade(thing.rgb, shade))


def _rgb(color: RGB) -> Canvas:
    return np.array(color, np.float32)


def _shade(rgb: RGB, shade: float) -> Canvas:
    """Dark (0) or light (1) tone for details; flips where it would vanish in the body's colour."""
    tone = _rgb(rgb) * 0.25 + 255 * 0.75 * shade
    if abs(float(tone.mean()) - float(np.mean(rgb))) < 45:
        tone = _rgb((200, 200, 200)) if np.mean(rgb) < 128 else _rgb((60, 60, 60))
    return tone.astype(np.float32)


def _draw_trail(thing: Thing, canvas: Canvas, scale: float, aspect: float) -> None:
    dx, dy = MOTION_STEPS[thing.motion]
    if dx == dy == 0:
        return
    radius = thing.radius * scale
    body = _mask(thing.shape, round(radius, 2), thing.angle, 0.0, 0.0, -1, aspect)
    for step, alpha in ((3, 0.16), (2, 0.28), (1, 0.42)):
        cx = round(thing.x * scale - dx * step * radius * 0.5)
        cy = round(thing.y * scale - dy * step * radius * 0.5)
        _paste(canvas, body, cx, cy, _rgb(thing.rgb), alpha)


def _draw_glow(thing: Thing, canvas: Canvas, scale: float) -> None:
    half = int(thing.radius * scale * 1.7)
    y, x = np.mgrid[-half : half + 1, -half : half + 1].astype(np.float32)
    fall = np.clip(1 - np.hypot(x, y) / half, 0, 1) * 190
    _paste(canvas, fall.astype(np.uint8), round(thing.x * scale), round(thing.y * scale), _rgb((255, 240, 150)))


@lru_cache(maxsize=512)
def _plate(word: str, font: int, ink: RGB, plate: RGB, size: int) -> NDArray[np.uint8]:
    """uint8 RGB picture of a word on a plate; fonts 0-2 are OpenCV's, 3 is PIL's built-in."""
    scale = size / SIDE
    if font < 3:
        face = (cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_COMPLEX)[font]
        width = max(1, round(2 * scale)) if font != 1 else max(1, round(scale))
        (w, h), _ = cv2.getTextSize(word, face, 0.72 * scale, width)
        picture = np.full((h + round(12 * scale), w + round(12 * scale), 3), plate, np.uint8)
        origin = (round(6 * scale), h + round(6 * scale))
        cv2.putText(picture, word, origin, face, 0.72 * scale, ink, width, cv2.LINE_AA)
    else:
        type_ = ImageFont.load_default(round(22 * scale))
        left, top, right, bottom = type_.getbbox(word)
        margin = round(6 * scale)
        shape = (round(right - left) + 2 * margin, round(bottom - top) + 2 * margin)
        page = PILImage.new("RGB", shape, plate)
        ImageDraw.Draw(page).text((margin - left, margin - top), word, fill=ink, font=type_)
        picture = np.asarray(page).copy()
    cv2.rectangle(picture, (0, 0), (picture.shape[1] - 1, picture.shape[0] - 1), ink, 1)
    return picture


def _draw_sign(sign: Sign, canvas: Canvas, ids: NDArray[np.int8], scale: float) -> None:
    size = canvas.shape[0]
    plate = _plate(sign.word, sign.font, sign.ink, sign.plate, size)
    height, width = plate.shape[:2]
    left = int(np.clip(round(sign.x * scale) - width // 2, 0, max(0, size - width)))
    top = int(np.clip(round(sign.y * scale) - height // 2, 0, max(0, size - height)))
    canvas[top : top + height, left : left + width] = plate[: size - top, : size - left]
    ids[top : top + height, left : left + width] = -2
