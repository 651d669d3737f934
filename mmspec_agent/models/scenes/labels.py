"""What each visual token covers: dense labels and words for the first training stage."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .scene import Image, Scene
from .vocabulary import BACKGROUNDS, CELLS, COLOR_NAMES, MOTIONS, NUMBERS, SHAPES, SIZES, TEXTURES, TRENDS, WORDS

IGNORE: Final = -100
HEADS: Final[dict[str, int]] = {
    "shape": len(SHAPES) + 1,
    "color": len(COLOR_NAMES),
    "size": len(SIZES),
    "texture": len(TEXTURES),
    "motion": len(MOTIONS),
    "same": 6,
    "total": 6,
    "background": len(BACKGROUNDS),
    "noisy": 2,
    "word": len(WORDS),
    "trend": len(TRENDS),
    "value": 10,
    "rank": 3,
    "row": 12,
    "column": 12,
    "cell": len(CELLS),
}
"""Name of a label to its number of classes; row and column are the token's own place, cell that of its object."""

MOTION_WORDS: Final = {
    "still": "still", "left": "leftward", "right": "rightward", "up": "upward", "down": "downward",
}  # fmt: skip
LEXICON: Final = tuple(
    dict.fromkeys(
        (
            *COLOR_NAMES, *SHAPES, *TEXTURES[1:], *SIZES, *NUMBERS[:6], *WORDS, *TRENDS, "background",
            "top", "bottom", "left", "right", "center", "tall", "short", "bar", "line", "sky", "night", "day",
            "noisy", "clear", *MOTION_WORDS.values(), "unknown",
        )
    )
)  # fmt: skip
"""Words a visual token can be aligned to; `unknown` are the tokens of pictures that are no scenes."""
_LEXICON_INDEX: Final = {word: index for index, word in enumerate(LEXICON)}


class Labelled(NamedTuple):
    """image uint8 [192, 192, 3]; labels int64 per head [tokens]; words float32 [tokens, lexicon], rows sum to 1."""

    image: Image
    labels: dict[str, NDArray[np.int64]]
    words: NDArray[np.float32]


def label(scene: Scene, grid: int = 12, patch: int = 16) -> Labelled:
    """The rendered scene and, for each of grid * grid tokens, labels and words."""
    image, ids = scene.render_with_ids(grid * patch)
    cover = covers(ids, grid, patch)
    labels = {name: np.full(grid * grid, IGNORE, np.int64) for name in HEADS}
    labels["row"], labels["column"] = np.divmod(np.arange(grid * grid), grid)
    words = np.zeros((grid * grid, len(LEXICON)), np.float32)
    for identity in np.unique(cover):
        where = cover == identity
        facts, named = _facts(scene, int(identity))
        for name, value in facts.items():
            labels[name][where] = value
        for word in named:
            words[where, _LEXICON_INDEX[word]] += 1
    return Labelled(image, labels, words / np.maximum(words.sum(1, keepdims=True), 1))


def unlabelled(image: Image, grid: int = 12) -> Labelled:
    """A picture that is no scene: its tokens have no labels, and one word."""
    labels = {name: np.full(grid * grid, IGNORE, np.int64) for name in HEADS}
    words = np.zeros((grid * grid, len(LEXICON)), np.float32)
    words[:, _LEXICON_INDEX["unknown"]] = 1
    return Labelled(image, labels, words)


def covers(ids: NDArray[np.int8], grid: int, patch: int) -> NDArray[np.int64]:
    """Per token, the id that covers most of it among those with at least 1/8; -1 where none does."""
    blocks = ids.reshape(grid, patch, grid, patch).transpose(0, 2, 1, 3).reshape(grid * grid, -1)
    best = np.full(grid * grid, -1, np.int64)
    most = np.full(grid * grid, patch * patch // 8)
    for identity in np.unique(ids):
        if identity == -1:
            continue
        count = (blocks == identity).sum(1)
        larger = count > most
        best[larger], most[larger] = identity, count[larger]
    return best


def _facts(scene: Scene, identity: int) -> tuple[dict[str, int], list[str]]:
    total = len(scene.chart.values) if scene.kind == "bars" and scene.chart else len(scene.things)
    facts = {"total": min(total, 5)}
    if identity == -1:
        return _background_facts(scene, facts, total)
    if identity == -2 and scene.sign is not None:
        return facts | {"word": WORDS.index(scene.sign.word)}, [scene.sign.word]
    if scene.chart is None:
        return _thing_facts(scene, identity, facts)
    color = scene.chart.colors[max(0, identity)]
    facts["color"] = COLOR_NAMES.index(color)
    if identity == -3:
        return facts | {"trend": TRENDS.index(scene.chart.trend)}, ["line", color, scene.chart.trend]
    value = scene.chart.values[identity]
    rank = 2 if value == max(scene.chart.values) else 0 if value == min(scene.chart.values) else 1
    named = ["bar", color] + [["short"], [], ["tall"]][rank]
    return facts | {"value": value, "rank": rank}, named


def _background_facts(scene: Scene, facts: dict[str, int], total: int) -> tuple[dict[str, int], list[str]]:
    background = scene.background
    facts |= {"shape": len(SHAPES), "background": BACKGROUNDS.index(background.kind)}
    named = ["background"]
    if background.color is not None:
        facts["color"] = COLOR_NAMES.index(background.color)
        named.append(background.color)
    if background.kind in ("day", "night"):
        named += ["sky", background.kind]
    if scene.noisy is not None:
        facts["noisy"] = int(scene.noisy)
        named.append("noisy" if scene.noisy else "clear")
    if 0 < total <= 5 and scene.kind == "objects":
        named.append(NUMBERS[total])
    return facts, named


def _thing_facts(scene: Scene, index: int, facts: dict[str, int]) -> tuple[dict[str, int], list[str]]:
    thing = scene.things[index]
    same = sum(other.shape == thing.shape for other in scene.things)
    facts |= {
        "shape": SHAPES.index(thing.shape),
        "color": COLOR_NAMES.index(thing.color),
        "size": SIZES.index(thing.size),
        "texture": TEXTURES.index(thing.texture),
        "motion": MOTIONS.index(thing.motion),
        "same": same,
        "cell": CELLS.index(thing.cell),
    }
    place = thing.cell.split()
    named = [thing.color, thing.color, thing.shape, thing.shape, thing.size, *place, *place]
    if thing.shape != "lamp":
        named += [MOTION_WORDS[thing.motion]] * (1 if thing.motion == "still" else 2)
    if thing.texture != "plain":
        named.append(thing.texture)
    if same > 1:
        named.append(NUMBERS[same])
    return facts, named
