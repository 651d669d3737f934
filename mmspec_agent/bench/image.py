"""``mmspec bench image``: conversations about pictures against transformers, on the same weights (SYSTEM.md M10).

Each turn is answered by transformers' processor and ``generate``, which reads the picture and the whole
conversation again, and by a session of ours, which keeps both. Nothing here is trained: drafts come from the
conversation itself, so long answers are measured with an earlier description in it, and without.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import Image

from mmspec_agent.core.errors import OptionError
from mmspec_agent.engine import Engine
from mmspec_agent.models.progress import Progress
from mmspec_agent.models.resolve import load_model
from mmspec_agent.models.scenes import random_scene

from .common import Bar, Report, Spread, environment
from .image_arms import HF, LONG, OURS, SHORT, Answered, ImageArms, Turn
from .image_lossy import accuracy_table
from .image_memory import budget_run, int8_table
from .repeats import first_difference

DTYPES = ("bf16", "fp32")
SEEDS = 910_000_000
"""Scenes of the benchmark start here; neither training nor evaluation uses them."""

NEW_TOKENS = {SHORT: 24, LONG: 160}
DESCRIBE = "Describe the picture in detail."
TURNS = (
    Turn("How many things are in the picture?", SHORT, True, False),
    Turn("What is the background?", SHORT, False, False),
    Turn(DESCRIBE, LONG, False, False),
    Turn("Is it a picture of the day or of the night?", SHORT, False, True),
    Turn("Describe the picture again, in full.", LONG, False, True),
)
ALONE = Turn(DESCRIBE, LONG, True, False)
"""The same long answer as the first and only question: no history to draft from."""

FIRST_TOKEN_BAR = 0.40
HISTORY_BAR, CLEARED_BAR, NEVER_BAR = 1.3, 1.0, 0.97


@dataclass(frozen=True)
class ImageOptions:
    """What to run: ``scenes`` conversations per dtype, each ``repeats`` times, ``pictures`` through one engine with a
    small budget, and ``lossy_scenes`` scenes for the table of compression ratios."""

    model: str = "reference-vlm"
    dtypes: tuple[str, ...] = DTYPES
    scenes: int = 4
    repeats: int = 3
    pictures: int = 200
    budget: str = "256MB"
    lossy_scenes: int = 8
    full: bool = False

    @property
    def conversations(self) -> int:
        """Conversations per dtype."""
        return max(self.scenes, 20) if self.full else self.scenes


class Measured(NamedTuple):
    """A turn of one conversation, answered by both arms as often as the conversation was held."""

    turn: Turn
    scene: int
    repeats: tuple[dict[str, Answered], ...]

    def speeds(self) -> list[float]:
        """Transformers' seconds over ours, each time; per token where a flip changed the length of the answer."""
        return [
            (answers[HF].total / max(1, len(answers[HF].tokens)))
            / (answers[OURS].total / max(1, len(answers[OURS].tokens)))
            for answers in self.repeats
        ]

    def waits(self) -> list[float]:
        """Transformers' seconds to the first token over ours, each time."""
        return [answers[HF].first_token / answers[OURS].first_token for answers in self.repeats]


def run(options: ImageOptions, progress: Progress) -> Report:
    """The whole benchmark; OptionError for options outside what is accepted."""
    strange = [dtype for dtype in options.dtypes if dtype not in DTYPES]
    if strange or not options.dtypes or min(options.scenes, options.repeats) < 1 or options.pictures < 0:
        raise OptionError(
            f"dtypes {options.dtypes}, {options.scenes} scenes, {options.repeats} repeats, {options.pictures} "
            "pictures: accepted are bf16 and fp32, at least one scene and repeat, and no negative number of pictures"
        )
    report = Report("image", {})
    for dtype in options.dtypes:
        progress.stage(f"{dtype}: loading {options.model}")
        arms = ImageArms(Engine(*load_model(options.model, dtype=dtype), visual_budget=options.budget))
        report.environment = report.environment or environment(
            model=options.model, dtypes=list(options.dtypes), device=str(arms.engine.model.device)
        )
        summarise(report, dtype, _conversations(arms, options, dtype, progress))
        _int8(report, dtype, arms.engine, progress)
        if dtype == options.dtypes[0]:
            _memory(report, arms.engine, options, progress)
    return report


def picture_of(index: int) -> Image.Image:
    """The ``index``-th picture of the benchmark."""
    return Image.fromarray(random_scene(SEEDS + index, "objects").render())


def _conversations(arms: ImageArms, options: ImageOptions, dtype: str, progress: Progress) -> list[Measured]:
    _warm_up(arms)
    scenes = options.conversations
    progress.stage(f"{dtype}: {scenes} conversations, both arms in turn", float(scenes))
    measured: list[Measured] = []
    for scene in range(scenes):
        measured += _repeated(arms, options.repeats, scene, picture_of(scene), TURNS)
        measured += _repeated(arms, options.repeats, scene, picture_of(scene + 100_000), (ALONE,))
        progress.advance_to(float(scene + 1))
    return measured


def _repeated(arms: ImageArms, repeats: int, scene: int, picture: Image.Image, turns: Sequence[Turn]) -> list[Measured]:
    """The conversation again and again, from the beginning each time: what was kept of the picture is forgotten."""
    held = []
    for repeat in range(repeats):
        arms.engine.vision.memory.clear()
        held.append(_conversation(arms, scene + repeat, picture, turns))
    return [Measured(turn, scene, answers) for turn, answers in zip(turns, zip(*held, strict=True), strict=True)]


def _conversation(
    arms: ImageArms, order: int, picture: Image.Image, turns: Sequence[Turn]
) -> list[dict[str, Answered]]:
    """Both arms' answers to every turn; who goes first alternates, beginning with transformers in an even ``order``."""
    session = arms.engine.session()
    answered = []
    for index, turn in enumerate(turns):
        text = {"type": "text", "text": turn.text}
        content: Any = [{"type": "image", "image": picture}, text] if index == 0 else turn.text
        message = {"role": "user", "content": content}
        answered.append(arms.turn(session, message, NEW_TOKENS[turn.length], hf_first=(order + index) % 2 == 0))
    return answered


def _warm_up(arms: ImageArms) -> None:
    """Untimed: first forwards allocate, and the controller learns what rows cost."""
    _conversation(arms, 0, picture_of(200_000), TURNS[:3])


def summarise(report: Report, dtype: str, measured: Sequence[Measured]) -> None:
    """Ratios, bars and details of one dtype's turns into ``report``."""
    by_kind: dict[str, list[Measured]] = defaultdict(list)
    for one in measured:
        by_kind[one.turn.kind].append(one)
    slowest = float("inf")
    for kind, turns in by_kind.items():
        speed = report.ratios[f"{dtype} {kind}: speed of ours / {HF}"] = _spread([one.speeds() for one in turns])
        wait = _spread([one.waits() for one in turns])
        report.ratios[f"{dtype} {kind}: first token, {HF} / ours"] = wait
        slowest = min(slowest, speed.median)
        if turns[0].turn.length == LONG:
            report.bars.append(_long_bar(dtype, turns[0].turn, speed))
    report.bars.append(Bar(f"{dtype}: least speed over {HF} of any kind of turn", slowest, NEVER_BAR))
    follow_ups = [one for one in measured if not one.turn.first]
    wait = report.ratios[f"{dtype} all follow-ups: first token, {HF} / ours"] = _spread(
        [one.waits() for one in follow_ups]
    )
    name = f"{dtype}: time to first token in follow-ups, share of {HF}'s"
    report.bars.append(Bar(name, 1 / wait.median, FIRST_TOKEN_BAR, at_most=True))
    _counts(report, dtype, measured)
    report.arms[dtype] = {kind: _arms_of(turns) for kind, turns in by_kind.items()}
    report.details.setdefault("turns", []).extend(_details(dtype, one) for one in measured)


def _long_bar(dtype: str, turn: Turn, speed: Spread) -> Bar:
    bar = HISTORY_BAR if turn.history else CLEARED_BAR
    return Bar(f"{dtype} {turn.kind}: speed over {HF}", speed.median, bar)


def _spread(turns: Sequence[Sequence[float]]) -> Spread:
    """Median over all times both arms answered, one just after the other; the spread is that of single turns."""
    singles = [statistics.median(ratios) for ratios in turns]
    return Spread(statistics.median(itertools.chain.from_iterable(turns)), min(singles), max(singles))


def _counts(report: Report, dtype: str, measured: Sequence[Measured]) -> None:
    answered = [answers for one in measured for answers in one.repeats]
    follow_ups = [answers[OURS] for one in measured if not one.turn.first for answers in one.repeats]
    report.bars += [
        Bar(f"{dtype}: vision passes in follow-ups", sum(a.vision_passes for a in follow_ups), 0, at_most=True),
        Bar(
            f"{dtype}: tokens prefilled in follow-ups beyond the new text",
            sum(a.prefilled - a.new_text for a in follow_ups),
            0,
            at_most=True,
        ),
    ]
    differences = [first_difference(answers[HF].tokens, answers[OURS].tokens) for answers in answered]
    compared = sum(
        len(answers[HF].tokens) if at is None else at + 1 for answers, at in zip(answered, differences, strict=True)
    )
    flips = sum(at is not None for at in differences)
    report.details.setdefault("tokens", {})[dtype] = {
        "answers": len(answered),
        "equal_to_hf": len(answered) - flips,
        "flips_per_token": flips / max(1, compared),
        "tokens_compared": compared,
    }
    if dtype == "fp32":
        share = 1 - flips / max(1, len(answered))
        report.bars.append(Bar("fp32: share of answers with the very tokens of transformers", share, 1))


def _details(dtype: str, one: Measured) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "scene": one.scene,
        "kind": one.turn.kind,
        "tokens": [len(answers[HF].tokens) for answers in one.repeats],
        "tokens_per_step": [answers[OURS].tokens_per_step for answers in one.repeats],
        "seconds": {arm: [answers[arm].total for answers in one.repeats] for arm in (HF, OURS)},
        "speeds": one.speeds(),
    }


def _arms_of(turns: Sequence[Measured]) -> dict[str, Any]:
    def arm_of(name: str) -> dict[str, Any]:
        answers = [answers[name] for one in turns for answers in one.repeats]
        return {
            "seconds_to_first_token": statistics.mean(one.first_token for one in answers),
            "seconds": statistics.mean(one.total for one in answers),
            "tokens": statistics.mean(len(one.tokens) for one in answers),
            "vision_passes": statistics.mean(one.vision_passes for one in answers),
            "tokens_prefilled": statistics.mean(one.prefilled for one in answers),
            "tokens_per_step": answers[0].tokens_per_step,
        }

    return {name: arm_of(name) for name in (HF, OURS)}


def _int8(report: Report, dtype: str, engine: Engine, progress: Progress) -> None:
    """What INT8 storage of segments saves and costs. In bf16 rounding alone flips near-ties, so the bar is fp32's."""
    progress.stage(f"{dtype}: segments in INT8")
    table = int8_table(engine, [picture_of(300_000 + i) for i in range(4)], DESCRIBE, NEW_TOKENS[LONG])
    report.details.setdefault("int8_segments", {})[dtype] = table
    if dtype == "fp32":
        report.bars.append(Bar("fp32: argmax agreement of INT8 segments", table["argmax_agreement"], 0.995))


def _memory(report: Report, engine: Engine, options: ImageOptions, progress: Progress) -> None:
    """The budget over many pictures, and compressed pictures."""
    if options.lossy_scenes:
        scenes = max(options.lossy_scenes, 100) if options.full else options.lossy_scenes
        report.details["lossy_visual_tokens"] = accuracy_table(engine, scenes, progress)
    if options.pictures:
        held = budget_run(engine, picture_of, options.pictures, progress)
        report.details["visual_budget"] = held
        report.bars += [
            Bar("visual memory: most bytes held over budget", held["most_bytes"] / held["budget"], 1, at_most=True),
            Bar("visual memory: answers that a full memory changed", held["changed_answers"], 0, at_most=True),
        ]
