"""Outlines of the known shapes in unit coordinates (x right, y down, within [-1, 1])."""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Polygon = NDArray[np.float64]


class Outline(NamedTuple):
    """Polygons whose union is the body, and details drawn over it with a shade (0 dark, 1 light)."""

    body: tuple[Polygon, ...]
    details: tuple[tuple[Polygon, float], ...] = ()


def _polygon(*points: tuple[float, float]) -> Polygon:
    return np.array(points, dtype=np.float64)


def _ellipse(cx: float, cy: float, rx: float, ry: float, count: int = 36) -> Polygon:
    turn = np.linspace(0, 2 * np.pi, count, endpoint=False)
    return np.stack([cx + rx * np.cos(turn), cy + ry * np.sin(turn)], 1)


def _box(left: float, top: float, right: float, bottom: float) -> Polygon:
    return _polygon((left, top), (right, top), (right, bottom), (left, bottom))


def _regular(count: int, phase: float, inner: float = 1.0) -> Polygon:
    turn = phase + np.arange(count) * 2 * np.pi / count
    radius = np.where(np.arange(count) % 2 == 0, 1.0, inner)
    return np.stack([radius * np.cos(turn), radius * np.sin(turn)], 1)


def _heart() -> Polygon:
    turn = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    x = np.sin(turn) ** 3
    y = -(13 * np.cos(turn) - 5 * np.cos(2 * turn) - 2 * np.cos(3 * turn) - np.cos(4 * turn)) / 16
    return np.stack([x, y - 0.05], 1)


def _moon() -> Polygon:
    outer = np.linspace(0.35 * np.pi, 1.65 * np.pi, 30)
    inner = np.linspace(1.62 * np.pi, 0.38 * np.pi, 30)
    left = np.stack([0.25 + 0.98 * np.cos(outer), 0.98 * np.sin(outer)], 1)
    right = np.stack([0.62 + 0.86 * np.cos(inner), 0.9 * np.sin(inner)], 1)
    return np.concatenate([left, right])


def _cross() -> Polygon:
    a, b = 0.32, 0.95
    return _polygon(
        (-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a)
    )


def _arrow() -> Polygon:
    return _polygon((-1, -0.28), (0.1, -0.28), (0.1, -0.75), (1, 0), (0.1, 0.75), (0.1, 0.28), (-1, 0.28))


def _cup() -> Outline:
    body = _polygon((-0.85, -0.75), (0.5, -0.75), (0.38, 0.85), (-0.73, 0.85))
    handle = np.concatenate([_ellipse(0.5, -0.05, 0.48, 0.5, 24)])
    hole = _ellipse(0.52, -0.05, 0.24, 0.27, 20)
    return Outline((handle, body), ((hole[hole[:, 0] > 0.46], 1.0), (_ellipse(-0.17, -0.75, 0.62, 0.14), 0.3)))


def _flower() -> Outline:
    turn = np.arange(5) * 2 * np.pi / 5 - np.pi / 2
    petals = tuple(_ellipse(0.57 * np.cos(t), 0.57 * np.sin(t), 0.42, 0.42, 20) for t in turn)
    return Outline((*petals, _ellipse(0, 0, 0.4, 0.4)), ((_ellipse(0, 0, 0.27, 0.27), 0.15),))


def _car() -> Outline:
    cabin = _polygon((-0.55, -0.1), (-0.35, -0.55), (0.35, -0.55), (0.6, -0.1))
    wheels = tuple((_ellipse(x, 0.42, 0.24, 0.24, 20), 0.0) for x in (-0.52, 0.52))
    window = _polygon((-0.38, -0.12), (-0.24, -0.42), (0.26, -0.42), (0.42, -0.12))
    return Outline((cabin, _box(-1, -0.12, 1, 0.4)), (*wheels, (window, 0.9)))


def _tree() -> Outline:
    crown = (_polygon((0, -1), (0.62, -0.1), (-0.62, -0.1)), _polygon((0, -0.55), (0.82, 0.5), (-0.82, 0.5)))
    return Outline((*crown, _box(-0.15, 0.45, 0.15, 1)), ((_box(-0.15, 0.5, 0.15, 1), 0.2),))


def _house() -> Outline:
    roof = _polygon((0, -1), (1, -0.15), (-1, -0.15))
    return Outline((roof, _box(-0.75, -0.18, 0.75, 0.9)), ((_box(-0.2, 0.3, 0.2, 0.9), 0.1),))


def _fish() -> Outline:
    tail = _polygon((0.45, 0), (1, -0.55), (1, 0.55))
    return Outline((_ellipse(-0.22, 0, 0.78, 0.5), tail), ((_ellipse(-0.62, -0.12, 0.1, 0.1, 14), 0.0),))


def _lamp() -> Outline:
    bulb = _ellipse(0, -0.3, 0.65, 0.65)
    return Outline((bulb, _box(-0.3, 0.2, 0.3, 0.55)), ((_box(-0.33, 0.45, 0.33, 0.95), 0.15),))


@cache
def outline(shape: str) -> Outline:
    """The outline of a shape of `SHAPES`; KeyError for others."""
    simple = {
        "circle": lambda: _ellipse(0, 0, 0.97, 0.97, 48),
        "square": lambda: _box(-0.86, -0.86, 0.86, 0.86),
        "triangle": lambda: _polygon((0, -0.95), (0.97, 0.8), (-0.97, 0.8)),
        "rectangle": lambda: _box(-1, -0.52, 1, 0.52),
        "oval": lambda: _ellipse(0, 0, 1, 0.58, 40),
        "star": lambda: _regular(10, -np.pi / 2, 0.42),
        "heart": _heart,
        "diamond": lambda: _polygon((0, -1), (0.7, 0), (0, 1), (-0.7, 0)),
        "cross": _cross,
        "hexagon": lambda: _regular(6, 0.0),
        "arrow": _arrow,
        "moon": _moon,
    }
    if shape in simple:
        return Outline((simple[shape](),))
    known = {"house": _house, "tree": _tree, "car": _car, "cup": _cup, "fish": _fish, "flower": _flower, "lamp": _lamp}
    return known[shape]()
