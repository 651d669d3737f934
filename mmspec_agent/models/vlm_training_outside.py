"""How the reference vision-language model takes pictures that are no rendered scenes."""

from collections import Counter
from typing import Any

from .scenes import questions, random_scene
from .scenes.describe import FULL
from .scenes.outside import HELD_OUT, outside, says_outside, whole
from .scenes.scene import Image
from .vlm_training_evaluation import SAMPLES, UNSEEN, Evaluation, answer

SHOWN = ("whole", "photograph", "photograph", "noise", "text", "interface")
"""What the unseen pictures are, in turn: whole photographs, crops of photographs, and made ones."""


def unseen_picture(index: int) -> Image:
    """One of the pictures that training never shows; the photographs are those held out."""
    kind = SHOWN[index % len(SHOWN)]
    if kind == "whole":
        return whole(HELD_OUT[index // len(SHOWN) % len(HELD_OUT)])
    return outside(UNSEEN + index, kind, held_out=True)


def unseen_question(index: int) -> str:
    """A description and a question about a scene that is not shown, in turn."""
    if index % 2:
        return FULL[index // 2 % len(FULL)]
    return questions(random_scene(UNSEEN + index), seed=7)[0].text


def evaluate_outside(model: Any, processor: Any, count: int = 60, seed: int = 0, *, batch: int = 8) -> Evaluation:
    """One question about each of `count` pictures from the one numbered `seed` on; right is to say that it is no scene.

    `kinds` tell whole and cropped photographs, noise, text and interfaces apart.
    """
    replies: list[str] = []
    asked = [unseen_question(index) for index in range(seed, seed + count)]
    for start in range(0, count, batch):
        texts = asked[start : start + batch]
        pictures = [unseen_picture(seed + start + i) for i in range(len(texts))]
        replies += [row[0] for row in answer(model, processor, pictures, [[text] for text in texts], 40)]
    kinds: dict[str, tuple[int, int]] = {}
    for index, reply in enumerate(replies, seed):
        kind = "outside " + SHOWN[index % len(SHOWN)]
        said, shown = kinds.get(kind, (0, 0))
        kinds[kind] = (said + says_outside(reply), shown + 1)
    samples = [(text, "", reply) for text, reply in zip(asked, replies)][:SAMPLES]
    return Evaluation(0, False, kinds, 0, 0, Counter(), samples)
