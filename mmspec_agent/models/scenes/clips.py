"""Short videos of scenes with ground truth for every frame, as a fixed camera would see them."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from .sample import random_scene
from .scene import Image, Scene, Thing
from .vocabulary import RGB, SIDE


class Frame(NamedTuple):
    """image uint8 RGB [size, size, 3]; time in seconds; scene is what the frame shows."""

    image: Image
    time: float
    scene: Scene


EQUAL_LUMA: Final[tuple[tuple[str, RGB], tuple[str, RGB]]] = (("red", (226, 20, 20)), ("green", (20, 122, 32)))
"""Two colours of the same BT.601 luma (82), between which a grey picture shows no change."""


def _film(scenes: Iterator[Scene], fps: float, size: int) -> Iterator[Frame]:
    for index, scene in enumerate(scenes):
        noisy = scene.with_(noise_seed=scene.seed * 100_003 + index)
        yield Frame(noisy.render(size), index / fps, noisy)


def _still(seed: int, sigma: float, things: int = 2) -> Scene:
    """A scene of that many objects at least, none moving, no sign, with sensor noise of sigma (of 255)."""
    for attempt in range(1000):
        scene = random_scene(seed * 1009 + attempt, "objects")
        plain = all(t.motion == "still" and t.shape != "lamp" for t in scene.things)
        if plain and len(scene.things) >= things and scene.sign is None:
            return scene.with_(noise=sigma, blur=0.0)
    raise AssertionError("no such scene among a thousand")


def static_noise(
    seed: int = 0, frames: int = 100, fps: float = 10.0, size: int = SIDE, sigma: float = 4.0
) -> Iterator[Frame]:
    """Nothing changes but the sensor's noise."""
    scene = _still(seed, sigma)
    yield from _film((scene for _ in range(frames)), fps, size)


def slow_change(
    seed: int = 0, frames: int = 100, fps: float = 10.0, size: int = SIDE, sigma: float = 4.0
) -> Iterator[Frame]:
    """One object drifts by half a unit a frame; another changes its colour every 30 frames."""
    scene = _still(seed, sigma)
    colors = [c for c in ("red", "blue", "yellow", "purple") if c != scene.background.color]

    def scenes() -> Iterator[Scene]:
        for index in range(frames):
            moved = _shifted(scene, 0, 0.5 * index, 0.0)
            yield moved if index < 30 else moved.with_thing(1, color=colors[index // 30 % len(colors)])

    yield from _film(scenes(), fps, size)


def busy(seed: int = 0, frames: int = 100, fps: float = 10.0, size: int = SIDE, sigma: float = 4.0) -> Iterator[Frame]:
    """Every object moves fast, each its own way, bouncing off the edges."""
    scene = _still(seed, sigma, things=3)
    speeds = np.random.default_rng((seed, 9)).uniform(4, 9, (len(scene.things), 2))

    def scenes() -> Iterator[Scene]:
        for index in range(frames):
            moved = scene
            for i, (vx, vy) in enumerate(speeds):
                moved = _shifted(moved, i, vx * index, vy * index)
            yield moved

    yield from _film(scenes(), fps, size)


def cut(seed: int = 0, frames: int = 100, fps: float = 10.0, size: int = SIDE, sigma: float = 4.0) -> Iterator[Frame]:
    """Another scene from the middle on."""
    first, second = _still(seed, sigma), _still(seed + 1, sigma)
    yield from _film((first if i < frames // 2 else second for i in range(frames)), fps, size)


def lamp(seed: int = 0, frames: int = 100, fps: float = 10.0, size: int = SIDE, sigma: float = 4.0) -> Iterator[Frame]:
    """A lamp that is off goes on in the middle, and the picture gets a little brighter with it."""
    off, on = (125, 125, 125), (255, 230, 60)
    bulb = Thing("lamp", "gray", off, "medium", 96.0, 40.0, 24.0)
    base = _still(seed, sigma)
    kept = tuple(t for t in base.things if abs(t.x - 96) > 24 + t.radius or abs(t.y - 40) > 30 + t.radius)
    dark = base.with_(things=(bulb, *kept))
    lit = dark.with_thing(0, color="yellow", rgb=on).with_(exposure=1.04)
    yield from _film((dark if i < frames // 2 else lit for i in range(frames)), fps, size)


def equal_luma(
    seed: int = 0, frames: int = 100, fps: float = 10.0, size: int = SIDE, sigma: float = 4.0
) -> Iterator[Frame]:
    """One object turns from red to a green of the same luma in the middle."""
    scene = _still(seed, sigma)
    (before, first), (after, second) = EQUAL_LUMA
    plain = {"texture": "plain", "edge": None}
    one = scene.with_thing(0, color=before, rgb=first, **plain)
    two = scene.with_thing(0, color=after, rgb=second, **plain)
    yield from _film((one if i < frames // 2 else two for i in range(frames)), fps, size)


def _shifted(scene: Scene, index: int, dx: float, dy: float) -> Scene:
    """The scene with a thing moved, reflected at the edges of the picture."""
    thing = scene.things[index]
    low, high = thing.radius + 2, SIDE - thing.radius - 2
    return scene.with_thing(index, x=_fold(thing.x + dx, low, high), y=_fold(thing.y + dy, low, high))


def _fold(value: float, low: float, high: float) -> float:
    span = max(high - low, 1e-6)
    phase = (value - low) % (2 * span)
    return round(low + (phase if phase <= span else 2 * span - phase), 2)


CLIPS: Final[dict[str, Callable[..., Iterator[Frame]]]] = {
    "static_noise": static_noise,
    "slow_change": slow_change,
    "busy": busy,
    "cut": cut,
    "lamp": lamp,
    "equal_luma": equal_luma,
}
