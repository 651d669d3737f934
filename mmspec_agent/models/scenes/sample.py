"""Random scenes, one per seed: objects most often, some signs, bar and line charts."""

from dataclasses import replace

import numpy as np

from .scene import Background, Chart, Scene, Sign, Thing
from .vocabulary import (
    COLOR_NAMES,
    COLORS,
    MOTIONS,
    RADII,
    RGB,
    SHAPES,
    SIDE,
    SIZES,
    TRENDS,
    WORDS,
)

_FLAT = ("white",) * 7 + ("black",) * 3 + ("gray",) * 2 + COLOR_NAMES
_AROUND = 46
"""Smallest distance in RGB that an object keeps from what is behind it, times two."""


def random_scene(seed: int, kind: str | None = None) -> Scene:
    """The scene of a seed; kind `objects`, `bars` or `line` where it shall not be drawn (8:1:1)."""
    rng = np.random.default_rng((seed, 20))
    kind = kind or str(rng.choice(["objects", "bars", "line"], p=[0.84, 0.08, 0.08]))
    background = _background(rng, plain=kind != "objects")
    noise = float(rng.choice([0, rng.uniform(1, 6), rng.uniform(7, 19), rng.uniform(20, 34)], p=[0.4, 0.3, 0.12, 0.18]))
    blur = float(rng.uniform(0.4, 0.9)) if rng.random() < 0.2 else 0.0
    aspect = float(rng.uniform(0.72, 1.39)) if rng.random() < 0.25 else 1.0
    scene = Scene(seed, background, noise=noise, noise_seed=seed, blur=blur, aspect=aspect)
    if kind != "objects":
        return scene.with_(chart=_bars(rng, background) if kind == "bars" else _curve(rng, background))
    sign = _sign(rng) if rng.random() < 0.2 else None
    return scene.with_(things=_things(rng, background, sign), sign=sign)


def _pick(rng: np.random.Generator, names: tuple[str, ...]) -> str:
    return names[int(rng.integers(len(names)))]


def shade_of(rng: np.random.Generator, color: str) -> RGB:
    """A palette entry of the colour: as it is in 3 of 10, else jittered."""
    entry = COLORS[color][int(rng.integers(len(COLORS[color])))]
    if rng.random() < 0.3:
        return entry
    spread = 5 if color in ("black", "white", "gray") else 11
    jitter = rng.integers(-spread, spread + 1, 3) + (rng.integers(-8, 9) if spread == 11 else 0)
    red, green, blue = (int(v) for v in np.clip(np.array(entry) + jitter, 0, 255))
    return red, green, blue


def _background(rng: np.random.Generator, plain: bool) -> Background:
    kinds = ("flat", "gradient", "textured", "speckled", "day", "night")
    share = [0.8, 0.2, 0, 0, 0, 0] if plain else [0.5, 0.12, 0.12, 0.08, 0.09, 0.09]
    kind, seed = str(rng.choice(kinds, p=share)), int(rng.integers(1 << 30))
    if kind == "flat":
        color = _pick(rng, ("white", "white", "black", "gray") if plain else _FLAT)
        rgb = shade_of(rng, color)
        return Background(kind, rgb, rgb, color, seed)
    if kind == "day":
        return Background(kind, (120, 185, 245), (205, 230, 250), None, seed)
    if kind == "night":
        return Background(kind, (8, 10, 35), (30, 32, 70), None, seed)
    base = rng.integers(0, 256, 3)
    swing = rng.integers(-40, 41, 3) if kind == "gradient" else rng.integers(14, 36) * rng.choice([-1, 1])
    low, high = (0, 90) if plain and rng.random() < 0.3 else (165, 255) if plain else (0, 255)
    first, second = np.clip(base, low, high), np.clip(base + swing, low, high)
    return Background(kind, _triple(first), _triple(second), None, seed)


def _triple(values: np.ndarray) -> RGB:
    red, green, blue = (int(v) for v in values)
    return red, green, blue


def _stands_out(rgb: RGB, background: Background) -> bool:
    behind = (background.rgb, background.rgb2)
    return all(np.abs(np.subtract(rgb, other)).sum() > 2 * _AROUND + 40 for other in behind)


def _palette(rng: np.random.Generator, background: Background, count: int) -> list[tuple[str, RGB]]:
    """Up to `count` different colours that stand out, in random order."""
    chosen: list[tuple[str, RGB]] = []
    for index in rng.permutation(len(COLOR_NAMES)):
        color = COLOR_NAMES[int(index)]
        rgb = shade_of(rng, color)
        if color != background.color and _stands_out(rgb, background):
            chosen.append((color, rgb))
    return chosen[:count]


def _things(rng: np.random.Generator, background: Background, sign: Sign | None) -> tuple[Thing, ...]:
    count = int(rng.choice([1, 2, 3, 4, 5], p=[0.2, 0.24, 0.22, 0.18, 0.16]))
    shapes = [SHAPES[int(i)] for i in rng.permutation(len(SHAPES))]
    palette = _palette(rng, background, 8)
    alike = int(rng.integers(2, count + 1)) if count > 1 and rng.random() < 0.4 else 1
    names = [shapes[0]] * alike + shapes[1 : count - alike + 1]
    same_color = rng.random() < 0.35
    paints = [palette[0 if same_color and i < alike else i % len(palette)] for i in range(count)]
    order = rng.permutation(count)
    moving = rng.random() < 0.3
    placed: list[Thing] = []
    for index in order:
        thing = _place(rng, names[int(index)], paints[int(index)], placed, count, sign)
        if thing is None:
            continue
        motion = _pick(rng, MOTIONS) if moving and thing.shape != "lamp" else "still"
        placed.append(_dress(rng, thing, motion))
    return tuple(sorted(placed, key=reading_order))


def reading_order(thing: Thing) -> tuple[int, float, float]:
    """Key that sorts things by row of cells, then from left to right."""
    return min(2, int(thing.y * 3 / SIDE)), thing.x, thing.y


def _place(
    rng: np.random.Generator, shape: str, paint: tuple[str, RGB], placed: list[Thing], count: int, sign: Sign | None
) -> Thing | None:
    share = [0.25, 0.35, 0.4] if count <= 2 else [0.4, 0.42, 0.18]
    size = str(rng.choice(SIZES, p=share))
    for attempt in range(60):
        if attempt % 15 == 14:
            size = "small" if size == "medium" or attempt > 40 else "medium"
        radius = float(rng.uniform(*RADII[size]))
        if count == 1 and size == "large" and rng.random() < 0.35:
            radius = float(rng.uniform(45, 82))
        x, y = _spot(rng, radius)
        near = any(np.hypot(x - t.x, y - t.y) < (radius + t.radius) * 0.98 + 5 for t in placed)
        if near or (sign is not None and abs(y - sign.y) < radius + 20):
            continue
        if any(t.cell == Thing(shape, "", (0, 0, 0), size, x, y, radius).cell for t in placed):
            continue
        return Thing(shape, paint[0], paint[1], size, round(x, 2), round(y, 2), round(radius, 2))
    return None


def _spot(rng: np.random.Generator, radius: float) -> tuple[float, float]:
    """A centre well inside one of the nine cells, with the object inside the picture."""
    cell = np.array([rng.integers(3), rng.integers(3)]) * 64 + 32 + rng.uniform(-19, 19, 2)
    x, y = np.clip(cell, radius + 2, SIDE - radius - 2)
    return float(x), float(y)


def _dress(rng: np.random.Generator, thing: Thing, motion: str) -> Thing:
    if thing.shape == "lamp":
        color = "yellow" if rng.random() < 0.5 else "gray"
        rgb = (255, 230, 60) if color == "yellow" else (125, 125, 125)
        return replace(thing, color=color, rgb=rgb, angle=0.0)
    texture = str(rng.choice(("plain", "striped", "dotted", "checkered", "outlined"), p=[0.56, 0.12, 0.11, 0.09, 0.12]))
    return replace(
        thing,
        texture=texture,
        second=_second(rng, thing.rgb, thing.color, texture),
        texture_angle=int(rng.choice([0, 45, 90, 135])),
        angle=_angle(rng, thing.shape),
        motion=motion,
        edge=None if rng.random() < 0.75 else ((0, 0, 0) if rng.random() < 0.7 else (255, 255, 255)),
    )


def _angle(rng: np.random.Generator, shape: str) -> float:
    if shape in ("circle", "flower", "star", "hexagon"):
        return float(rng.integers(0, 72))
    if shape == "arrow":
        return float(rng.choice([0, 90, 180, 270])) + float(rng.integers(-10, 11))
    if shape in ("rectangle", "oval") and rng.random() < 0.35:
        return 90.0
    return float(rng.integers(-12, 13)) if rng.random() < 0.6 else 0.0


def _second(rng: np.random.Generator, rgb: RGB, color: str, texture: str) -> RGB:
    """The pattern's other colour: a shade of the first, or (not for checks) white or black."""
    values = np.array(rgb, np.float64)
    light = color in ("orange", "yellow", "black", "brown") or (values.mean() < 110 and rng.random() < 0.6)
    shade = values + (255 - values) * 0.6 if light else values * 0.45
    if texture == "checkered" or rng.random() < 0.5:
        return _triple(shade)
    return (255, 255, 255) if values.mean() < 150 else (0, 0, 0)


def _sign(rng: np.random.Generator) -> Sign:
    plain = ((0, 0, 0), (255, 255, 255))
    styles = (plain, plain, plain[::-1], ((255, 255, 255), (180, 20, 20)), ((0, 0, 0), (250, 220, 60)))
    ink, plate = styles[int(rng.integers(len(styles)))]
    y = float(rng.uniform(16, 24)) if rng.random() < 0.5 else float(SIDE - rng.uniform(16, 24))
    return Sign(_pick(rng, WORDS), float(rng.uniform(60, 132)), y, int(rng.integers(4)), ink, plate)


def _bars(rng: np.random.Generator, background: Background) -> Chart:
    paints = _palette(rng, background, int(rng.integers(2, 6)))
    while True:
        values = tuple(int(v) for v in rng.integers(1, 10, len(paints)))
        ordered = sorted(values)
        if ordered[-1] > ordered[-2] and ordered[0] < ordered[1]:
            break
    colors = tuple(color for color, _ in paints)
    return Chart("bars", values, colors, tuple(rgb for _, rgb in paints), grid=bool(rng.random() < 0.7))


def _curve(rng: np.random.Generator, background: Background) -> Chart:
    trend, count = _pick(rng, TRENDS), int(rng.integers(5, 8))
    ramp = np.linspace(0, 1, count)
    low, high = float(rng.uniform(0.5, 2.5)), float(rng.uniform(6.5, 9))
    peak = 1 - np.abs(2 * ramp - 1)
    base = {"rising": ramp, "falling": 1 - ramp, "peak": peak, "valley": 1 - peak}
    if trend == "flat":
        values = np.full(count, rng.uniform(2, 8))
    else:
        values = low + (high - low) * base[trend] + rng.uniform(-0.4, 0.4, count)
    color, rgb = _palette(rng, background, 1)[0]
    whole = tuple(int(v) for v in np.clip(np.round(values), 0, 9))
    return Chart("line", whole, (color,), (rgb,), trend, bool(rng.random() < 0.7))
