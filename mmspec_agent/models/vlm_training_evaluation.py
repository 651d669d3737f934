"""What the reference model gets right on scenes it has not seen, with the picture and without."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from .scenes import Question, Scene, check_answer, check_description, descriptions, questions, random_scene
from .scenes.negation import negations
from .scenes.outside import says_outside
from .scenes.questions import ATTRIBUTES

UNSEEN = 500_000_000
"""Evaluation seeds start here; training takes its own from one thousand millions on."""
SAMPLES = 12


class Evaluation(NamedTuple):
    """What was right of what was asked; parts over different scenes can be joined.

    kinds maps each kind of question to (right, asked); stated and true count facts of full descriptions; values counts
    the right answers among equal choices; samples are (question, right answer, reply); disowned are the scenes of which
    a reply said that they are none.
    """

    scenes: int
    withheld: bool
    kinds: dict[str, tuple[int, int]]
    stated: int
    true: int
    values: Counter[tuple[str, tuple[str, ...], str]]
    samples: list[tuple[str, str, str]]
    disowned: int = 0

    @property
    def attributes(self) -> float:
        """Share of attribute questions answered right, 0 to 1."""
        return self.share(ATTRIBUTES)

    @property
    def counting(self) -> float:
        """Share of questions about a number that were answered right, 0 to 1."""
        return self.share(("count",))

    @property
    def description_facts(self) -> float:
        """Share of the facts stated in full descriptions that are true, 0 to 1."""
        return self.true / max(1, self.stated)

    def chance(self, kinds: Sequence[str]) -> float:
        """Share right for who sees no picture and always gives the most frequent answer among the same choices."""
        best: dict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
        asked = 0
        for (kind, choices, _), number in self.values.items():
            if kind in kinds:
                best[kind, choices] = max(best[kind, choices], number)
                asked += number
        return sum(best.values()) / max(1, asked)

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {
            "scenes": self.scenes,
            "attributes": self.attributes,
            "counting": self.counting,
            "description_facts": self.description_facts,
            "stated": self.stated,
            "true": self.true,
            "disowned": self.disowned,
            "chance": {"attributes": self.chance(ATTRIBUTES), "counting": self.chance(("count",))},
            "kinds": {kind: list(pair) for kind, pair in self.kinds.items()},
            "samples": [list(sample) for sample in self.samples],
        }

    def share(self, kinds: Sequence[str]) -> float:
        """Share of the questions of these kinds that were answered right, 0 to 1."""
        right = sum(self.kinds[kind][0] for kind in kinds if kind in self.kinds)
        asked = sum(self.kinds[kind][1] for kind in kinds if kind in self.kinds)
        return right / max(1, asked)


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """One evaluation of all the parts' scenes; samples are the first part's."""
    kinds: dict[str, tuple[int, int]] = {}
    for kind in sorted({kind for part in parts for kind in part.kinds}):
        pairs = [part.kinds.get(kind, (0, 0)) for part in parts]
        kinds[kind] = (sum(right for right, _ in pairs), sum(asked for _, asked in pairs))
    return Evaluation(
        scenes=sum(part.scenes for part in parts),
        withheld=parts[0].withheld,
        kinds=kinds,
        stated=sum(part.stated for part in parts),
        true=sum(part.true for part in parts),
        values=sum((part.values for part in parts), Counter()),
        samples=parts[0].samples,
        disowned=sum(part.disowned for part in parts),
    )


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
    """Greedy answers to `per_scene` questions, one full description and what is `further` asked about each of `count`
    unseen scenes.

    withhold: the model sees an even grey instead of the picture, and is asked nothing further. Counting is about one to
    five things.
    """
    parts = []
    for start in range(0, count, batch):
        scenes = [random_scene(UNSEEN + seed + i) for i in range(start, min(count, start + batch))]
        parts.append(_evaluate_batch(model, processor, scenes, withhold, per_scene))
        if progress is not None:
            progress(min(count, start + batch), count)
    return joined(parts)


def _evaluate_batch(model: Any, processor: Any, scenes: list[Scene], withhold: bool, per_scene: int) -> Evaluation:
    asked = [chosen(scene, per_scene) for scene in scenes]
    if not withhold:
        asked = [[*turns, *further(scene, turns)] for scene, turns in zip(scenes, asked)]
    pictures = [np.full((192, 192, 3), 128, np.uint8) if withhold else scene.render() for scene in scenes]
    replies = answer(model, processor, pictures, [[q.text for q in qs] for qs in asked])
    marks: dict[str, list[bool]] = defaultdict(list)
    values: Counter[tuple[str, tuple[str, ...], str]] = Counter()
    stated = true = 0
    samples: list[tuple[str, str, str]] = []
    for scene, qs, texts in zip(scenes, asked, replies):
        for question, text in zip(qs, texts):
            samples.append((question.text, question.answer, text))
            if question.kind == "description":
                of, right = check_description(scene, text)
                stated, true = stated + of, true + right
            else:
                marks[question.kind].append(check_answer(question, text))
                values[question.kind, question.choices, question.value] += 1
    kinds = {kind: (sum(right), len(right)) for kind, right in sorted(marks.items())}
    disowned = sum(any(says_outside(text) for text in texts) for texts in replies)
    return Evaluation(len(scenes), withhold, kinds, stated, true, values, samples[:SAMPLES], disowned)


def chosen(scene: Scene, number: int) -> list[Question]:
    """Up to `number` questions, attributes and counts first in turn, and the full description."""
    made = questions(scene, seed=7)
    ranked = sorted(range(len(made)), key=lambda i: (_place(made, i), i))
    return [made[i] for i in ranked[:number]] + descriptions(scene, seed=7)[:1]


def further(scene: Scene, asked: Sequence[Question], relations: int = 1, negated: int = 2) -> list[Question]:
    """Relations that are not among what is asked already, and negations: the kinds that took longest to learn."""
    related = [turn for turn in questions(scene, seed=7) if turn.kind == "relation" and turn not in asked]
    return [*related[:relations], *negations(scene, seed=7)[:negated]]


def _place(made: list[Question], index: int) -> int:
    """How many questions of the same kind come before: variety first."""
    return sum(made[i].kind == made[index].kind for i in range(index))


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
    written: list[list[int]] = [[] for _ in tails]
    alive, done = torch.arange(len(tails)), torch.zeros(len(tails), dtype=torch.bool)
    for _ in range(limit):
        out = model(input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, logits_to_keep=1)
        following = out.logits[:, -1].argmax(-1)
        for row, token in zip(alive.tolist(), following.tolist()):
            written[row].append(token)
        done = done | (following == tokenizer.eos_token_id)
        if bool(done.all()):
            break
        ids, positions, mask = following[:, None], positions[:, -1:] + 1, F.pad(mask, (0, 1), value=1)
        # Short answers end long before descriptions: rows that are done leave the batch in few large steps.
        if 2 * int(done.sum()) >= len(alive):
            going = (~done).nonzero()[:, 0]
            ids, positions, mask, alive, done = ids[going], positions[going], mask[going], alive[going], done[going]
            cache.batch_select_indices(going)
    return list(_texts(written, tokenizer))


def _texts(rows: list[list[int]], tokenizer: Any) -> Iterator[str]:
    for row in rows:
        end = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else len(row)
        yield tokenizer.decode(row[:end])
