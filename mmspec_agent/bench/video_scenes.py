"""Filmed scenes with ground truth for ``mmspec bench video``, and clips without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mmspec_agent.models.scenes import clips
from mmspec_agent.models.scenes.clips import Frame as Filmed
from mmspec_agent.models.scenes.questions import Question
from mmspec_agent.models.scenes.scene import Scene
from mmspec_agent.models.scenes.vocabulary import COLOR_NAMES, NUMBERS
from mmspec_agent.video.source import open_source

DESCRIBE = "Describe the picture."
FPS = 2.0
SEEDS = 920_000
"""Scenes of the benchmark start here; training and evaluation use others."""

KINDS = ("static_noise", "slow_change", "busy", "cut", "lamp", "equal_luma")
CHANGES = ("cut", "lamp", "equal_luma")
"""Scenes in which one fact changes in the middle."""

_TRIES = 400


class Shot(NamedTuple):
    """A frame: RGB pixels, seconds, what it shows, and a question whose answer is known (None for clips)."""

    image: np.ndarray[Any, np.dtype[np.uint8]]
    time_s: float
    scene: Scene | None = None
    fact: Question | None = None


class Film(NamedTuple):
    """Frames at 2 a second; ``change``: index of the first frame after a fact changed, None if none does."""

    kind: str
    shots: tuple[Shot, ...]
    change: int | None = None


def film(kind: str, frames: int, seed: int = 0) -> Film:
    """A scene of ``kind`` with ``frames`` frames, the next seed taken whose fact can be asked without doubt."""
    make: Callable[..., Iterator[Filmed]] = clips.CLIPS[kind]
    for attempt in range(_TRIES):
        chosen = SEEDS + 1000 * seed + attempt
        # Of two frames, the second is behind the change.
        ends = list(make(chosen, 2)) if kind in CHANGES else [next(make(chosen, 1))]
        facts = [fact_of(kind, one.scene) for one in ends]
        if any(fact is None for fact in facts) or (kind in CHANGES and not _differ(facts)):
            continue
        filmed = _slowed(make, kind, chosen, frames)
        shots = tuple(
            Shot(one.image, index / FPS, one.scene, fact_of(kind, one.scene)) for index, one in enumerate(filmed)
        )
        return Film(kind, shots, frames // 2 if kind in CHANGES else None)
    raise AssertionError(f"no scene of kind {kind} among {_TRIES}")


def _slowed(make: Callable[..., Iterator[Filmed]], kind: str, seed: int, frames: int) -> list[Filmed]:
    """Slow changes happen every 30 frames of the renderer: they are thinned to 2 frames a second of 10."""
    if kind == "slow_change":
        return list(islice(make(seed, frames * 5), None, None, 5))
    return list(make(seed, frames))


def _differ(facts: list[Question | None]) -> bool:
    first, last = facts[0], facts[-1]
    return first is not None and last is not None and first.text == last.text and first.value != last.value


def fact_of(kind: str, scene: Scene) -> Question | None:
    """The question whose answer changes in this kind of scene, with its answer now; None if it cannot be asked."""
    if kind == "lamp":
        lamp = [thing for thing in scene.things if thing.shape == "lamp"]
        if len(lamp) != 1:
            return None
        state = "on" if lamp[0].color == "yellow" else "off"
        return Question("lamp", "Is the lamp on or off?", f"The lamp is {state}.", state, ("on", "off"))
    if kind == "equal_luma":
        return _color(scene, 0)
    if kind == "slow_change":
        return _color(scene, 1)
    if kind == "cut" and scene.background.color is not None:
        color = scene.background.color
        return Question(
            "background", "What color is the background?", f"The background is {color}.", color, COLOR_NAMES
        )
    if kind == "cut":
        return None
    number = NUMBERS[len(scene.things)]
    return Question("count", "How many objects are there?", f"There are {number} objects.", number, NUMBERS)


def _color(scene: Scene, index: int) -> Question | None:
    thing = scene.things[index]
    if sum(other.shape == thing.shape for other in scene.things) > 1 or thing.size == "small":
        return None
    text = f"What color is the {thing.shape}?"
    return Question("color", text, f"The {thing.shape} is {thing.color}.", thing.color, COLOR_NAMES)


def clip_film(path: Path, frames: int) -> Film:
    """The first frames of a clip at 2 a second; SourceError if it cannot be read."""
    with open_source(path, fps=FPS) as source:
        shots = tuple(Shot(frame.rgb, frame.time_s) for frame in islice(source, frames))
    return Film(path.name, shots)
