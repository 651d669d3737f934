"""``mmspec bench text``: decoding of plain text against transformers, on the same weights (issue of M10).

Per kind of prompt and dtype, the wall-clock speed of our engine and our plain loop over transformers'
``generate`` and over its prompt lookup, arms in turn. An answer is cut where the first repeated 8-gram begins,
once, from the plain loop's answer: a small model that loops would flatter every drafter.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mmspec_agent.core.errors import OptionError
from mmspec_agent.generation import chat_processing
from mmspec_agent.models.progress import Progress
from mmspec_agent.models.resolve import load_model

from .arms import HF, LOOKUP, NAMES, OURS, PLAIN, Answered, TextArms
from .common import Bar, Report, Spread, Timed, environment, take_turns
from .prompts import BenchPrompt, load_prompts, per_kind
from .repeats import first_difference, tokens_before_loop
from .stepping import as_details, engine_share, forward_costs, hopeless_drafts

PACKAGED = "text_prompts.jsonl"
DTYPES = ("bf16", "fp32")
SPEED_BARS = {"copy_heavy": 2.0, "passage": 1.4, "chat": 0.97}
MIN_TOKENS = 16
"""Answers that loop sooner than this say nothing and are left out altogether."""

OVERHEAD_NODES = 16
COST_NODES = (0, 1, 3, 7, 15, 31, 63)


@dataclass(frozen=True)
class TextOptions:
    """What to run. ``kind_limit``: prompts of each kind (None: all); fp32 takes fewer unless ``full``."""

    model: str = "reference-lm"
    prompts: Path | None = None
    dtypes: tuple[str, ...] = DTYPES
    repeats: int = 3
    kind_limit: int | None = 2
    full: bool = False
    stepwise: bool = True

    def limit(self, dtype: str) -> int | None:
        """Prompts of each kind under ``dtype``."""
        if self.full or self.kind_limit is None:
            return None
        return self.kind_limit if dtype == self.dtypes[0] else 1


@dataclass
class Case:
    """One prompt: its ids, how far its answer is used, and the runs of every arm, one dict a repeat."""

    prompt: BenchPrompt
    ids: torch.Tensor
    use: int
    answer: int
    runs: list[dict[str, Timed]] = field(default_factory=list)

    @property
    def cut(self) -> int:
        """Tokens left out because they come with or after a repeated 8-gram."""
        return self.answer - self.use

    def seconds(self, arm: str, turn: int, clock: str) -> float:
        """Seconds of one run, scaled to the length of transformers' answer where a flip changed the length."""
        run = self.runs[turn][arm]
        wanted, got = len(self.runs[turn][HF].value.tokens), len(run.value.tokens)
        return float(getattr(run, clock)) * wanted / max(1, got)

    def answered(self, arm: str) -> Answered:
        """What an arm answered in the first turn."""
        value = self.runs[0][arm].value
        assert isinstance(value, Answered)
        return value


def run(options: TextOptions, progress: Progress) -> Report:
    """The whole benchmark; OptionError for options outside what is accepted."""
    _check(options)
    prompts = load_prompts(options.prompts, PACKAGED)
    report = Report("text", {})
    for dtype in options.dtypes:
        progress.stage(f"{dtype}: loading {options.model}")
        arms = TextArms(*load_model(options.model, dtype=dtype))
        report.environment = report.environment or environment(
            model=options.model, dtypes=list(options.dtypes), repeats=options.repeats, device=str(arms.model.device)
        )
        cases = _measure(arms, per_kind(prompts, options.limit(dtype)), options.repeats, dtype, progress)
        summarise(report, dtype, cases)
        if options.stepwise:
            _stepwise(report, dtype, arms, [c for kind in cases.values() for c in kind], progress)
    return report


def _check(options: TextOptions) -> None:
    if options.repeats < 1:
        raise OptionError(f"--repeats {options.repeats}: accepted is an integer of at least 1")
    strange = [dtype for dtype in options.dtypes if dtype not in DTYPES]
    if strange or not options.dtypes:
        raise OptionError(f"--dtype {', '.join(strange) or 'nothing'}: accepted are bf16, fp32 and both")


def _measure(
    arms: TextArms, kinds: dict[str, list[BenchPrompt]], repeats: int, dtype: str, progress: Progress
) -> dict[str, list[Case]]:
    arms.warm_up()
    total = sum(map(len, kinds.values())) * (repeats * len(NAMES) + 1)
    progress.stage(f"{dtype}: {sum(map(len, kinds.values()))} prompts, {len(NAMES)} arms in turn", float(total))
    done = 0
    cases: dict[str, list[Case]] = {}
    for kind, prompts in kinds.items():
        for prompt in prompts:
            case = _open_case(arms, prompt)
            cases.setdefault(kind, []).append(case)
            done += 1
            for turn in range(repeats if case.use else 0):
                case.runs.append(take_turns(arms.calls(case.ids, case.use), turn))
                progress.advance_to(float(done + (turn + 1) * len(NAMES)))
            done += repeats * len(NAMES)
            progress.advance_to(float(done))
    return cases


def _open_case(arms: TextArms, prompt: BenchPrompt) -> Case:
    ids = arms.encode(prompt.messages)
    answer = arms.call(PLAIN, ids, prompt.max_new_tokens).tokens
    use = tokens_before_loop(answer)
    return Case(prompt, ids, use if use >= MIN_TOKENS else 0, len(answer))


def summarise(report: Report, dtype: str, cases: dict[str, list[Case]]) -> None:
    """Ratios, bars and details of one dtype's cases into ``report``."""
    used = {kind: [case for case in of_kind if case.runs] for kind, of_kind in cases.items()}
    used = {kind: of_kind for kind, of_kind in used.items() if of_kind}
    for kind, of_kind in used.items():
        ours = report.ratios[f"{dtype} {kind}: ours / {HF}"] = speed(of_kind, OURS, HF)
        lookup = report.ratios[f"{dtype} {kind}: ours / {LOOKUP}"] = speed(of_kind, OURS, LOOKUP)
        report.ratios[f"{dtype} {kind}: ours / {HF} (processor time)"] = speed(of_kind, OURS, HF, "cpu")
        if kind in SPEED_BARS:
            report.bars.append(Bar(f"{dtype} {kind}: speed of ours over {HF}", ours.median, SPEED_BARS[kind]))
        report.bars.append(Bar(f"{dtype} {kind}: speed of ours over {LOOKUP}", lookup.median, 1.0))
    every = [case for of_kind in used.values() for case in of_kind]
    if every:
        plain = report.ratios[f"{dtype} all: plain loop / {HF}"] = speed(every, PLAIN, HF)
        report.ratios[f"{dtype} all: plain loop / {HF} (processor time)"] = speed(every, PLAIN, HF, "cpu")
        report.bars.append(Bar(f"{dtype}: speed of the plain loop over {HF}", plain.median, 1.0))
        report.arms[dtype] = {kind: _arms_of(of_kind) for kind, of_kind in used.items()}
        _tokens(report, dtype, every)
    report.details.setdefault("prompts", []).extend(_row(dtype, c) for of_kind in cases.values() for c in of_kind)


def speed(cases: Sequence[Case], arm: str, over: str, clock: str = "wall") -> Spread:
    """How many times as fast ``arm`` is as ``over``: sums over the prompts, one ratio a repeat."""
    repeats = min(len(case.runs) for case in cases)
    return Spread.of(
        [
            sum(case.seconds(over, turn, clock) for case in cases)
            / sum(case.seconds(arm, turn, clock) for case in cases)
            for turn in range(repeats)
        ]
    )


def _tokens(report: Report, dtype: str, cases: Sequence[Case]) -> None:
    """Equality with transformers: a bar in fp32, a flip rate in bf16, where near-ties may fall the other way."""
    differences = [first_difference(c.answered(HF).tokens, c.answered(OURS).tokens) for c in cases]
    against_plain = [first_difference(c.answered(PLAIN).tokens, c.answered(OURS).tokens) for c in cases]
    compared = sum(len(c.answered(HF).tokens) if d is None else d + 1 for c, d in zip(cases, differences))
    flips = sum(d is not None for d in differences)
    report.details.setdefault("tokens", {})[dtype] = {
        "prompts": len(cases),
        "equal_to_hf": len(cases) - flips,
        "equal_to_plain_loop": sum(d is None for d in against_plain),
        "flips_per_token": flips / max(1, compared),
        "tokens_compared": compared,
        "tokens_cut_at_repeated_8_grams": sum(c.cut for c in cases),
    }
    if dtype == "fp32":
        report.bars.append(
            Bar("fp32: share of prompts with the very tokens of transformers", 1 - flips / len(cases), 1)
        )


def _arms_of(cases: Sequence[Case]) -> dict[str, Any]:
    """Counts and seconds of each arm on one kind, first turn."""
    arms: dict[str, Any] = {}
    for name in NAMES:
        answers = [case.answered(name) for case in cases]
        tokens, forwards = sum(len(a.tokens) for a in answers), sum(a.forwards for a in answers)
        arms[name] = {
            "tokens": tokens,
            "forwards": forwards,
            "rows": sum(a.rows for a in answers),
            "tokens_per_forward": tokens / max(1, forwards),
            "seconds": sum(case.runs[0][name].wall for case in cases),
            "seconds_in_forwards": sum(a.forward_seconds for a in answers),
        }
    return arms


def _row(dtype: str, case: Case) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": case.prompt.id,
        "kind": case.prompt.kind,
        "dtype": dtype,
        "prompt_tokens": int(case.ids.shape[1]),
        "tokens_used": case.use,
        "tokens_cut": case.cut,
    }
    if case.runs:
        row["first_difference_from_hf"] = first_difference(case.answered(HF).tokens, case.answered(OURS).tokens)
        row["tokens_per_step"] = case.answered(OURS).tokens_per_step
        row["forwards"] = {name: case.answered(name).forwards for name in NAMES}
        row["seconds"] = {name: [turn[name].wall for turn in case.runs] for name in NAMES}
    return row


def _stepwise(report: Report, dtype: str, arms: TextArms, cases: Sequence[Case], progress: Progress) -> None:
    """The engine's share of a step, and hopeless drafts."""
    longest = max(cases, key=lambda case: case.ids.shape[1])
    ids = [int(i) for i in longest.ids[0].tolist()]
    target = arms.ours.target
    progress.stage(f"{dtype}: engine time outside the forward, hopeless drafts", 4.0)
    costs = forward_costs(target, ids, COST_NODES, 3)
    progress.advance_to(1.0)
    greedy = engine_share(target, ids, OVERHEAD_NODES, 12, _processing(arms, len(ids)))
    sampled = engine_share(target, ids, OVERHEAD_NODES, 12, _processing(arms, len(ids), temperature=0.8, top_p=0.9))
    progress.advance_to(2.0)
    hopeless = hopeless_drafts(target, ids, 200, costs)
    progress.advance_to(4.0)
    report.details.setdefault("forward_ms_by_rows", {})[dtype] = {r: 1000 * s for r, s in costs.items()}
    report.details.setdefault("engine_share_of_a_step", {})[dtype] = {
        "temperature 0": as_details(greedy),
        "temperature 0.8, top_p 0.9": as_details(sampled),
    }
    report.details.setdefault("hopeless_drafts", {})[dtype] = as_details(hopeless)
    name = f"{dtype}: engine time outside the forward, {OVERHEAD_NODES} nodes, temperature 0"
    report.bars += [
        Bar(name, greedy.share, 0.05, at_most=True),
        Bar(f"{dtype}: hopeless drafts over plain loop, by the clock", hopeless.wall, 0.97),
        Bar(f"{dtype}: hopeless drafts over plain loop, by rows", hopeless.counted, 0.97),
    ]


def _processing(arms: TextArms, length: int, **sampling: float) -> Any:
    config = copy.deepcopy(arms.model.generation_config)
    config.update(do_sample=bool(sampling), max_length=length + 256, **sampling)
    return chat_processing(arms.model, config, length, keep_logprobs=False)
