"""Second stage: questions and descriptions through the language model, many branches behind one picture."""

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .scenes import Scene, random_scene
from .scenes.describe import descriptions
from .scenes.labels import IGNORE, Labelled, label, unlabelled
from .scenes.negation import negations
from .scenes.outside import ANSWER as OUTSIDE_ANSWER
from .scenes.outside import outside
from .scenes.questions import ATTRIBUTES, Question, questions
from .vlm_training_places import COMPARED_LAYER, NAMED_LAYER, Mark, marks_of
from .vlm_training_tower import WindowStage, dense_loss, pixels, tower_groups, word_loss

FOCUSED = (*ATTRIBUTES, "count", "text", "chart", "relation", "existence")
"""Kinds of questions that most pictures are asked."""
LATE = ("position", "motion", "texture", "noise", "relation")
"""Kinds of questions that are learned last; they are asked first about most pictures, for the text has its bounds."""

OPEN, CLOSE = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"
TOKENS = 144
YES_NO = ("yes", "no")
CUT = 0.7
"""Share of the answers to claims that end with their first word: what it is takes all the learning."""
ASIDE = 2
"""Pictures that are no scenes beside each of a batch, where the mix has such: tower and projector alone are cheap."""


class Mix(NamedTuple):
    """What a picture's sequence is made of.

    visual and text: tokens of each; described: share of pictures with a description; followed: of branches with two
    turns; focus: of pictures without the rarer kinds of questions, and of those with what is learned late first. sees:
    whether the tower goes on learning labels and words; else it stays as it is. claims: relations and negations come
    first, held to the places of what they name; outside: share of pictures that are no scenes. frozen: so
    many of the language model's first layers stay as they are, and the projector learns words alone.
    """

    visual: int
    text: int
    described: float
    followed: float
    focus: float = 0.0
    sees: bool = True
    claims: bool = False
    outside: float = 0.0
    frozen: int = 0


class Row(NamedTuple):
    """One picture's sequence: kept visual tokens, text ids, their positions, branch numbers, targets, kinds, places."""

    kept: np.ndarray
    ids: list[int]
    positions: list[int]
    branches: list[int]
    targets: list[int]
    groups: list[tuple[str, int, int]]
    marks: list[Mark]


class Picture(NamedTuple):
    """A picture, the scene whose questions it is asked, and whether it shows that scene."""

    scene: Scene
    item: Labelled
    shown: bool


class Encoder:
    """Turns scenes into rows; `head` is what stands before the picture."""

    def __init__(self, tokenizer: Any, mix: Mix) -> None:
        self._tokenizer, self.mix = tokenizer, mix
        self.head = self._ids(OPEN)
        self._close, self._end, self._next = self._ids(CLOSE), self._ids(END), self._ids("\n" + OPEN)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def row(self, picture: Picture, rng: np.random.Generator) -> Row:
        """Branches (dialogues of one or two turns) until the text is full."""
        row = Row(self._keep(picture.item, rng), [], [], [], [], [], [])
        asked = self._asked(picture.scene, rng)
        if not picture.shown:
            asked = [turn._replace(kind="outside", answer=OUTSIDE_ANSWER) for turn in asked]
        branch, index = 0, 0
        while index < len(asked):
            turns = 2 if rng.random() < self.mix.followed else 1
            self._branch(row, asked[index : index + turns], branch, picture, rng.random())
            if self.mix.text - len(row.ids) < 20:
                break
            index, branch = index + turns, branch + 1
        return row

    def _asked(self, scene: Scene, rng: np.random.Generator) -> list[Question]:
        """What a picture is asked, in order: there are more questions than its text has room for."""
        asked: list[Question] = questions(scene)
        if self.mix.claims:
            asked = _claims_first(asked, negations(scene, number=10), rng)
        if rng.random() < self.mix.focus:
            asked = [turn for turn in asked if turn.kind in FOCUSED]
        if rng.random() < self.mix.focus:
            asked = sorted(_few_of_each(asked), key=lambda turn: turn.kind not in LATE)
        if rng.random() < self.mix.described:
            made = descriptions(scene)
            share = (0.66, 0.2, 0.14)[: len(made)]
            asked.insert(0, made[int(rng.choice(len(made), p=np.array(share) / sum(share)))])
        return asked

    def _keep(self, item: Labelled, rng: np.random.Generator) -> np.ndarray:
        """Which visual tokens are shown: what covers something first, some background, all where there is room."""
        background = item.labels["background"] != IGNORE
        order = rng.random(TOKENS) + background
        spare = rng.permutation(np.flatnonzero(background))[: self.mix.visual // 6]
        order[spare] -= 2
        return np.sort(np.argsort(order)[: self.mix.visual])

    def _branch(self, row: Row, turns: list[Question], branch: int, picture: Picture, cut: float) -> bool:
        ids: list[int] = []
        targets: list[int] = []
        spans: list[tuple[str, int, int]] = []
        marks: list[Mark] = []
        for number, turn in enumerate(turns):
            before = self._next if number else []
            ask = before + self._ids(turn.text) + self._close
            answer = self._ids(turn.answer) + self._end
            if self.mix.claims and len(turns) == 1 and turn.choices == YES_NO and picture.shown and cut < CUT:
                answer = answer[:1]
            first, last = len(ids) + len(ask) - 1, len(ids) + len(ask) + len(answer) - 1
            spans.append((turn.kind + (" claim" if turn.choices == YES_NO else ""), first, last))
            if self.mix.claims and picture.shown:
                said, start = range(first, last), len(ids) + len(before)
                marks += marks_of(turn, picture.scene, self._tokenizer, said, start)
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
        row.marks.extend(mark._replace(at=offset + mark.at) for mark in marks)
        return True


def _claims_first(asked: list[Question], negated: list[Question], rng: np.random.Generator) -> list[Question]:
    """Two relations and eight negations, amid three of the other kinds; then what is left."""
    related = [turn for turn in asked if turn.kind == "relation"]
    others = [turn for turn in _few_of_each(asked, 1) if turn.kind != "relation"]
    others.sort(key=lambda turn: turn.kind != "existence")
    first = [*related[:2], *negated[:8], *others[:3]]
    return [*(first[int(i)] for i in rng.permutation(len(first))), *related[2:], *negated[8:], *others[3:]]


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
        self.model.language.freeze_below(self.mix.frozen)
        lora = {name: p for name, p in self.model.language.named_parameters() if p.requires_grad}
        groups: list[dict[str, Any]] = [
            {"params": [p for name, p in lora.items() if name.endswith("_a")], "lr": rate * 0.5, "weight_decay": 0.0},
            {"params": [p for name, p in lora.items() if name.endswith("_b")], "lr": rate, "weight_decay": 0.0},
            {"params": list(self.model.projector.parameters()), "lr": rate * 0.4},
        ]
        if self.mix.claims:
            groups.append({"params": list(self.model.places.parameters()), "lr": 3e-3, "weight_decay": 0.0})
        if self.mix.sees:
            groups.append({"params": list(self.model.heads.parameters()), "lr": rate * 0.4})
            groups += tower_groups(self.model, rate * 0.12)
        return groups

    def backward(self, step: int) -> dict[str, float]:
        rng = np.random.default_rng((self.seed, step))
        pictures = [self._picture(self.seed + step * self.batch + i, rng) for i in range(self.batch)]
        items = [picture.item for picture in pictures]
        rows = [self.encoder.row(picture, rng) for picture in pictures]
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(self.mix.sees):
            features = self.model.features(pixels([item.image for item in items]))
        with torch.autocast("cpu", torch.bfloat16):
            # What answers teach reaches the projector, not the tower: its few pictures a step would only unsettle it.
            projected = self.model.projector(features.detach())
        seen_by_text = projected.detach() if self.mix.frozen else projected
        inputs, positions, bias = assemble(rows, seen_by_text, self.model.language.embedding, self.encoder)
        hidden, named, compared = self.model.language.states(inputs, positions, bias, (NAMED_LAYER, COMPARED_LAYER))
        loss, report = answer_loss(hidden, rows, self.encoder, self.model.language.embedding, self.vocabulary, rng)
        beside, seen = self._beside(features, projected, items, self.seed + step * ASIDE * self.batch)
        first = len(self.encoder.head) + self.mix.visual
        places = self.model.places.loss(named, compared, [row.marks for row in rows], first)
        (loss + beside + sum(places.values())).backward()
        if self.mix.sees:
            seen["close"] = self._windows.backward(step)["shape"]
        told = {name: float(value.detach()) for name, value in places.items()} if self.mix.claims else {}
        return seen | told | {"loss": float(loss.detach())} | report

    def _picture(self, seed: int, rng: np.random.Generator) -> Picture:
        """The scene of the seed (in a mix of claims the fuller of two), or a picture that is none."""
        scene = random_scene(seed)
        if self.mix.claims:
            scene = max(scene, random_scene(seed + 10_000_000), key=lambda scene: len(scene.things))
        if rng.random() < self.mix.outside:
            return Picture(scene, unlabelled(outside(seed)), False)
        return Picture(scene, label(scene), True)

    def _beside(
        self, features: Tensor, projected: Tensor, items: list[Labelled], first: int
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss of words, and of labels where the tower goes on learning; further pictures are seeded from first."""
        if not self.mix.sees:
            words = word_loss(projected.float(), self.model.lexicon, items)
            return 0.5 * words["words"] + words["norm"] + self._strange(first), {}
        with torch.autocast("cpu", torch.bfloat16):
            worded = self.model.projector(features)
            logits = self.model.heads(features)
        dense = dense_loss(logits, items) | word_loss(worded.float(), self.model.lexicon, items)
        return dense["labels"] + 0.5 * dense["words"] + dense["norm"], {"seen": float(dense["shape"])}

    def _strange(self, first: int) -> Tensor:
        """The loss of words on further pictures that are no scenes: the projector tells them before the text does."""
        if not self.mix.outside:
            return torch.zeros(())
        items = [unlabelled(outside(first + i)) for i in range(ASIDE * self.batch)]
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                features = self.model.features(pixels([item.image for item in items]))
            projected = self.model.projector(features)
        words = word_loss(projected.float(), self.model.lexicon, items)
        return 0.5 * words["words"] + words["norm"]


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
    found: set[int] = set(tokenizer.encode(OUTSIDE_ANSWER + END, add_special_tokens=False))
    for seed in range(scenes):
        scene = random_scene(seed)
        for turn in [*questions(scene), *negations(scene), *descriptions(scene)]:
            found.update(tokenizer.encode(turn.answer + END, add_special_tokens=False))
    return torch.tensor(sorted(found))
