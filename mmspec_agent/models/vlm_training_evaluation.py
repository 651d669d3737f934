"""What the reference model gets right on scenes it has not seen, with the picture and without."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .scenes import Question, Scene, check_answer, check_description, descriptions, questions, random_scene
from .scenes.questions import ATTRIBUTES

UNSEEN = 500_000_000
"""Evaluation seeds start here; training takes its own from one thousand millions on."""


class Evaluation(NamedTuple):
    """Shares between 0 and 1; kinds maps each kind of question to (right, asked)."""

    scenes: int
    withheld: bool
    attributes: float
    counting: float
    description_facts: float
    stated: int
    kinds: dict[str, tuple[int, int]]
    samples: list[tuple[str, str, str]]

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {**self._asdict(), "kinds": {k: list(v) for k, v in self.kinds.items()}}


def evaluate(
    model: Any,
    processor: Any,
    count: int = 100,
    seed: int = 0,
    withhold: bool = False,
    *,
    per_scene: int = 7,
    batch: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Greedy answers to `per_scene` questions and one full description for each of `count` unseen scenes.

    withhold: the model sees an even grey instead of the picture. Counting is about one to five things.
    """
    kinds: dict[str, list[bool]] = defaultdict(list)
    stated = true = 0
    samples: list[tuple[str, str, str]] = []
    for start in range(0, count, batch):
        scenes = [random_scene(UNSEEN + seed + i) for i in range(start, min(count, start + batch))]
        asked = [chosen(scene, per_scene) for scene in scenes]
        pictures = [np.full((192, 192, 3), 128, np.uint8) if withhold else scene.render() for scene in scenes]
        replies = answer(model, processor, pictures, [[q.text for q in qs] for qs in asked])
        for scene, qs, texts in zip(scenes, asked, replies):
            for question, text in zip(qs, texts):
                if question.kind == "description":
                    of, right = check_description(scene, text)
                    stated, true = stated + of, true + right
                else:
                    kinds[question.kind].append(check_answer(question, text))
                if len(samples) < 12:
                    samples.append((question.text, question.answer, text))
        if progress is not None:
            progress(min(count, start + batch), count)
    totals = {kind: (sum(marks), len(marks)) for kind, marks in sorted(kinds.items())}
    attributes = _share(totals, ATTRIBUTES)
    return Evaluation(
        count, withhold, attributes, _share(totals, ("count",)), true / max(1, stated), stated, totals, samples
    )


def chosen(scene: Scene, number: int) -> list[Question]:
    """Up to `number` questions, attributes and counts first in turn, and the full description."""
    made = questions(scene, seed=7)
    ranked = sorted(range(len(made)), key=lambda i: (_place(made, i), i))
    return [made[i] for i in ranked[:number]] + descriptions(scene, seed=7)[:1]


def _place(made: list[Question], index: int) -> int:
    """How many questions of the same kind come before: variety first."""
    return sum(made[i].kind == made[index].kind for i in range(index))


def _share(totals: dict[str, tuple[int, int]], kinds: Sequence[str]) -> float:
    right = sum(totals[kind][0] for kind in kinds if kind in totals)
    asked = sum(totals[kind][1] for kind in kinds if kind in totals)
    return right / max(1, asked)


@torch.no_grad()
def answer(
    model: Any, processor: Any, pictures: list[np.ndarray], asked: list[list[str]], max_new_tokens: int = 150
) -> list[list[str]]:
    """Greedy answers to several questions on each picture; the picture is prefilled once for all of its questions."""
    prompts = [_prompts(processor, texts) for texts in asked]
    head = prompts[0][0][0]
    inputs = processor(text=[head] * len(pictures), images=list(pictures), return_tensors="pt")
    pixel_values = inputs["pixel_values"].to(model.dtype)
    first = model(input_ids=inputs["input_ids"], pixel_values=pixel_values, logits_to_keep=1)
    repeats = max(len(texts) for texts in asked)
    cache = first.cache
    cache.batch_repeat_interleave(repeats)
    tails = [tail for row in prompts for _, tail in (row + [row[-1]] * (repeats - len(row)))]
    texts = _continue(model, processor.tokenizer, cache, inputs["input_ids"].shape[1], tails, max_new_tokens)
    grouped = [texts[i : i + repeats] for i in range(0, len(texts), repeats)]
    return [row[: len(of)] for row, of in zip(grouped, asked)]


def _prompts(processor: Any, texts: list[str]) -> list[tuple[str, str]]:
    """Each chat prompt cut behind the picture."""
    made = []
    for text in texts:
        content = [{"type": "image"}, {"type": "text", "text": text}]
        prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        head, token, tail = prompt.partition(processor.image_token)
        made.append((head + token, tail))
    return made


def _continue(model: Any, tokenizer: Any, cache: Any, past: int, tails: list[str], limit: int) -> list[str]:
    """Greedy continuations of a batch of tails behind cached prefixes of equal length."""
    encoded = [tokenizer.encode(tail, add_special_tokens=False) for tail in tails]
    width = max(len(ids) for ids in encoded)
    ids = torch.tensor([[0] * (width - len(row)) + row for row in encoded])
    tail_mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in encoded])
    mask = torch.cat([torch.ones(len(tails), past, dtype=torch.long), tail_mask], 1)
    positions = past - 1 + tail_mask.cumsum(1).clamp(min=1)
    written: list[Tensor] = []
    done = torch.zeros(len(tails), dtype=torch.bool)
    for _ in range(limit):
        out = model(input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, logits_to_keep=1)
        ids = out.logits[:, -1].argmax(-1, keepdim=True)
        written.append(ids[:, 0])
        done |= ids[:, 0] == tokenizer.eos_token_id
        if bool(done.all()):
            break
        mask = torch.cat([mask, torch.ones(len(tails), 1, dtype=torch.long)], 1)
        positions = positions[:, -1:] + 1
    return list(_texts(torch.stack(written, 1).tolist(), tokenizer))


def _texts(rows: list[list[int]], tokenizer: Any) -> Iterator[str]:
    for row in rows:
        end = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else len(row)
        yield tokenizer.decode(row[:end])
