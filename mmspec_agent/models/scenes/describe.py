"""Long answers: descriptions of a scene in several wordings, every statement of them true."""

import numpy as np

from .questions import Question, names, relation
from .scene import Scene, Thing
from .vocabulary import CELL_PHRASES, NUMBERS, article, plural

FULL = (
    "Describe the picture.",
    "Describe this image in detail.",
    "What do you see in the picture?",
    "Tell me everything about this picture.",
    "Please describe the scene.",
)
LISTS = ("List the objects in the picture.", "List everything you see.", "Make a list of the objects.")
CAPTIONS = ("Give a short caption.", "Write a caption for this picture.", "Describe the picture in one sentence.")


def descriptions(scene: Scene, seed: int = 0) -> list[Question]:
    """A full description, a list and a caption, as questions of kind `description` with wording by the seed."""
    rng = np.random.default_rng((scene.seed, seed, 47))
    made: list[tuple[tuple[str, ...], str]] = [(FULL, full_description(scene))]
    if scene.chart is None:
        made += [(LISTS, _list(scene)), (CAPTIONS, _caption(scene))]
    return [Question("description", asks[int(rng.integers(len(asks)))], text, "", ()) for asks, text in made]


def full_description(scene: Scene) -> str:
    """The long answer: what there is, where, how it looks, and the picture's own state."""
    if scene.chart is not None:
        return " ".join([*_chart_sentences(scene), *_state(scene)])
    count = len(scene.things)
    objects = "one object" if count == 1 else f"{NUMBERS[count]} objects"
    sentences = [f"The picture shows {objects} on {backdrop(scene)}."]
    sentences += [f"{_start(CELL_PHRASES[thing.cell])} there is {article(phrase(thing))}." for thing in scene.things]
    known = names(scene)
    for i in range(count - 1):
        where = relation(scene.things[i], scene.things[i + 1])
        if where is not None and known[i] is not None and known[i + 1] is not None:
            sentences.append(f"The {known[i]} is {where} the {known[i + 1]}.")
            break
    return " ".join([*sentences, *_state(scene)])


def phrase(thing: Thing) -> str:
    """Size, colour, texture, shape and motion: `large red striped circle moving left`."""
    if thing.shape == "lamp":
        state = "on" if thing.color == "yellow" else "off"
        return f"{thing.size} lamp that is {state}"
    texture = "" if thing.texture == "plain" else f" {thing.texture}"
    motion = "" if thing.motion == "still" else f" moving {thing.motion}"
    return f"{thing.size} {thing.color}{texture} {thing.shape}{motion}"


def backdrop(scene: Scene) -> str:
    """`a white background`, `a textured background`, `a night sky`."""
    background = scene.background
    if background.kind in ("day", "night"):
        return f"a {background.kind} sky"
    return f"{article(background.color or background.kind)} background"


def _start(text: str) -> str:
    return text[0].upper() + text[1:]


def _state(scene: Scene) -> list[str]:
    sentences = []
    if scene.chart is None:
        sentences.append("There is no sign." if scene.sign is None else f'A sign says "{scene.sign.word}".')
    if scene.noisy is not None:
        sentences.append("The picture is noisy." if scene.noisy else "The picture is clear.")
    return sentences


def _list(scene: Scene) -> str:
    lines = [f"{i}. {_start(article(phrase(t)))} {CELL_PHRASES[t.cell]}." for i, t in enumerate(scene.things, 1)]
    return "\n".join(lines)


def _caption(scene: Scene) -> str:
    short = [article("lamp" if t.shape == "lamp" else f"{t.color} {t.shape}") for t in scene.things]
    joined = short[0] if len(short) == 1 else ", ".join(short[:-1]) + " and " + short[-1]
    return f"{_start(joined)} on {backdrop(scene)}."


def _chart_sentences(scene: Scene) -> list[str]:
    chart = scene.chart
    assert chart is not None
    if chart.kind == "line":
        shape = f"has a {chart.trend}" if chart.trend in ("peak", "valley") else f"is {chart.trend}"
        return [
            f"The picture shows a line chart on {backdrop(scene)}.",
            f"There is one {chart.colors[0]} line.",
            f"The line {shape}.",
        ]
    values = ", ".join(f"a {c} bar with the value {v}" for c, v in zip(chart.colors, chart.values))
    tallest = chart.colors[chart.values.index(max(chart.values))]
    shortest = chart.colors[chart.values.index(min(chart.values))]
    return [
        f"The picture shows a bar chart with {NUMBERS[len(chart.values)]} {plural('bar')} on {backdrop(scene)}.",
        f"From left to right there is {values}.",
        f"The {tallest} bar is the tallest and the {shortest} bar is the shortest.",
    ]
