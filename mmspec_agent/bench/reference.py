"""What `reference-vlm` gets right on scenes it has not seen (SYSTEM.md M8), with the picture and without."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mmspec_agent.models.progress import Progress, Silent
from mmspec_agent.models.reference_vlm import find_parts, load_reference_vlm
from mmspec_agent.models.scenes.questions import ATTRIBUTES
from mmspec_agent.models.vlm_training_evaluation import Evaluation, evaluate, joined
from mmspec_agent.models.vlm_training_outside import evaluate_outside
from mmspec_agent.models.vlm_training_run import default_workers

from .common import Bar, Report, environment

CHUNK = 16
"""Scenes a process takes at a time."""

MARGIN = 0.05
"""How far above chance answers without a picture may lie: they are guesses, and guesses have luck."""


@dataclass(frozen=True)
class ReferenceOptions:
    """scenes: how many; full: at least 1,000; workers: processes of one thread, one a core by default; weights: a
    `reference_vlm.safetensors`, the shipped one by default."""

    scenes: int = 100
    full: bool = False
    workers: int | None = None
    weights: Path | None = None

    @property
    def count(self) -> int:
        return max(self.scenes, 1000) if self.full else self.scenes


ARMS = ("seen", "withheld", "outside")
OUTSIDE = 60
"""Pictures shown that are no scenes."""


class Chunk(NamedTuple):
    """So many of the unseen scenes (arm `seen` or `withheld`) or of the other pictures (`outside`), from `seed` on."""

    arm: str
    seed: int
    scenes: int


def run(options: ReferenceOptions, progress: Progress | None = None) -> Report:
    """Evaluate and hold the result against the bars. Raises ModelNotFound or ModelError before any work."""
    progress = progress or Silent()
    find_parts(options.weights)
    chunks = [
        Chunk(arm, seed, min(CHUNK, count - seed))
        for arm, count in zip(ARMS, (options.count, options.count, OUTSIDE))
        for seed in range(0, count, CHUNK)
    ]
    workers = options.workers or default_workers()
    progress.stage(f"{options.count:,} scenes, with the picture and without", 2.0 * options.count + OUTSIDE)
    parts: dict[Chunk, Evaluation] = {}
    for chunk, part in _evaluated(chunks, workers, options.weights):
        parts[chunk] = part
        progress.advance_to(float(sum(chunk.scenes for chunk in parts)))
    arms = {arm: joined([parts[chunk] for chunk in chunks if chunk.arm == arm]) for arm in ARMS}
    return Report(
        "reference",
        environment(workers=workers, weights=str(options.weights or "shipped"), scenes=options.count),
        arms={arm: result.as_dict() for arm, result in arms.items()},
        bars=bars(**arms),
    )


def bars(seen: Evaluation, withheld: Evaluation, outside: Evaluation) -> list[Bar]:
    """The bars of the reference model; without its picture it must not do better than who guesses well, and of what is
    no scene it must say so."""
    guessed, counted = (round(withheld.chance(kinds) + MARGIN, 3) for kinds in (ATTRIBUTES, ("count",)))
    return [
        Bar("attribute questions answered right", seen.attributes, 0.90),
        Bar("counting answered right", seen.counting, 0.80),
        Bar("stated facts of full descriptions that are true", seen.description_facts, 0.90),
        Bar("yes and no to negated questions answered right", seen.share(("negation",)), 0.90),
        Bar("relations of two things answered right", seen.share(("relation",)), 0.80),
        Bar("pictures that are no scenes, told so", outside.share(tuple(outside.kinds)), 0.90),
        Bar("scenes taken for something else", seen.disowned / max(1, seen.scenes), 0.01, at_most=True),
        Bar("attribute questions, picture withheld", withheld.attributes, guessed, at_most=True),
        Bar("counting, picture withheld", withheld.counting, counted, at_most=True),
    ]


def _evaluated(chunks: list[Chunk], workers: int, weights: Path | None) -> Iterator[tuple[Chunk, Evaluation]]:
    """Results in the order they come."""
    if workers == 1:
        model, processor = load_reference_vlm(torch.bfloat16, weights=weights)
        for chunk in chunks:
            yield chunk, _evaluate(model, processor, chunk)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_open, initargs=(weights,)) as pool:
        futures = {pool.submit(_work, chunk): chunk for chunk in chunks}
        for future in as_completed(futures):
            yield futures[future], future.result()


_opened: tuple[Any, Any] | None = None


def _open(weights: Path | None) -> None:
    global _opened
    torch.set_num_threads(1)
    _opened = load_reference_vlm(torch.bfloat16, weights=weights)


def _work(chunk: Chunk) -> Evaluation:
    assert _opened is not None
    return _evaluate(*_opened, chunk)


def _evaluate(model: Any, processor: Any, chunk: Chunk) -> Evaluation:
    if chunk.arm == "outside":
        return evaluate_outside(model, processor, chunk.scenes, chunk.seed)
    return evaluate(model, processor, chunk.scenes, chunk.seed, chunk.arm == "withheld")
