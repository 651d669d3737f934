"""Questions about a scene with short answers, in varied wording, and how an answer is judged."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .scene import Scene, Thing
from .vocabulary import (
    CELL_PHRASES,
    CELLS,
    COLOR_NAMES,
    NUMBERS,
    SHAPES,
    SIZES,
    TEXTURES,
    WORDS,
    article,
    plural,
)

ATTRIBUTES = ("color", "shape", "size", "texture", "position", "motion", "background", "light", "noise", "lamp")
"""Kinds that count as attribute questions."""
Names = tuple[str, ...]
BRIEF = (" Answer in one word.", " Answer with one word.", " Use one word.", " Answer briefly.")


class Question(NamedTuple):
    """text as asked; answer as the model is taught to say it; value among choices is what makes it right."""

    kind: str
    text: str
    answer: str
    value: str
    choices: tuple[str, ...]


def check_answer(question: Question, text: str) -> bool:
    """Whether the text names the right choice and no other one."""
    return said(text, question.choices) == {question.value}


def said(text: str, choices: tuple[str, ...]) -> set[str]:
    """The choices that occur in the text as whole words; of overlapping ones the longest ("top left" is not "left")."""
    longest = sorted(choices, key=len, reverse=True)
    pattern = "|".join(re.escape(choice.lower()) + ("(?:e?s)?" if choice in SHAPES else "") for choice in longest)
    found = {match.lower() for match in re.findall(rf"\b(?:{pattern})\b", text.lower())}
    return {c for c in choices if any(m == c.lower() or m in (c + "s", c + "es") for m in found)}


def questions(scene: Scene, seed: int = 0) -> list[Question]:
    """Every question the scene can be asked, wording drawn by the seed, in random order."""
    rng = np.random.default_rng((scene.seed, seed, 31))
    asked = list(_about_chart(scene, rng) if scene.chart is not None else _about_things(scene, rng))
    asked += list(_about_picture(scene, rng))
    return [asked[int(index)] for index in rng.permutation(len(asked))]


def _say(
    rng: np.random.Generator, kind: str, asks: Names, short: str, full: str, value: str, choices: Names
) -> Question:
    ask = asks[int(rng.integers(len(asks)))]
    if rng.random() < 0.3:
        return Question(kind, ask + BRIEF[int(rng.integers(len(BRIEF)))], short.capitalize() + ".", value, choices)
    return Question(kind, ask, full, value, choices)


def names(scene: Scene) -> list[str | None]:
    """How each thing can be referred to without doubt: its shape, or colour and shape, or not at all."""
    shapes = [thing.shape for thing in scene.things]
    pairs = [f"{thing.color} {thing.shape}" for thing in scene.things]
    return [
        shape if shapes.count(shape) == 1 else pair if pairs.count(pair) == 1 else None
        for shape, pair in zip(shapes, pairs)
    ]


def _about_things(scene: Scene, rng: np.random.Generator) -> Iterator[Question]:
    known = names(scene)
    for thing, name in zip(scene.things, known):
        if name is not None:
            yield from _about_thing(thing, name, rng)
    yield from _by_color(scene, rng)
    yield from _by_place(scene, rng)
    yield from _counts(scene, rng)
    yield from _existence(scene, rng)
    yield from _relations(scene, known, rng)


def _about_thing(thing: Thing, name: str, rng: np.random.Generator) -> Iterator[Question]:
    if thing.shape == "lamp":
        state = "on" if thing.color == "yellow" else "off"
        asks: Names = ("Is the lamp on or off?", "Is the lamp on?", "Is the light on or off?")
        if " " not in name:
            yield _say(rng, "lamp", asks, state, f"The lamp is {state}.", state, ("on", "off"))
    elif " " not in name:
        asks = (f"What color is the {name}?", f"What is the color of the {name}?", f"Which color does the {name} have?")
        yield _say(rng, "color", asks, thing.color, f"The {name} is {thing.color}.", thing.color, COLOR_NAMES)
    asks = (f"What size is the {name}?", f"How big is the {name}?", f"Is the {name} small, medium or large?")
    yield _say(rng, "size", asks, thing.size, f"The {name} is {thing.size}.", thing.size, SIZES)
    if thing.shape != "lamp":
        asks = (f"What pattern does the {name} have?", f"What texture does the {name} have?")
        full = f"The {name} is {thing.texture}."
        yield _say(rng, "texture", asks, thing.texture, full, thing.texture, TEXTURES)
        yield _motion(thing, name, rng)
    phrase = CELL_PHRASES[thing.cell]
    asks = (f"Where is the {name}?", f"In which part of the picture is the {name}?", f"Where can you see the {name}?")
    yield _say(rng, "position", asks, thing.cell, f"The {name} is {phrase}.", thing.cell, CELLS)


def _motion(thing: Thing, name: str, rng: np.random.Generator) -> Question:
    asks = (f"Which way is the {name} moving?", f"Is the {name} moving?", f"In which direction is the {name} moving?")
    choices = ("not moving", "left", "right", "up", "down")
    if thing.motion == "still":
        return _say(rng, "motion", asks, "not moving", f"The {name} is not moving.", "not moving", choices)
    return _say(rng, "motion", asks, thing.motion, f"The {name} is moving {thing.motion}.", thing.motion, choices)


def _by_color(scene: Scene, rng: np.random.Generator) -> Iterator[Question]:
    colors = [thing.color for thing in scene.things]
    for thing in scene.things:
        if colors.count(thing.color) > 1:
            continue
        color = thing.color
        asks: Names = (f"What shape is the {color} object?", f"What is the {color} object?", f"What is {color}?")
        full = f"The {thing.color} object is {article(thing.shape)}."
        yield _say(rng, "shape", asks, thing.shape, full, thing.shape, SHAPES)
    if len(scene.things) == 1:
        thing = scene.things[0]
        asks = ("What shape is in the picture?", "What is shown?", "Which shape do you see?", "What is this?")
        yield _say(rng, "shape", asks, thing.shape, f"It is {article(thing.shape)}.", thing.shape, SHAPES)
        asks = ("What color is the object?", "What color is it?", "Which color do you see?", "What color is the shape?")
        yield _say(rng, "color", asks, thing.color, f"It is {thing.color}.", thing.color, COLOR_NAMES)


def _by_place(scene: Scene, rng: np.random.Generator) -> Iterator[Question]:
    """The thing at the outermost place in a direction, where the lead is clear."""
    if len(scene.things) < 2:
        return
    for most, (right, down) in {"leftmost": (1, 0), "rightmost": (-1, 0), "topmost": (0, 1), "bottom": (0, -1)}.items():
        ranked = sorted((right * thing.x + down * thing.y, index) for index, thing in enumerate(scene.things))
        if ranked[1][0] - ranked[0][0] < 30:
            continue
        first = scene.things[ranked[0][1]]
        asks = (f"What shape is the {most} object?", f"What is the {most} object?")
        full = f"The {most} object is {article(first.shape)}."
        yield _say(rng, "extreme", asks, first.shape, full, first.shape, SHAPES)


def _counts(scene: Scene, rng: np.random.Generator) -> Iterator[Question]:
    total = len(scene.things)
    asks: Names = ("How many objects are there?", "How many objects are in the picture?", "How many things do you see?")
    verb = "is one object" if total == 1 else f"are {NUMBERS[total]} objects"
    yield _say(rng, "count", asks, NUMBERS[total], f"There {verb}.", NUMBERS[total], NUMBERS)
    shapes = [thing.shape for thing in scene.things]
    chosen = list(dict.fromkeys(shapes))
    chosen.append(SHAPES[int(rng.integers(len(SHAPES)))])
    for shape in sorted(set(chosen), key=lambda s: -shapes.count(s))[:2] + chosen[-1:]:
        number = shapes.count(shape)
        if number == 0 and rng.random() < 0.5:
            continue
        many = plural(shape)
        asks = (f"How many {many} are there?", f"How many {many} do you see?", f"Count the {many}.")
        full = f"There is one {shape}." if number == 1 else f"There are {NUMBERS[number]} {many}."
        yield _say(rng, "count", asks, NUMBERS[number], full, NUMBERS[number], NUMBERS)
    color = scene.things[int(rng.integers(total))].color if total else "red"
    number = sum(thing.color == color for thing in scene.things)
    asks = (f"How many {color} objects are there?", f"How many objects are {color}?")
    full = f"There is one {color} object." if number == 1 else f"There are {NUMBERS[number]} {color} objects."
    yield _say(rng, "count", asks, NUMBERS[number], full, NUMBERS[number], NUMBERS)


def _existence(scene: Scene, rng: np.random.Generator) -> Iterator[Question]:
    present = {(thing.color, thing.shape) for thing in scene.things}
    color, shape = sorted(present)[int(rng.integers(len(present)))] if present else ("red", "circle")
    if rng.random() < 0.5:
        color = COLOR_NAMES[int(rng.integers(len(COLOR_NAMES)))] if rng.random() < 0.5 else color
        shape = SHAPES[int(rng.integers(len(SHAPES)))] if rng.random() < 0.5 else shape
    yes = (color, shape) in present
    phrase = article(f"{color} {shape}")
    full = f"Yes, there is {phrase}." if yes else f"No, there is no {color} {shape}."
    asks = (f"Is there {phrase}?", f"Do you see {phrase}?", f"Is there {phrase} in the picture?")
    value = "yes" if yes else "no"
    yield _say(rng, "existence", asks, value, full, value, ("yes", "no"))


def relation(first: Thing, second: Thing) -> str | None:
    """`to the left of`, `to the right of`, `above` or `below` where it is clear, else None."""
    dx, dy = first.x - second.x, first.y - second.y
    if abs(dx) > 1.5 * abs(dy) and abs(dx) > 26:
        return "to the left of" if dx < 0 else "to the right of"
    if abs(dy) > 1.5 * abs(dx) and abs(dy) > 26:
        return "above" if dy < 0 else "below"
    return None


OPPOSITE = {
    "to the left of": "to the right of",
    "to the right of": "to the left of",
    "above": "below",
    "below": "above",
}


def _relations(scene: Scene, known: list[str | None], rng: np.random.Generator) -> Iterator[Question]:
    for i, first in enumerate(scene.things):
        for j, second in enumerate(scene.things):
            where = relation(first, second) if i != j else None
            a, b = known[i], known[j]
            if where is None or a is None or b is None or rng.random() < 0.3:
                continue
            if rng.random() < 0.5:
                asks = (f"Where is the {a} relative to the {b}?", f"Where is the {a} compared to the {b}?")
                value, full = where.split()[-2 if " " in where else 0], f"The {a} is {where} the {b}."
                yield _say(rng, "relation", asks, value, full, value, ("left", "right", "above", "below"))
                continue
            yes = bool(rng.random() < 0.5)
            claim = where if yes else OPPOSITE[where]
            full = f"Yes, the {a} is {where} the {b}." if yes else f"No, the {a} is {where} the {b}."
            value = "yes" if yes else "no"
            yield _say(rng, "relation", (f"Is the {a} {claim} the {b}?",), value, full, value, ("yes", "no"))


def _about_picture(scene: Scene, rng: np.random.Generator) -> Iterator[Question]:
    background = scene.background
    if background.color is not None:
        asks: Names = (
            "What color is the background?",
            "What is the background color?",
            "Which color is behind the objects?",
        )
        full = f"The background is {background.color}."
        yield _say(rng, "background", asks, background.color, full, background.color, COLOR_NAMES)
    if background.kind in ("day", "night"):
        asks = ("Is it day or night?", "Is it daytime or nighttime?", "What time of day is it?")
        yield _say(rng, "light", asks, background.kind, f"It is {background.kind}.", background.kind, ("day", "night"))
    if scene.noisy is not None:
        state = "noisy" if scene.noisy else "clear"
        asks = ("Is the picture noisy or clear?", "Is the image noisy?", "Is there camera noise?")
        yield _say(rng, "noise", asks, state, f"The picture is {state}.", state, ("noisy", "clear"))
    if scene.sign is not None:
        word = scene.sign.word
        asks = ("What does the sign say?", "What word is written in the picture?", "Read the text.")
        yield _say(rng, "text", asks, word, f'The sign says "{word}".', word, WORDS)


def _about_chart(scene: Scene, rng: np.random.Generator) -> Iterator[Question]:
    chart = scene.chart
    assert chart is not None
    kinds = ("bar", "line")
    kind = "bar" if chart.kind == "bars" else "line"
    asks: Names = ("What kind of chart is this?", "Which type of chart is shown?", "What is shown in the picture?")
    yield _say(rng, "chart", asks, kind, f"It is a {kind} chart.", kind, kinds)
    if chart.kind == "line":
        asks = ("Is the line rising or falling?", "What is the trend of the line?", "How does the line develop?")
        choices = ("rising", "falling", "flat", "peak", "valley")
        full = f"The line has a {chart.trend}." if chart.trend in ("peak", "valley") else f"The line is {chart.trend}."
        yield _say(rng, "chart", asks, chart.trend, full, chart.trend, choices)
        asks = ("What color is the line?", "Which color does the line have?")
        yield _say(rng, "chart", asks, chart.colors[0], f"The line is {chart.colors[0]}.", chart.colors[0], COLOR_NAMES)
        return
    number = NUMBERS[len(chart.values)]
    asks = ("How many bars are there?", "Count the bars.")
    yield _say(rng, "count", asks, number, f"There are {number} bars.", number, NUMBERS)
    for word, pick in (("tallest", max), ("shortest", min)):
        color = chart.colors[chart.values.index(pick(chart.values))]
        asks = (f"Which bar is the {word}?", f"What color is the {word} bar?")
        yield _say(rng, "chart", asks, color, f"The {color} bar is the {word}.", color, COLOR_NAMES)
    index = int(rng.integers(len(chart.values)))
    color, value = chart.colors[index], str(chart.values[index])
    asks = (f"What is the value of the {color} bar?", f"How high is the {color} bar?")
    digits = tuple("0123456789")
    yield _say(rng, "chart", asks, value, f"The {color} bar has the value {value}.", value, digits)
