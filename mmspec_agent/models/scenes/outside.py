"""Pictures that are no rendered scenes: what the reference model is to tell apart, and what it says to them."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pictures
from PIL import ImageDraw, ImageFont

from .scene import Image
from .vocabulary import SIDE, WORDS

ANSWER: Final = "I know only rendered scenes, and this is not one."
"""Said to any question about such a picture."""

TAUGHT: Final = ("camera.png", "coins.png", "brick.png", "grass.png", "ihc.png", "cell.png", "hubble_deep_field.jpg",
                 "retina.jpg", "motorcycle_left.png", "motorcycle_right.png", "page.png")  # fmt: skip
"""Photographs in scikit-image's package that training takes crops of."""
HELD_OUT: Final = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "moon.png", "gravel.png",
                   "clock_motion.png", "microaneurysms.png", "text.png")  # fmt: skip
"""Those it never sees; evaluation takes these."""
KINDS: Final = ("photograph", "noise", "cloud", "text", "interface", "gradient", "waves", "leaves", "landscape")
Floats = NDArray[np.float64]


def says_outside(text: str) -> bool:
    """Whether a reply says that the model knows rendered scenes alone."""
    return "rendered scenes" in text


def outside(seed: int, kind: str | None = None, held_out: bool = False) -> Image:
    """The picture of a seed, uint8 RGB [192, 192, 3]; kind is one of `KINDS`, by default drawn, photographs oftenest.

    held_out: photographs are of `HELD_OUT`, otherwise of `TAUGHT`.
    """
    rng = np.random.default_rng((seed, 83))
    shares = np.array([6.0, *[1.0] * (len(KINDS) - 1)])
    kind = kind or str(rng.choice(KINDS, p=shares / shares.sum()))
    if kind == "photograph":
        return _photograph(rng, HELD_OUT if held_out else TAUGHT)
    makers: dict[str, Callable[[np.random.Generator], Any]] = {
        "noise": _noise,
        "cloud": _cloud,
        "text": _text,
        "interface": _interface,
        "gradient": _gradient,
        "waves": _waves,
        "leaves": _leaves,
        "landscape": _landscape,
    }
    return _eight_bits(makers[kind](rng))


def whole(name: str) -> Image:
    """A photograph of scikit-image's package, as the model's processor would scale it: uint8 RGB [192, 192, 3]."""
    return np.asarray(Pictures.fromarray(_read(name)).resize((SIDE, SIDE), Pictures.Resampling.BICUBIC))


@lru_cache(maxsize=32)
def _read(name: str) -> Image:
    """No side above 640, for crops are to be cheap."""
    import skimage

    with Pictures.open(Path(skimage.__file__).parent / "data" / name) as file:
        picture = file.convert("RGB")
    picture.thumbnail((640, 640))
    return np.asarray(picture)


def _eight_bits(values: Floats | Image) -> Image:
    rounded: Image = np.clip(np.round(values), 0, 255).astype(np.uint8)
    return rounded


def _photograph(rng: np.random.Generator, among: tuple[str, ...]) -> Image:
    pixels = _read(among[int(rng.integers(len(among)))])
    height, width = pixels.shape[:2]
    share = 1.0 if rng.random() < 0.3 else rng.uniform(0.35, 1.0)
    tall, wide = int(height * share), int(width * min(1.0, share * rng.uniform(0.8, 1.25)))
    top, left = int(rng.integers(height - tall + 1)), int(rng.integers(width - wide + 1))
    crop = Pictures.fromarray(pixels[top : top + tall, left : left + wide])
    scaled: Any = np.asarray(crop.resize((SIDE, SIDE), Pictures.Resampling.BICUBIC)).astype(np.float64)
    scaled = scaled[:, ::-1] if rng.random() < 0.5 else scaled
    if rng.random() < 0.4:
        scaled = scaled * rng.uniform(0.55, 1.35, 3) + rng.uniform(-30, 30)
    if rng.random() < 0.25:
        scaled = scaled.mean(2, keepdims=True) * rng.uniform(0.6, 1.2, 3)
    return _eight_bits(scaled)


def _noise(rng: np.random.Generator) -> Floats:
    """Each pixel (or block of pixels) by itself, in colour or grey, even, normal or of two values."""
    block = int(rng.choice([1, 1, 2, 3, 4, 6, 8]))
    side, depth = -(-SIDE // block), int(rng.choice([1, 3, 3]))
    how = rng.random()
    small: Any
    if how < 0.5:
        small = rng.integers(0, 256, (side, side, depth)).astype(np.float64)
    elif how < 0.8:
        small = rng.normal(rng.uniform(60, 200), rng.uniform(45, 100), (side, side, depth))
    else:
        small = (rng.random((side, side, depth)) < rng.uniform(0.15, 0.85)) * 255.0
    large = small.repeat(block, 0).repeat(block, 1)[:SIDE, :SIDE]
    return np.broadcast_to(np.clip(large, 0, 255), (SIDE, SIDE, 3)).copy()


def _field(rng: np.random.Generator, fall: float) -> Floats:
    """Noise whose spectrum falls by this power of the frequency, from 0 to 1: as in what a camera sees."""
    rows, columns = np.meshgrid(np.fft.fftfreq(SIDE), np.fft.rfftfreq(SIDE), indexing="ij")
    strength = 1 / np.maximum(np.hypot(rows, columns), 1 / SIDE) ** fall
    made = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(SIDE, SIDE))) * strength, s=(SIDE, SIDE))
    low, high = np.quantile(made, [0.01, 0.99])
    ranged: Floats = np.clip((made - low) / (high - low), 0, 1)
    return ranged


def _cloud(rng: np.random.Generator) -> Floats:
    fall = rng.uniform(0.6, 1.8)
    if rng.random() < 0.4:
        return np.stack([_field(rng, fall) for _ in range(3)], -1) * 255
    return _between(rng, _field(rng, fall))


def _between(rng: np.random.Generator, ramp: Floats) -> Floats:
    """Three colours along a ramp from 0 to 1, often pale ones."""
    colors = rng.uniform(0, 255, (3, 3))
    colors += rng.choice([0, 0.4, 0.7, 0.9]) * (colors.mean(1, keepdims=True) - colors)
    return np.stack([np.interp(ramp, [0, 0.5, 1], colors[:, channel]) for channel in range(3)], -1)


def _word(rng: np.random.Generator) -> str:
    letters = rng.choice(list("etaoinshrdlucmfwypvbgk"), int(rng.integers(1, 10)))
    return "".join(letters) if rng.random() < 0.85 else WORDS[int(rng.integers(len(WORDS)))].lower()


def _lines(rng: np.random.Generator, draw: ImageDraw.ImageDraw, box: tuple[int, int, int, int], ink: str) -> None:
    """Lines of words in a box."""
    size = int(rng.integers(8, 22))
    font = ImageFont.load_default(size)
    left, top, right, bottom = box
    while top + size < bottom:
        line = " ".join(_word(rng) for _ in range(max(1, int((right - left) / size / 3 * rng.uniform(0.4, 1.2)))))
        draw.text((left, top), line, fill=ink, font=font)
        top += int(size * rng.uniform(1.2, 1.6))


def _text(rng: np.random.Generator) -> Image:
    dark = rng.random() < 0.25
    paper = int(rng.integers(0, 50)) if dark else int(rng.integers(205, 256))
    page = Pictures.new("RGB", (SIDE, SIDE), (paper,) * 3)
    margin = int(rng.integers(2, 30))
    height = SIDE if rng.random() < 0.7 else int(rng.integers(50, SIDE))
    _lines(rng, ImageDraw.Draw(page), (margin, margin, SIDE - margin, height), "white" if dark else "black")
    return np.asarray(page)


def _shade(rng: np.random.Generator, low: int = 0, high: int = 256) -> tuple[int, int, int]:
    red, green, blue = (int(v) for v in rng.integers(low, high, 3))
    return red, green, blue


def _interface(rng: np.random.Generator) -> Image:
    """Windows, bars, buttons and lines of text, as on a screen."""
    dark = rng.random() < 0.35
    low, high, ink = (10, 70, "white") if dark else (200, 256, "black")
    page = Pictures.new("RGB", (SIDE, SIDE), _shade(rng, low, high))
    draw = ImageDraw.Draw(page)
    bar = int(rng.integers(8, 24))
    draw.rectangle((0, 0, SIDE, bar), fill=_shade(rng))
    side = int(rng.integers(0, 70))
    draw.rectangle((0, bar, side, SIDE), fill=_shade(rng, low, high))
    _lines(rng, draw, (3, bar + 4, side, SIDE), ink)
    top = bar + 4
    while top < SIDE - 20:
        height = int(rng.integers(18, 70))
        box = (side + 5, top, SIDE - 5, min(SIDE - 4, top + height))
        draw.rounded_rectangle(box, int(rng.integers(0, 8)), fill=_shade(rng, low, high), outline=_shade(rng))
        _lines(rng, draw, (box[0] + 4, box[1] + 3, box[2] - 4, box[3]), ink)
        if rng.random() < 0.4:
            draw.rounded_rectangle((SIDE - 45, top + 4, SIDE - 10, top + 15), 3, fill=_shade(rng))
        top += height + int(rng.integers(2, 10))
    return np.asarray(page)


def _gradient(rng: np.random.Generator) -> Floats:
    """Colours of the four corners, blended."""
    corners = rng.uniform(0, 255, (2, 2, 3))
    ramp = np.linspace(0, 1, SIDE) ** rng.uniform(0.5, 2)
    rows = corners[0][None] * (1 - ramp)[:, None, None] + corners[1][None] * ramp[:, None, None]
    made: Floats = rows[:, None, 0] * (1 - ramp)[None, :, None] + rows[:, None, 1] * ramp[None, :, None]
    return made


def _waves(rng: np.random.Generator) -> Floats:
    """Stripes, rings and weaves over the whole picture."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    total = np.zeros((SIDE, SIDE))
    for _ in range(int(rng.integers(1, 4))):
        turn, speed = rng.uniform(0, np.pi), rng.uniform(12, 160)
        way = (
            np.hypot(x - rng.random(), y - rng.random()) if rng.random() < 0.3 else x * np.cos(turn) + y * np.sin(turn)
        )
        total += np.sin(way * speed + rng.uniform(0, 6))
    if rng.random() < 0.5:
        total += 2 * _field(rng, 1.2)
    return _between(rng, (total - total.min()) / (np.ptp(total) + 1e-9))


def _leaves(rng: np.random.Generator) -> Floats:
    """Many shaded patches over each other: the edges and areas of natural pictures."""
    base = _between(rng, _field(rng, rng.uniform(1, 1.6)))
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float64)
    tint = rng.uniform(0, 255, 3)
    for _ in range(int(rng.integers(25, 90))):
        radius = float(np.clip(5 / rng.random() ** 0.6, 4, 60))
        cx, cy, turn, flat = rng.uniform(0, SIDE), rng.uniform(0, SIDE), rng.uniform(0, np.pi), rng.uniform(0.3, 1)
        u = (x - cx) * np.cos(turn) + (y - cy) * np.sin(turn)
        v = ((y - cy) * np.cos(turn) - (x - cx) * np.sin(turn)) / flat
        inside = np.hypot(u, v) < radius
        shading = 1 + rng.uniform(-0.5, 0.5) * u[inside] / radius
        base[inside] = (0.5 * tint + 0.5 * rng.uniform(0, 255, 3)) * shading[:, None]
    grain = 1 + rng.uniform(0, 0.4) * (_field(rng, 0.8) - 0.5)
    return base * grain[..., None]


def _landscape(rng: np.random.Generator) -> Floats:
    """A sky, a ragged horizon, a textured ground, and sometimes a blurred round thing before it."""
    sky = _between(rng, (_field(rng, 1.6) * rng.uniform(0.2, 0.8) + np.linspace(0, 1, SIDE)[:, None]) / 2)
    ground = _between(rng, _field(rng, rng.uniform(0.7, 1.4)))
    ridge = SIDE * rng.uniform(0.3, 0.8) + (_field(rng, 1.5)[0] - 0.5) * rng.uniform(10, 90)
    share = 1 / (1 + np.exp(-(np.arange(SIDE)[:, None] - ridge[None]) / rng.uniform(0.5, 8)))
    made: Floats = sky * (1 - share[..., None]) + ground * share[..., None]
    if rng.random() < 0.6:
        y, x = np.mgrid[:SIDE, :SIDE]
        away = np.hypot(x - rng.uniform(30, 162), (y - rng.uniform(30, 162)) * rng.uniform(0.6, 1.5))
        body = 1 / (1 + np.exp((away - rng.uniform(20, 80)) / rng.uniform(0.7, 5)))
        made = made * (1 - body[..., None]) + _between(rng, _field(rng, 1.5)) * body[..., None]
    return made
