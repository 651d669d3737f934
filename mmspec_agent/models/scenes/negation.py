"""Claims about what a scene holds, put with negation and without, and whether they are true.

"Yes" says that the statement asked about is true: "Is there no star?" is answered "Yes, there isn't a star." where
there is none. A negated verb before its subject asks for the plain statement, as English has it: "Isn't there a star?"
is answered "Yes, there is a star." where there is one.
"""

from typing import NamedTuple

import numpy as np

from .questions import BRIEF, Names, Question, names
from .scene import Scene
from .vocabulary import COLOR_NAMES, SHAPES, article

ABSENT: Names = (
    "Is there no {bare}?",
    "Is there no {bare} in the picture?",
    "Do you see no {bare}?",
    "Is it true that there is no {bare}?",
    "Is it true that there is not {one}?",
    "Is it true that there isn't {one}?",
    "Is it correct that there is no {bare} in the picture?",
    "Is it right that there is no {bare}?",
    "There is no {bare}, right?",
    "There is no {bare} here, is there?",
    "There isn't {one}, correct?",
    "Does the picture show no {bare}?",
    "Is it false that there is {one}?",
    "Is it the case that the picture does not show {one}?",
)
"""Questions whether a thing is missing; yes where it is."""
PRESENT: Names = (
    "Isn't there {one}?",
    "Isn't there {one} in the picture?",
    "Don't you see {one}?",
    "There is {one}, isn't there?",
    "Is it true that there is {one}?",
    "There is {one}, right?",
)
"""Questions whether a thing is there, most with a negated verb that negates nothing; yes where it is."""
NOT_SO: Names = ("Is the {name} not {color}?", "Is it true that the {name} is not {color}?",
                 "The {name} is not {color}, right?")  # fmt: skip
SO: Names = ("Isn't the {name} {color}?", "Is the {name} {color}?", "Is it true that the {name} is {color}?")


class Claim(NamedTuple):
    """What is asked about: `there is` a thing of this colour (any where None) and shape."""

    color: str | None
    shape: str
    holds: bool

    @property
    def bare(self) -> str:
        """Without its article."""
        return self.shape if self.color is None else f"{self.color} {self.shape}"


def negations(scene: Scene, seed: int = 0, number: int = 4) -> list[Question]:
    """Yes/no questions of kind `negation` about a scene of things, about half of them true; none about a chart."""
    if not scene.things:
        return []
    rng = np.random.default_rng((scene.seed, seed, 59))
    asked = []
    for _ in range(number):
        colored = _about_color(scene, rng) if rng.random() < 0.2 else None
        asked.append(_about_presence(scene, rng) if colored is None else colored)
    return asked


def claim(scene: Scene, rng: np.random.Generator) -> Claim:
    """A thing that is there, or one that is not: of another colour, of another shape, or of both."""
    things = scene.things
    thing = things[int(rng.integers(len(things)))]
    named = rng.random() < 0.65 and thing.shape != "lamp"
    color: str | None = thing.color if named else None
    shape = thing.shape
    if rng.random() < 0.6:
        if color is None or rng.random() < 0.6:
            shape = SHAPES[int(rng.integers(len(SHAPES)))]
        if color is not None and (shape == thing.shape or rng.random() < 0.5):
            color = COLOR_NAMES[int(rng.integers(len(COLOR_NAMES)))]
    holds = any(t.shape == shape and (color is None or t.color == color) for t in things)
    return Claim(color, shape, holds)


def _about_presence(scene: Scene, rng: np.random.Generator) -> Question:
    made = claim(scene, rng)
    negated = bool(rng.random() < 0.75)
    ask = _pick(rng, ABSENT if negated else PRESENT).format(bare=made.bare, one=article(made.bare))
    true = made.holds != negated
    missing = f"there isn't {article(made.bare)}" if true else f"there is no {made.bare}"
    return _verdict(rng, ask, f"there is {article(made.bare)}" if made.holds else missing, true)


def _about_color(scene: Scene, rng: np.random.Generator) -> Question | None:
    known = [(t, name) for t, name in zip(scene.things, names(scene)) if name == t.shape and t.shape != "lamp"]
    if not known:
        return None
    thing, name = known[int(rng.integers(len(known)))]
    color = thing.color if rng.random() < 0.5 else _pick(rng, COLOR_NAMES)
    negated = bool(rng.random() < 0.7)
    ask = _pick(rng, NOT_SO if negated else SO).format(name=name, color=color)
    return _verdict(rng, ask, f"the {name} is {thing.color}", (thing.color == color) != negated)


def _verdict(rng: np.random.Generator, ask: str, fact: str, true: bool) -> Question:
    value = "yes" if true else "no"
    if rng.random() < 0.3:
        return Question("negation", ask + _pick(rng, BRIEF), value.capitalize() + ".", value, ("yes", "no"))
    return Question("negation", ask, f"{value.capitalize()}, {fact}.", value, ("yes", "no"))


def _pick(rng: np.random.Generator, among: Names) -> str:
    return among[int(rng.integers(len(among)))]
