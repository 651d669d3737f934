"""First stage: the tower learns what each visual token covers, the projector to say it in the model's own words."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .scenes import Scene, random_scene
from .scenes.labels import HEADS, IGNORE, LEXICON, Labelled, label

NORM = 4.0
"""Length that projected vectors are drawn to (word embeddings of SmolLM2 have about 3)."""


WEIGHTS = {"shape": 3.0, "color": 1.5, "size": 1.0, "texture": 1.0, "motion": 1.0, "same": 0.5, "word": 0.5,
           "row": 0.7, "column": 0.7, "cell": 1.5}  # fmt: skip
"""Of the heads' losses; 0.3 for the others, whose labels are rare or easy. Convolutions know where a token is only by
the padding at the borders, and learn to hand that on only when asked."""


def pixels(images: list[np.ndarray]) -> Tensor:
    """uint8 RGB pictures [192, 192, 3] as the processor would give them: float32 [batch, 3, 192, 192] in [-1, 1]."""
    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    return stacked.float().div_(127.5).sub_(1.0)


class DenseHeads(nn.Module):
    """Linear classifiers over visual tokens; used in training only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.all = nn.Linear(width, sum(HEADS.values()))

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        parts = self.all(self.norm(features)).split(list(HEADS.values()), -1)
        return dict(zip(HEADS, parts))


class TowerStage:
    """Labels and words at once: both need one pass of tower and projector, none of the language model."""

    def __init__(self, model: Any, batch: int, seed: int, weight: float = 1.0) -> None:
        self.model, self.batch, self.seed, self.weight = model, batch, seed, weight

    def groups(self, rate: float) -> list[dict[str, Any]]:
        return [
            *tower_groups(self.model, rate),
            {"params": list(self.model.projector.parameters()), "lr": rate * 0.5},
            {"params": list(self.model.heads.parameters()), "lr": rate * 0.5},
        ]

    def _batch(self, step: int) -> list[Labelled]:
        first = self.seed + step * self.batch
        return [label(random_scene(first + i)) for i in range(self.batch)]

    def backward(self, step: int) -> dict[str, float]:
        batch = self._batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            features = self.model.features(pixels([item.image for item in batch]))
            projected = self.model.projector(features)
            logits = self.model.heads(features)
        losses = dense_loss(logits, batch) | word_loss(projected.float(), self.model.lexicon, batch)
        (self.weight * (losses["labels"] + losses["words"] + losses["norm"])).backward()  # type: ignore[no-untyped-call]
        return {name: float(value.detach()) for name, value in losses.items()}


class HeadsStage(TowerStage):
    """The heads alone, on a tower that stays: weights that ship have none, and random ones would unsettle it."""

    def groups(self, rate: float) -> list[dict[str, Any]]:
        return [{"params": list(self.model.heads.parameters()), "lr": rate}]

    def backward(self, step: int) -> dict[str, float]:
        batch = self._batch(step)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            features = self.model.features(pixels([item.image for item in batch]))
        losses = dense_loss(self.model.heads(features.float()), batch)
        losses["labels"].backward()  # type: ignore[no-untyped-call]
        return {name: float(value.detach()) for name, value in losses.items()}


def simpler(scene: Scene) -> Scene:
    """The scene without noise, blur, texture, trail and grain: shapes are learned sooner on such."""
    things = tuple(replace(thing, texture="plain", motion="still", edge=None) for thing in scene.things)
    background = replace(scene.background, rgb2=scene.background.rgb)
    return scene.with_(things=things, background=background, noise=0.0, blur=0.0)


class WindowStage(TowerStage):
    """The same on windows of 6 x 6 tokens around objects: a third of the cost for what an object looks like."""

    WINDOW, GRID, PATCH = 6, 12, 16
    _placeless = np.array([word not in ("top", "bottom", "left", "right", "center") for word in LEXICON], np.float32)

    def _batch(self, step: int) -> list[Labelled]:
        rng = np.random.default_rng((self.seed, step, 3))
        first = self.seed + step * self.batch
        scenes = [random_scene(first + i, "objects").with_(sign=None) for i in range(self.batch)]
        items = [label(simpler(scene) if i % 2 else scene) for i, scene in enumerate(scenes)]
        return [self._window(item, rng) for item in items for _ in range(2)]

    def _window(self, item: Labelled, rng: np.random.Generator) -> Labelled:
        """A window around a random covered token, without the labels that need the whole picture."""
        covered = np.flatnonzero(item.labels["background"] == IGNORE)
        centre = int(rng.choice(covered)) if len(covered) else int(rng.integers(self.GRID**2))
        shift = rng.integers(-1, 2, 2) - self.WINDOW // 2
        top, left = np.clip(np.array(divmod(centre, self.GRID)) + shift, 0, self.GRID - self.WINDOW)
        rows, columns = np.arange(top, top + self.WINDOW), np.arange(left, left + self.WINDOW)
        place = (rows[:, None] * self.GRID + columns[None]).ravel()
        side, patch = self.WINDOW * self.PATCH, self.PATCH
        image = item.image[top * patch : top * patch + side, left * patch : left * patch + side]
        labels = {name: values[place] for name, values in item.labels.items()}
        for name in ("same", "total", "row", "column", "cell"):
            labels[name] = np.full(len(place), IGNORE, np.int64)
        words = item.words[place] * self._placeless
        return Labelled(image, labels, words / np.maximum(words.sum(1, keepdims=True), 1e-6))


def tower_groups(model: Any, rate: float) -> list[dict[str, Any]]:
    """Optimizer groups of the tower: its layers' matrices by Muon, the rest by AdamW."""
    named = [(name, p) for name, p in model.tower.named_parameters() if p.requires_grad]
    matrices = [p for name, p in named if p.dim() == 2 and "embedding" not in name]
    others = [p for name, p in named if p.dim() != 2 or "embedding" in name]
    return [
        {"params": matrices, "lr": rate, "muon": True},
        {"params": others, "lr": rate * 0.5, "weight_decay": 0.0},
    ]


def dense_loss(logits: dict[str, Tensor], batch: list[Labelled]) -> dict[str, Tensor]:
    """Sum of the heads' cross entropies, and accuracy of shape and colour on objects."""
    total = torch.zeros(())
    report: dict[str, Tensor] = {}
    for name, scores in logits.items():
        target = torch.from_numpy(np.stack([item.labels[name] for item in batch])).flatten()
        flat = scores.float().flatten(0, 1)
        weight = None
        if name == "shape":
            weight = torch.ones(flat.shape[-1])
            weight[-1] = 0.1
        if bool((target != IGNORE).any()):
            part = F.cross_entropy(flat, target, weight=weight, ignore_index=IGNORE)
            total = total + part * WEIGHTS.get(name, 0.3)
        if name in ("shape", "color", "same", "texture", "word", "row", "column", "cell", "motion"):
            valid = (target != IGNORE) & ((target != flat.shape[-1] - 1) | (name != "shape"))
            hits = (flat.argmax(-1) == target)[valid].float()
            report[name] = hits.mean() if len(hits) else torch.zeros(())
    return {"labels": total} | report


def word_loss(projected: Tensor, lexicon: Tensor, batch: list[Labelled]) -> dict[str, Tensor]:
    """Cross entropy of each projected token against the embeddings of what it covers; lexicon [words, width]."""
    target = torch.from_numpy(np.stack([item.words for item in batch]))
    scores = 14 * F.normalize(projected, dim=-1) @ F.normalize(lexicon, dim=-1).T
    background = torch.from_numpy(np.stack([item.labels["background"] for item in batch])) != IGNORE
    weight = 1 - 0.75 * background.float()
    each = -(target * scores.log_softmax(-1)).sum(-1)
    return {
        "words": (each * weight).sum() / weight.sum(),
        "norm": 0.02 * (projected.norm(dim=-1) - NORM).pow(2).mean(),
    }


def lexicon_ids(tokenizer: Any) -> list[list[int]]:
    """Token ids of each word of `LEXICON`, as it stands within a sentence."""
    return [tokenizer.encode(" " + word, add_special_tokens=False) for word in LEXICON]
