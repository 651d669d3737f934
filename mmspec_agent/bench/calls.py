"""``mmspec bench calls``: function calls against plain constrained decoding, under one and the same constraint.

The claim is (forwards relative to plain) × (cost of a forward relative to plain), both printed, and the
wall-clock of decoding that comes of it. The first forward, which also prefills, is apart in every arm; where it
carried drafts, what it took beyond the plain loop's first forward is counted as decoding. Where bf16 flips make
two arms write different answers, seconds are scaled to the length of the answer of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mmspec_agent.core.errors import OptionError
from mmspec_agent.models.progress import Progress
from mmspec_agent.models.resolve import load_model

from .call_arms import ALL, HF, NAMES, PLAIN, RULE_A, CallArms, Called
from .call_tasks import CallTask, load_tasks
from .closing import run_closing
from .common import Bar, Report, Spread, Timed, environment, take_turns
from .grammar_clock import masks_of_random_schemas, share_of_calls, share_of_patterns, share_of_wide_schema
from .outlines_arm import OutlinesArm, measure

DECODE_BAR = 4.2
COST_BAR = 0.24
SESSION_BAR = 0.30
GRAMMAR_BAR = 0.05
CLOCKED_TASKS = 20
MASK_BAR_MS = 20.0
WIDE_BUDGET, TIGHT_BUDGET, PATTERN_BUDGET = 1600, 500, 140
CLOCKED_SCHEMAS = 200
CLOSING_REPLIES = 10_000
CLOSING_SCHEMAS = 300


@dataclass(frozen=True)
class CallsOptions:
    """What to run. ``limit``: tasks in the order of the file (None: all, 0: none); ``dtype``: bf16 or fp32.

    ``outlines``: tasks for the arm that is there for information; ``full``: the closing stress too.
    """

    model: str = "reference-lm"
    tasks: Path | None = None
    limit: int | None = None
    dtype: str = "bf16"
    max_new_tokens: int = 192
    outlines: int = 0
    full: bool = False


class Run(NamedTuple):
    """One task: what every arm gave, and the call in a session."""

    task: CallTask
    arms: dict[str, Called]
    session: Called

    def decode(self, name: str) -> float:
        """Seconds of decoding, scaled to the tokens of transformers' answer."""
        called = self.arms[name]
        extra = 0.0 if name == HF else max(0.0, called.prefill_seconds - self.arms[PLAIN].prefill_seconds)
        return (called.decode_seconds + extra) * self._scale(called)

    def whole(self, name: str) -> float:
        """Seconds of the whole call, scaled likewise."""
        return self.arms[name].seconds * self._scale(self.arms[name])

    @property
    def in_session(self) -> float:
        """Seconds of the whole call in a session, scaled likewise."""
        return self.session.seconds * self._scale(self.session)

    def forwards(self, name: str) -> float:
        """Forwards after the first one, scaled likewise."""
        called = self.arms[name]
        return (called.forwards - 1) * self._scale(called)

    def _scale(self, called: Called) -> float:
        return len(self.arms[HF].tokens) / len(called.tokens)


def run(options: CallsOptions, progress: Progress) -> Report:
    """The whole benchmark; OptionError for options outside what is accepted."""
    if options.dtype not in ("bf16", "fp32"):
        raise OptionError(f"--dtype {options.dtype}: accepted are bf16 and fp32")
    if min(options.limit or 0, options.outlines) < 0 or options.max_new_tokens < 1:
        raise OptionError("--limit and --outlines: accepted are 0 and more; --max-new-tokens: 1 and more")
    tasks = load_tasks(options.tasks)[: options.limit]
    report = Report("calls", environment(model=options.model, dtype=options.dtype, tasks=len(tasks)))
    if tasks:
        _run_tasks(tasks, options, report, progress)
    if options.full:
        _run_closing(report, progress)
    return report


def _run_tasks(tasks: Sequence[CallTask], options: CallsOptions, report: Report, progress: Progress) -> None:
    progress.stage(f"{options.dtype}: loading {options.model}")
    model, tokenizer = load_model(options.model, dtype=options.dtype)
    arms = CallArms(model, tokenizer, options.max_new_tokens)
    for name in NAMES:
        arms.call(name, tasks[0])  # untimed: allocations, compiled grammars, the cost model's first figures
    progress.stage(f"{options.dtype}: {len(tasks)} tasks, {len(NAMES) + 1} arms in turn", float(len(tasks)))
    runs = []
    for turn, task in enumerate(tasks):
        timed: dict[str, Timed] = take_turns(arms.calls(task), turn)
        runs.append(Run(task, {name: t.value for name, t in timed.items()}, arms.call_in_session(task)))
        progress.advance_to(float(turn + 1))
    summarise(report, runs, options)
    _clock_grammar(arms, tasks, report, progress)
    some = tasks[: options.outlines]
    if some:
        arm = OutlinesArm(model, tokenizer, options.max_new_tokens)
        report.arms["outlines"] = measure(arm, some, [arms.prompt(task).text for task in some], progress)


def _clock_grammar(arms: CallArms, tasks: Sequence[CallTask], report: Report, progress: Progress) -> None:
    """What the grammar itself takes of a step, after the timed arms: the clock has a cost of its own."""
    progress.stage("grammar work of a step")
    shares = {
        "calls": share_of_calls(arms, tasks[:CLOCKED_TASKS]),
        "schema of 200 properties and an enum of 5,000": share_of_wide_schema(arms.engine, WIDE_BUDGET),
    }
    shares["the same schema, closed by its budget"] = share_of_wide_schema(arms.engine, TIGHT_BUDGET)
    shares["patterns, closed by their budget"] = share_of_patterns(arms.engine, PATTERN_BUDGET)
    wild = {f"{CLOCKED_SCHEMAS} random schemas": masks_of_random_schemas(CLOCKED_SCHEMAS, progress)}
    report.details["grammar_work"] = {name: share._asdict() for name, share in (shares | wild).items()}
    for name, share in shares.items():
        report.bars.append(Bar(f"grammar work of a step, {name}", share.share, GRAMMAR_BAR, True))
    for name, share in (shares | wild).items():
        report.bars.append(Bar(f"99th percentile of a mask in ms, {name}", share.mask_p99_ms, MASK_BAR_MS, True))


def _run_closing(report: Report, progress: Progress) -> None:
    """10,000 replies of random weights over 300 schemas; nothing may be invalid, unclosed or endless."""
    closing = run_closing(CLOSING_REPLIES, CLOSING_SCHEMAS, progress)
    report.details["closing"] = vars(closing)
    for kind in ("invalid", "unclosed", "endless", "refused"):
        name = f"{kind} replies of random weights, of {closing.generations} over {closing.schemas} schemas"
        report.bars.append(Bar(name, float(getattr(closing, kind)), 0.0, True))


def summarise(report: Report, runs: Sequence[Run], options: CallsOptions) -> None:
    """Ratios, bars and details."""
    for over in (HF, PLAIN):
        decode = _spread(runs, lambda r, o=over: r.decode(o), lambda r: r.decode(ALL))
        report.ratios[f"decode speed: all / {over}"] = decode
        report.ratios[f"decode speed: Rule A / {over}"] = _spread(
            runs, lambda r, o=over: r.decode(o), lambda r: r.decode(RULE_A)
        )
        report.ratios[f"whole call: all / {over}"] = _spread(runs, lambda r, o=over: r.whole(o), lambda r: r.whole(ALL))
        report.bars.append(Bar(f"decode speed over {over}", decode.median, DECODE_BAR))
    product = decode_ratio(runs, ALL)
    report.bars.append(Bar("forwards × cost of a forward, relative to plain", product, COST_BAR, True))
    session = _spread(runs, lambda r: r.in_session, lambda r: r.whole(HF))
    report.ratios["seconds of a whole call in a session / HF generate"] = session
    report.bars.append(Bar("seconds of a call in a session over HF generate", session.median, SESSION_BAR, True))
    report.bars.append(Bar("share of valid calls", _share(runs, lambda r: r.task.is_valid(r.arms[ALL].calls)), 1.0))
    equal = _share(runs, lambda r: r.arms[ALL].tokens == r.arms[PLAIN].tokens)
    equal_hf = _share(runs, lambda r: r.arms[ALL].tokens == r.arms[HF].tokens)
    if options.dtype == "fp32":
        report.bars.append(Bar("share of tasks with the plain arm's very tokens", equal, 1.0))
        report.bars.append(Bar("share of tasks with HF generate's very tokens", equal_hf, 1.0))
    report.arms = {name: _arm(runs, name) for name in NAMES}
    report.details = {
        "forwards_relative_to_plain": {name: forwards_ratio(runs, name) for name in NAMES},
        "cost_of_a_forward_relative_to_plain": {name: cost_ratio(runs, name) for name in NAMES},
        "tasks_equal_to_plain": equal,
        "tasks_equal_to_hf": equal_hf,
        "tasks": [_row(r) for r in runs],
    }


def forwards_ratio(runs: Sequence[Run], name: str) -> float:
    """Forwards after the first one, relative to the plain loop's."""
    return sum(r.forwards(name) for r in runs) / max(1e-9, sum(r.forwards(PLAIN) for r in runs))


def decode_ratio(runs: Sequence[Run], name: str) -> float:
    """Decode seconds relative to the plain loop's: the two factors, forwards and cost of a forward, as one."""
    return sum(r.decode(name) for r in runs) / max(1e-9, sum(r.decode(PLAIN) for r in runs))


def cost_ratio(runs: Sequence[Run], name: str) -> float | None:
    """Decode seconds per forward, relative to the plain loop's; None where no forward followed the first ones."""
    forwards = forwards_ratio(runs, name)
    return decode_ratio(runs, name) / forwards if forwards else None


def _spread(runs: Sequence[Run], numerator: Any, denominator: Any, parts: int = 5) -> Spread:
    """The ratio of sums over all tasks, with its spread over ``parts`` interleaved parts of them."""
    values = []
    for part in range(min(parts, len(runs))):
        some = runs[part::parts]
        values.append(sum(map(numerator, some)) / max(1e-9, sum(map(denominator, some))))
    whole = sum(map(numerator, runs)) / max(1e-9, sum(map(denominator, runs)))
    return Spread(whole, min(values), max(values))


def _share(runs: Sequence[Run], holds: Any) -> float:
    return float(sum(map(holds, runs))) / len(runs)


def _arm(runs: Sequence[Run], name: str) -> dict[str, Any]:
    called = [r.arms[name] for r in runs]
    forwards = sum(c.forwards - 1 for c in called)
    seconds = sum(c.decode_seconds for c in called)
    return {
        "tokens": sum(len(c.tokens) for c in called),
        "decode_forwards": forwards,
        "rows_per_forward": sum(c.rows for c in called) / max(1, forwards),
        "decode_seconds": seconds,
        "seconds_per_decode_forward": seconds / max(1, forwards),
        "seconds": sum(c.seconds for c in called),
        "seconds_in_session": sum(r.session.seconds for r in runs) if name == ALL else None,
        "valid": _share(runs, lambda r: r.task.is_valid(r.arms[name].calls)),
        "correct": _share(runs, lambda r: r.task.is_correct(r.arms[name].calls)),
        "cut_by_length": sum(c.finish == "length" for c in called),
    }


def _row(r: Run) -> dict[str, Any]:
    """One call: an entry an arm, and what holds for the call as a whole."""
    return {
        "id": r.task.id,
        "arms": {name: _call(r, name) for name in NAMES},
        "session_seconds": r.session.seconds,
        "session_reused": r.session.reused,
        "equal_to_plain": r.arms[ALL].tokens == r.arms[PLAIN].tokens,
        "equal_to_hf": r.arms[ALL].tokens == r.arms[HF].tokens,
    }


def _call(r: Run, name: str) -> dict[str, Any]:
    c = r.arms[name]
    return {
        "tokens": len(c.tokens),
        "forwards": c.forwards,
        "rows_per_forward": c.rows / max(1, c.forwards - 1),
        "forward_seconds": c.forward_seconds,
        "prefill_seconds": c.prefill_seconds,
        "decode_seconds": c.decode_seconds,
        "seconds": c.seconds,
        "forced": c.forced,
        "finish": c.finish,
        "valid": r.task.is_valid(c.calls),
        "correct": r.task.is_correct(c.calls),
    }
