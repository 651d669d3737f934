"""Where the things of a question lie, read from hidden states while training: an answer alone teaches too little.

Whether one thing is left of another takes three steps (find one, find the other, compare), and the answer is a single
word. So the words that name a thing are held to its place, and the answer's words to the way from one to the other.
"""

import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .scenes import Scene
from .scenes.questions import Question, names
from .scenes.vocabulary import SIDE

NAMED_LAYER, COMPARED_LAYER = 13, 21
"""Layers of 30 after which a name's place and the way between two are read."""


class Mark(NamedTuple):
    """What is true at one token of the text: x and y of the thing it names, or from one thing to another.

    Units are half a side; places are from the middle.
    """

    at: int
    x: float
    y: float
    compared: bool


class PlaceHeads(nn.Module):
    """Linear readings of place from hidden states; used in training only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.named = nn.Linear(width, 2)
        self.compared = nn.Linear(width, 2)

    def loss(self, named: Tensor, compared: Tensor, marks: list[list[Mark]], first: int) -> dict[str, Tensor]:
        """Mean squared errors; hidden states [batch, n, width], marks of each row's text, which begins at `first`."""
        made = {}
        for name, hidden, head in (("named", named, self.named), ("compared", compared, self.compared)):
            chosen = [(r, mark) for r, row in enumerate(marks) for mark in row if mark.compared == (name == "compared")]
            if not chosen:
                made[name] = torch.zeros(())
                continue
            rows, at = [r for r, _ in chosen], [first + mark.at for _, mark in chosen]
            states = nn.functional.rms_norm(hidden[rows, at].float(), hidden.shape[-1:])
            wanted = torch.tensor([(mark.x, mark.y) for _, mark in chosen])
            made[name] = (head(states) - wanted).pow(2).sum(-1).mean()
        return made


def marks_of(turn: Question, scene: Scene, tokenizer: Any, answer: range, start: int) -> list[Mark]:
    """Marks of a question whose text begins at token `start`; `answer` are the tokens its answer is said from."""
    spans = tokenizer(turn.text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    found = []
    for thing, name in zip(scene.things, names(scene)):
        for match in re.finditer(rf"\bthe {name}\b", turn.text) if name is not None else ():
            last = max(i for i, (left, _) in enumerate(spans) if left < match.end())
            found.append((start + last, thing.x / (SIDE / 2) - 1, thing.y / (SIDE / 2) - 1))
    found.sort()
    made = [Mark(at, x, y, False) for at, x, y in found]
    if turn.kind == "relation" and len(found) == 2:
        (_, x, y), (_, other_x, other_y) = found
        made += [Mark(at, x - other_x, y - other_y, True) for at in answer]
    return made
