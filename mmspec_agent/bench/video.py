"""``mmspec bench video``: answers about a stream against transformers, on the same frames and weights (SYSTEM.md M10).

Filmed scenes have ground truth; every arm answers every frame, in turn. The first frame of a scene is left out of the
times: on a stream of hours it is one of thousands. "Frame counted" is the time from a frame's arrival to the end of
the answer; "frame not counted" is what somebody waits who asks about a frame that has been prefilled on arrival.
transformers cannot prefill on arrival, so its time is the whole one in both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mmspec_agent.core.errors import OptionError
from mmspec_agent.models.progress import Progress
from mmspec_agent.models.resolve import load_model
from mmspec_agent.models.scenes.check import check_description
from mmspec_agent.models.scenes.questions import check_answer
from mmspec_agent.video.gate import measure_gate

from .common import Bar, Report, Spread, environment, take_turns
from .repeats import first_difference
from .video_arms import HISTORY, NAMES, OURS, PLAIN, STATELESS, Answered, Arm, VideoArms
from .video_hours import hours
from .video_scenes import CHANGES, DESCRIBE, FPS, KINDS, Film, Shot, clip_film, film

DTYPES = ("bf16", "fp32")
SPEED_BARS = {"static_noise": 5.0, "slow_change": 2.5}
STEP_BARS = {"static_noise": 8.0, "slow_change": 3.5}
BUSY_BAR = 0.97
GATE_BAR = 3.0
"""Milliseconds of one core (SYSTEM.md V2)."""

HISTORY_FRAMES = 3
"""Growing histories are answered for the first frames only: their cost grows with the square."""


@dataclass(frozen=True)
class VideoOptions:
    """What to run: ``frames`` a scene; answers are cut at ``new_tokens``; ``hours`` frames through a tiny model.

    Speed is a bar under the first dtype, equality under fp32, which as a second dtype gets two frames fewer.
    """

    model: str = "reference-vlm"
    dtypes: tuple[str, ...] = DTYPES
    kinds: tuple[str, ...] = KINDS
    frames: int = 6
    new_tokens: int = 30
    window: int | None = None
    clips: tuple[Path, ...] = ()
    hours: int = 500
    full: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kinds) - set(KINDS))
        if unknown:
            raise OptionError(f"unknown scene {unknown[0]!r}; accepted are {', '.join(KINDS)}")
        if self.frames < 4:
            raise OptionError(f"frames={self.frames} was given; accepted are 4 or more, half of them after a change")

    def frames_of(self, dtype: str) -> int:
        """Frames of each scene under a dtype."""
        frames = self.frames * (2 if self.full else 1)
        return frames if dtype == self.dtypes[0] else max(4, frames - 2)


@dataclass
class Row:
    """What every arm said about one frame; ``facts`` are answers to the question whose answer is known."""

    shot: Shot
    answers: dict[str, Answered] = field(default_factory=dict)
    facts: dict[str, Answered] = field(default_factory=dict)


@dataclass
class Filmed:
    """All rows of one film."""

    film: Film
    rows: list[Row]

    def seconds(self, arm: str, frame_counted: bool) -> list[float]:
        """Per answer, first frame left out."""
        found = [row.answers[arm] for row in self.rows[1:] if arm in row.answers]
        whole = frame_counted or arm in (STATELESS, HISTORY)
        return [one.total_s if whole else one.answer_s for one in found]


def run(options: VideoOptions, progress: Progress) -> Report:
    """The whole benchmark."""
    report = Report("video", environment(model=options.model, window=options.window, tokens=options.new_tokens))
    for dtype in options.dtypes:
        frames = options.frames_of(dtype)
        progress.stage(f"loading {options.model} in {dtype}")
        model, processor = load_model(options.model, dtype=dtype)
        arms = VideoArms(model, processor, options.new_tokens, options.window)
        films = [film(kind, frames) for kind in options.kinds]
        films += [clip_film(path, frames) for path in options.clips]
        _warm_up(arms, films[0].shots[0])
        filmed = [_shoot(arms, one, dtype, progress) for one in films]
        summarise(report, dtype, filmed, with_speed=dtype == options.dtypes[0])
    _gate(report, progress)
    if options.hours:
        _hours(report, 10_000 if options.full else options.hours, progress)
    return report


def _warm_up(arms: VideoArms, shot: Shot) -> None:
    """Untimed: first forwards allocate, and the controller learns the cost of a few row counts."""
    for name in NAMES:
        arm = arms.open(name)
        for _ in range(3 if name == OURS else 1):
            arm.answer(shot._replace(image=shot.image.copy()), DESCRIBE)


def _shoot(arms: VideoArms, one: Film, dtype: str, progress: Progress) -> Filmed:
    opened: dict[str, Arm] = {name: arms.open(name) for name in NAMES}
    progress.stage(f"{dtype}: {one.kind}, {len(one.shots)} frames, {len(NAMES)} arms in turn", float(len(one.shots)))
    rows = []
    for index, shot in enumerate(one.shots):
        row = Row(shot)
        asked = {name: arm for name, arm in opened.items() if name != HISTORY or index < HISTORY_FRAMES}
        calls: dict[str, Callable[[], Answered]] = {
            name: partial(arm.answer, shot, DESCRIBE) for name, arm in asked.items()
        }
        row.answers = {name: timed.value for name, timed in take_turns(calls, index).items()}
        if shot.fact is not None:
            row.facts = {name: opened[name].answer(shot, shot.fact.text) for name in (PLAIN, OURS)}
        rows.append(row)
        progress.advance_to(float(index + 1))
    return Filmed(one, rows)


def summarise(report: Report, dtype: str, films: Sequence[Filmed], with_speed: bool = True) -> None:
    """Ratios, bars (of speed where asked for) and details of one dtype."""
    for filmed in films:
        kind = filmed.film.kind
        name = f"{dtype} {kind}"
        over = {counted: _speed(filmed, OURS, STATELESS, counted) for counted in (True, False)}
        plain = {counted: _speed(filmed, OURS, PLAIN, counted) for counted in (True, False)}
        report.ratios[f"{name}: ours / {STATELESS}, frame counted"] = over[True]
        report.ratios[f"{name}: ours / {STATELESS}, frame not counted"] = over[False]
        report.ratios[f"{name}: ours / {PLAIN}, frame counted"] = plain[True]
        report.ratios[f"{name}: ours / {PLAIN}, frame not counted"] = plain[False]
        if with_speed:
            _speed_bars(report, name, filmed, over, plain)
        if kind in CHANGES:
            report.bars.append(Bar(f"{name}: answer changes at the right frame", float(changes_rightly(filmed)), 1.0))
        report.arms.setdefault(dtype, {})[kind] = {arm: _arm(filmed, arm) for arm in NAMES}
        report.details.setdefault("frames", []).extend(_details(dtype, filmed))
    _equality(report, dtype, films)


def _speed_bars(report: Report, name: str, filmed: Filmed, over: dict[bool, Spread], plain: dict[bool, Spread]) -> None:
    kind = filmed.film.kind
    for counted, words in ((True, "frame counted"), (False, "frame not counted")):
        if kind in SPEED_BARS:
            report.bars.append(Bar(f"{name}: speed over {STATELESS}, {words}", over[counted].median, SPEED_BARS[kind]))
        if kind == "busy":
            report.bars.append(Bar(f"{name}: speed over {PLAIN}, {words}", plain[counted].median, BUSY_BAR))
    if kind in STEP_BARS:
        report.bars.append(Bar(f"{name}: tokens per step", tokens_per_step(filmed), STEP_BARS[kind]))


def _speed(filmed: Filmed, arm: str, over: str, counted: bool) -> Spread:
    """Per frame, how many times as fast ``arm`` is as ``over``."""
    pairs = zip(filmed.seconds(over, counted), filmed.seconds(arm, counted))
    return Spread.of([theirs / max(mine, 1e-9) for theirs, mine in pairs])


def tokens_per_step(filmed: Filmed) -> float:
    """Tokens of ours per forward, the one that carries the question included, over all frames but the first."""
    found = [row.answers[OURS] for row in filmed.rows[1:]]
    return sum(len(one.tokens) for one in found) / max(1, sum(one.forwards for one in found))


def changes_rightly(filmed: Filmed, arm: str = OURS) -> bool:
    """Whether the answer to the known question is right just before the change and right at it."""
    at = filmed.film.change
    assert at is not None
    return all(_is_right(filmed.rows[index], arm) for index in (at - 1, at))


def _is_right(row: Row, arm: str) -> bool:
    return row.shot.fact is not None and check_answer(row.shot.fact, row.facts[arm].text)


def lags(seconds: Sequence[float], fps: float = FPS, length_s: float = 120.0) -> list[float]:
    """Lag of every answer of a live stream with the newest-frame policy, if answers take ``seconds`` in turn."""
    found: list[float] = []
    now, turn = 0.0, 0
    while now < length_s:
        frame = int(now * fps + 1e-9) / fps
        done = now + seconds[turn % len(seconds)]
        found.append(done - frame)
        # The next frame is taken at once if one came meanwhile, or when it comes.
        following = frame + 1.0 / fps
        now, turn = max(done, following), turn + 1
    return found


def _arm(filmed: Filmed, arm: str) -> dict[str, Any]:
    found = [row.answers[arm] for row in filmed.rows if arm in row.answers]
    timed = filmed.seconds(arm, True)
    waited = lags(timed) if timed else [float("nan")]
    ordered = sorted(waited)
    return {
        "answers": len(found),
        "seconds_frame_counted": statistics.median(timed) if timed else float("nan"),
        "seconds_frame_not_counted": statistics.median(filmed.seconds(arm, False)) if timed else float("nan"),
        "seconds_before_first_token" if arm in (STATELESS, HISTORY) else "seconds_of_frame": statistics.median(
            one.frame_s for one in found
        ),
        "vision_passes": sum(one.vision_passes for one in found) / len(found),
        "prefilled_tokens": sum(one.prefilled for one in found) / len(found),
        "forwards": sum(one.forwards for one in found) / len(found),
        "tokens_per_forward": sum(len(one.tokens) for one in found) / max(1, sum(one.forwards for one in found)),
        "lag_p50": ordered[len(ordered) // 2],
        "lag_p95": ordered[int(0.95 * (len(ordered) - 1))],
        "gate_hits": sum(one.hit for one in found) / len(found),
        **_accuracy(filmed, arm),
    }


def _accuracy(filmed: Filmed, arm: str) -> dict[str, float]:
    """Share of stated facts that hold, and of known questions answered rightly."""
    said = [(row.shot.scene, row.answers[arm].text) for row in filmed.rows if arm in row.answers]
    checked = [check_description(scene, text) for scene, text in said if scene is not None]
    result: dict[str, float] = {}
    if checked:
        result["facts_stated"] = sum(stated for stated, _ in checked) / len(checked)
        result["facts_true"] = sum(true for _, true in checked) / max(1, sum(stated for stated, _ in checked))
    rows = [row for row in filmed.rows if arm in row.facts]
    if rows:
        result["known_questions_right"] = sum(_is_right(row, arm) for row in rows) / len(rows)
    return result


def _equality(report: Report, dtype: str, films: Sequence[Filmed]) -> None:
    """Drafts never change an answer: a bar in fp32; in bf16 near-ties may flip."""
    pairs = [
        (answers[PLAIN].tokens, answers[OURS].tokens)
        for one in films
        for row in one.rows
        for answers in (row.answers, row.facts)
        if OURS in answers
    ]
    equal = sum(first_difference(plain, ours) is None for plain, ours in pairs)
    hf = [
        first_difference(row.answers[STATELESS].tokens, row.answers[OURS].tokens) is None
        for one in films
        for row in one.rows
    ]
    report.details.setdefault("equal_answers", {})[dtype] = {
        "answers": len(pairs),
        "equal_to_plain_arm": equal,
        "equal_to_hf_stateless": sum(hf) / len(hf),
    }
    if dtype == "fp32":
        report.bars.append(Bar("fp32: share of answers equal to the plain arm's", equal / len(pairs), 1.0))


def _details(dtype: str, filmed: Filmed) -> list[dict[str, Any]]:
    return [
        {
            "scene": filmed.film.kind,
            "dtype": dtype,
            "time_s": row.shot.time_s,
            "text": row.answers[OURS].text,
            "drafted_by": row.answers[OURS].drafted_by,
            "forwards": {arm: one.forwards for arm, one in row.answers.items()},
            "frame_s": {arm: one.frame_s for arm, one in row.answers.items()},
            "answer_s": {arm: one.answer_s for arm, one in row.answers.items()},
            "fact": None
            if row.shot.fact is None
            else {"question": row.shot.fact.text, "right": row.shot.fact.value, "said": row.facts[OURS].text},
        }
        for row in filmed.rows
    ]


def _gate(report: Report, progress: Progress) -> None:
    progress.stage("the gate on frames of 1080p")
    found = measure_gate()
    report.details["gate"] = found._asdict()
    report.bars += [
        Bar("gate: milliseconds of one core for a frame of 1080p", found.cpu_ms, GATE_BAR, at_most=True),
        Bar("gate: largest difference from scikit-image's SSIM", found.worst_error, 1e-4, at_most=True),
    ]


def _hours(report: Report, frames: int, progress: Progress) -> None:
    found = hours(frames, progress)
    report.details["hours"] = found._asdict()
    name = f"{found.frames} frames, tiny model"
    report.bars += [
        Bar(f"{name}: KV bytes, last over first", found.kv_bytes_last / found.kv_bytes_first, 1.0, at_most=True),
        Bar(f"{name}: resident memory grown by MiB", found.resident_growth / 2**20, 8.0, at_most=True),
        Bar(f"{name}: time per frame, last over first", found.time_ratio, 1.1, at_most=True),
    ]
