"""Facts stated by a description, and how many of them are true of the scene."""

import re
from collections.abc import Iterator

from .describe import backdrop
from .questions import relation
from .scene import Scene, Thing
from .vocabulary import BACKGROUNDS, CELLS, COLOR_NAMES, MOTIONS, NUMBERS, SHAPES, SIZES, TEXTURES, TRENDS

_ANY_COLOR = "|".join(COLOR_NAMES)
_THING = re.compile(
    rf"\b(?:(?P<size>{'|'.join(SIZES)}) )?(?:(?P<color>{_ANY_COLOR}) )?(?:(?P<texture>{'|'.join(TEXTURES)}) )?"
    rf"(?P<shape>{'|'.join(SHAPES)})\b(?: that is (?P<lamp>on|off))?(?: moving (?P<motion>{'|'.join(MOTIONS[1:])}))?"
)
_PLACE = re.compile(rf"\b(?:at the|on the|in the) (?P<cell>{'|'.join(sorted(CELLS, key=len, reverse=True))})\b")
_RELATION = re.compile(
    rf"\bthe ((?:(?:{_ANY_COLOR}) )?(?:{'|'.join(SHAPES)})) is (to the left of|to the right of|above|below) "
    rf"the ((?:(?:{_ANY_COLOR}) )?(?:{'|'.join(SHAPES)}))"
)
_BACKDROP = re.compile(rf"\b(?:an? (?:{_ANY_COLOR}|{'|'.join(BACKGROUNDS)}) background|a (?:day|night) sky)\b")
_TOTAL = re.compile(rf"\b({'|'.join(NUMBERS)}) objects?\b")
_BAR = re.compile(rf"\b({_ANY_COLOR}) bar with the value (\d)")


def check_description(scene: Scene, text: str) -> tuple[int, int]:
    """(stated, true): how many facts about the scene the text states, and how many of them hold.

    Facts are the number of objects, each object's shape and every attribute named with it, relations, background,
    sign, noise, and a chart's kind, bars, values, extremes and trend. A fact about an object that is not there is
    false; attributes are held against the object of that shape which fits best, each object taken once.
    """
    lowered = text.lower()
    verdicts = [*_whole(scene, lowered, text), *_relations(scene, lowered)]
    verdicts += _chart(scene, lowered) if "chart" in lowered or "bar" in lowered else []
    verdicts += _objects(scene, lowered)
    return len(verdicts), sum(verdicts)


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[a-z\"])\.\s*|\n", text) if part]


def _objects(scene: Scene, text: str) -> list[bool]:
    free = list(scene.things)
    verdicts: list[bool] = []
    for sentence in _sentences(_RELATION.sub("", text)):
        place = _PLACE.search(sentence)
        for match in _THING.finditer(sentence):
            claim = {name: value for name, value in match.groupdict().items() if value is not None}
            if place is not None:
                claim["cell"] = place["cell"]
            fits = [(_agree(thing, claim), thing) for thing in free if thing.shape == claim["shape"]]
            if not fits:
                verdicts += [False] * len(claim)
                continue
            best, thing = max(fits, key=lambda fit: sum(fit[0]))
            free.remove(thing)
            verdicts += best
    return verdicts


def _agree(thing: Thing, claim: dict[str, str]) -> list[bool]:
    truth = {
        "shape": thing.shape,
        "size": thing.size,
        "color": thing.color,
        "texture": thing.texture,
        "motion": thing.motion,
        "cell": thing.cell,
        "lamp": "on" if thing.color == "yellow" else "off",
    }
    return [truth[name] == value for name, value in claim.items()]


def _whole(scene: Scene, lowered: str, text: str) -> Iterator[bool]:
    for match in _TOTAL.finditer(lowered):
        yield match[1] == NUMBERS[min(9, len(scene.things))]
    for match in _BACKDROP.finditer(lowered):
        yield match[0] == backdrop(scene)
    for word in re.findall(r'sign says "([^"]*)"', text):
        yield scene.sign is not None and scene.sign.word == word
    if "there is no sign" in lowered:
        yield scene.sign is None
    for state in re.findall(r"the picture is (noisy|clear)", lowered):
        yield scene.noisy is not (state != "noisy")


def _relations(scene: Scene, text: str) -> Iterator[bool]:
    for first, where, second in _RELATION.findall(text):
        pairs = [(a, b) for a in _named(scene, first) for b in _named(scene, second) if a is not b]
        yield any(relation(a, b) == where for a, b in pairs)


def _named(scene: Scene, name: str) -> list[Thing]:
    words = name.split()
    return [t for t in scene.things if t.shape == words[-1] and (len(words) == 1 or t.color == words[0])]


def _chart(scene: Scene, text: str) -> list[bool]:
    chart = scene.chart
    verdicts: list[bool] = []
    for kind in re.findall(r"\b(bar|line) chart", text):
        verdicts.append(chart is not None and chart.kind.startswith(kind))
    for number in re.findall(rf"\b({'|'.join(NUMBERS)}) bars\b", text):
        verdicts.append(chart is not None and chart.kind == "bars" and number == NUMBERS[len(chart.values)])
    bars = chart if chart is not None and chart.kind == "bars" else None
    known = set() if bars is None else set(zip(bars.colors, (str(value) for value in bars.values)))
    verdicts += [(color, value) in known for color, value in _BAR.findall(text)]
    for color, which in re.findall(rf"\b({_ANY_COLOR}) bar is the (tallest|shortest)", text):
        pick = max if which == "tallest" else min
        verdicts.append(bars is not None and color == bars.colors[bars.values.index(pick(bars.values))])
    for color in re.findall(rf"\bone ({_ANY_COLOR}) line", text):
        verdicts.append(chart is not None and chart.colors[0] == color)
    for trend in re.findall(rf"\bthe line (?:is|has a) ({'|'.join(TRENDS)})", text):
        verdicts.append(chart is not None and chart.trend == trend)
    return verdicts
