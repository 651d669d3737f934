"""Second stage: questions and descriptions through the language model, many branches behind one picture."""

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .scenes import Scene, random_scene
from .scenes.describe import descriptions
from .scenes.labels import IGNORE, Labelled, label
from .scenes.questions import ATTRIBUTES, Question, questions
from .vlm_training_tower import WindowStage, dense_loss, pixels, tower_groups, word_loss

FOCUSED = (*ATTRIBUTES, "count", "text", "chart", "relation", "existence")
"""Kinds of questions that most pictures are asked."""
LATE = ("position", "motion", "texture", "noise", "relation")
"""Kinds of questions that are learned last; they are asked first about most pictures, for the text has its bounds."""

OPEN, CLOSE = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"
TOKENS = 144


class Mix(NamedTuple):
    """What a picture's sequence is made of.

    visual and text: tokens of each; described: share of pictures with a description; followed: of branches with two
    turns; focus: of pictures without the rarer kinds of questions, and of those with what is learned late first. sees:
    whether the tower goes on learning labels and words; else it stays as it is.
    """

    visual: int
    text: int
    described: float
    followed: float
    focus: float = 0.0
    sees: bool = True


class Row(NamedTuple):
    """One picture's sequence: kept visual tokens, text ids, their positions, branch numbers, targets, kinds."""

    kept: np.ndarray
    ids: list[int]
    positions: list[int]
    branches: list[int]
    targets: list[int]
    groups: list[tuple[str, int, int]]


class Encoder:
    """Turns scenes into rows; `head` is what stands before the picture."""

    def __init__(self, tokenizer: Any, mix: Mix) -> None:
        self._tokenizer, self.mix = tokenizer, mix
        self.head = self._ids(OPEN)
        self._close, self._end, self._next = self._ids(CLOSE), self._ids(END), self._ids("\n" + OPEN)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def row(self, scene: Scene, item: Labelled, rng: np.random.Generator) -> Row:
        """Branches (dialogues of one or two turns) until the text is full."""
        row = Row(self._keep(item, rng), [], [], [], [], [])
        asked: list[Question] = questions(scene)
        if rng.random() < self.mix.focus:
            asked = [turn for turn in asked if turn.kind in FOCUSED]
        if rng.random() < self.mix.focus:
            asked = sorted(_few_of_each(asked), key=lambda turn: turn.kind not in LATE)
        if rng.random() < self.mix.described:
            made = descriptions(scene)
            share = (0.66, 0.2, 0.14)[: len(made)]
            asked.insert(0, made[int(rng.choice(len(made), p=np.array(share) / sum(share)))])
        branch, index = 0, 0
        while index < len(asked):
            turns = 2 if rng.random() < self.mix.followed else 1
            self._branch(row, asked[index : index + turns], branch)
            if self.mix.text - len(row.ids) < 20:
                break
            index, branch = index + turns, branch + 1
        return row

    def _keep(self, item: Labelled, rng: np.random.Generator) -> np.ndarray:
        """Which visual tokens are shown: what covers something first, some background, all where there is room."""
        background = item.labels["background"] != IGNORE
        order = rng.random(TOKENS) + background
        spare = rng.permutation(np.flatnonzero(background))[: self.mix.visual // 6]
        order[spare] -= 2
        return np.sort(np.argsort(order)[: self.mix.visual])

    def _branch(self, row: Row, turns: list[Question], branch: int) -> bool:
        ids: list[int] = []
        targets: list[int] = []
        spans: list[tuple[str, int, int]] = []
        for number, turn in enumerate(turns):
            ask = (self._next if number else []) + self._ids(turn.text) + self._close
            answer = self._ids(turn.answer) + self._end
            spans.append((turn.kind, len(ids) + len(ask) - 1, len(ids) + len(ask) + len(answer) - 1))
            ids += ask + answer
            targets += [IGNORE] * len(ask) + answer
        if len(row.ids) + len(ids) > self.mix.text:
            return False
        offset, start = len(row.ids), len(self.head) + TOKENS
        row.groups.extend((kind, offset + a, offset + b) for kind, a, b in spans)
        row.ids.extend(ids)
        row.positions.extend(range(start, start + len(ids)))
        row.branches.extend([branch] * len(ids))
        row.targets.extend([*targets[1:], IGNORE])
        return True


def _few_of_each(asked: list[Question], few: int = 2) -> list[Question]:
    """The questions without those whose kind came `few` times already: pairs of things make many relations."""
    seen: Counter[str] = Counter()
    kept = []
    for turn in asked:
        seen[turn.kind] += 1
        if seen[turn.kind] <= few:
            kept.append(turn)
    return kept


class LanguageStage:
    """Projector and low-rank changes, on answers; where the mix says so, the tower on labels and words beside."""

    def __init__(self, model: Any, tokenizer: Any, batch: int, seed: int, mix: Mix) -> None:
        self.model, self.batch, self.seed, self.mix = model, batch, seed, mix
        self.encoder = Encoder(tokenizer, mix)
        self.vocabulary = answer_vocabulary(tokenizer)
        self._windows = WindowStage(model, batch, seed + 10_000_000)

    def groups(self, rate: float) -> list[dict[str, Any]]:
        lora = dict(self.model.language.named_parameters())
        groups: list[dict[str, Any]] = [
            {"params": [p for name, p in lora.items() if name.endswith("_a")], "lr": rate * 0.5, "weight_decay": 0.0},
            {"params": [p for name, p in lora.items() if name.endswith("_b")], "lr": rate, "weight_decay": 0.0},
            {"params": list(self.model.projector.parameters()), "lr": rate * 0.4},
        ]
        if self.mix.sees:
            groups.append({"params": list(self.model.heads.parameters()), "lr": rate * 0.4})
            groups += tower_groups(self.model, rate * 0.12)
        return groups

    def backward(self, step: int) -> dict[str, float]:
        rng = np.random.default_rng((self.seed, step))
        scenes = [random_scene(self.seed + step * self.batch + i) for i in range(self.batch)]
        items = [label(scene) for scene in scenes]
        rows = [self.encoder.row(scene, item, rng) for scene, item in zip(scenes, items)]
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(self.mix.sees):
            features = self.model.features(pixels([item.image for item in items]))
        with torch.autocast("cpu", torch.bfloat16):
            # What answers teach reaches the projector, not the tower: its few pictures a step would only unsettle it.
            projected = self.model.projector(features.detach())
        inputs, positions, bias = assemble(rows, projected, self.model.language.embedding, self.encoder)
        hidden = self.model.language(inputs, positions, bias)
        loss, report = answer_loss(hidden, rows, self.encoder, self.model.language.embedding, self.vocabulary, rng)
        beside, seen = self._beside(features, projected, items)
        (loss + beside).backward()  # type: ignore[no-untyped-call]
        if self.mix.sees:
            seen["close"] = self._windows.backward(step)["shape"]
        return seen | {"loss": float(loss.detach())} | report

    def _beside(self, features: Tensor, projected: Tensor, items: list[Labelled]) -> tuple[Tensor, dict[str, float]]:
        """The loss of words, and of labels where the tower goes on learning."""
        if not self.mix.sees:
            words = word_loss(projected.float(), self.model.lexicon, items)
            return 0.5 * words["words"] + words["norm"], {}
        with torch.autocast("cpu", torch.bfloat16):
            worded = self.model.projector(features)
            logits = self.model.heads(features)
        dense = dense_loss(logits, items) | word_loss(worded.float(), self.model.lexicon, items)
        return dense["labels"] + 0.5 * dense["words"] + dense["norm"], {"seen": float(dense["shape"])}


def assemble(rows: list[Row], projected: Tensor, embedding: Tensor, encoder: Encoder) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings [batch, n, width] bf16, positions [batch, n], bias [batch, n, n] (branches see the picture only)."""
    head, visual = len(encoder.head), encoder.mix.visual
    prefix, n = head + visual, head + visual + encoder.mix.text
    ids = torch.zeros(len(rows), n, dtype=torch.long)
    positions = torch.zeros(len(rows), n, dtype=torch.long)
    branches = torch.full((len(rows), n), -2, dtype=torch.long)
    branches[:, :prefix] = -1
    for r, row in enumerate(rows):
        ids[r, :head] = torch.tensor(encoder.head)
        positions[r, :prefix] = torch.tensor([*range(head), *(row.kept + head)])
        end = prefix + len(row.ids)
        ids[r, prefix:end] = torch.tensor(row.ids, dtype=torch.long)
        positions[r, prefix:end] = torch.tensor(row.positions, dtype=torch.long)
        branches[r, prefix:end] = torch.tensor(row.branches, dtype=torch.long)
    words = embedding[ids]
    kept = torch.from_numpy(np.stack([row.kept for row in rows]))
    seen = projected.to(words.dtype).gather(1, kept[..., None].expand(-1, -1, projected.shape[-1]))
    inputs = torch.cat([words[:, :head], seen, words[:, prefix:]], 1)
    same = (branches[:, :, None] == branches[:, None, :]) | (branches[:, None, :] == -1)
    allowed = same & torch.ones(n, n, dtype=torch.bool).tril()
    bias = torch.zeros(allowed.shape, dtype=words.dtype).masked_fill_(~allowed, -1e4)
    return inputs, positions, bias


def answer_loss(
    hidden: Tensor, rows: list[Row], encoder: Encoder, embedding: Tensor, vocabulary: Tensor, rng: np.random.Generator
) -> tuple[Tensor, dict[str, float]]:
    """Cross entropy at answer positions, against the answers' words and 2,000 others; share of right answers a kind."""
    prefix = len(encoder.head) + encoder.mix.visual
    targets = torch.full(hidden.shape[:2], IGNORE, dtype=torch.long)
    for r, row in enumerate(rows):
        targets[r, prefix : prefix + len(row.targets)] = torch.tensor(row.targets, dtype=torch.long)
    where = targets != IGNORE
    others = torch.from_numpy(rng.integers(0, len(embedding), 2000))
    words = torch.unique(torch.cat([vocabulary, others, targets[where]]))
    scores = (hidden[where] @ embedding[words].T).float()
    wanted = torch.searchsorted(words, targets[where])
    loss = F.cross_entropy(scores, wanted)
    right = torch.ones(hidden.shape[:2], dtype=torch.bool)
    right[where] = scores.detach().argmax(-1) == wanted
    kinds: dict[str, list[float]] = defaultdict(list)
    for r, row in enumerate(rows):
        for kind, start, end in row.groups:
            span = right[r, prefix + start : prefix + end].float()
            kinds[kind].append(float(span.mean() if kind == "description" else span.min()))
    return loss, {kind: float(np.mean(values)) for kind, values in kinds.items()}


def answer_vocabulary(tokenizer: Any, scenes: int = 400) -> Tensor:
    """Ids of all tokens that answers are made of, seen on some scenes."""
    found: set[int] = set()
    for seed in range(scenes):
        scene = random_scene(seed)
        for turn in [*questions(scene), *descriptions(scene)]:
            found.update(tokenizer.encode(turn.answer + END, add_special_tokens=False))
    return torch.tensor(sorted(found))
