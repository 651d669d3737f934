"""`train_reference`: the whole training of the reference vision-language model, resumable, ending in a report."""

import copy
import json
import multiprocessing
import os
import platform
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any

import torch
from safetensors.torch import save_file
from torch import distributed

from . import reference_lm
from .reference_vlm import build_processor, load_reference_vlm, read_weights, reference_config
from .vlm_training import ALONE, Clock, Progress, StagePlan, Team, load_checkpoint, run_stage
from .vlm_training_evaluation import evaluate
from .vlm_training_language import LanguageStage, Mix
from .vlm_training_model import Trainee, load_language_model, open_language
from .vlm_training_tower import HeadsStage, TowerStage, WindowStage

WEIGHTS_NAME, REPORT_NAME = "reference_vlm.safetensors", "reference_vlm_report.json"
FIRST_SCENE = 1_000_000_000
"""Training scenes have seeds from here on; tests and evaluation stay below."""

SAVE_EVERY = 120.0
"""Seconds between checkpoints."""

PLAN = (
    StagePlan("windows", steps=3000, batch=10, rate=2e-3, warmup=60),
    StagePlan("tower", steps=1200, batch=10, rate=1.2e-3, warmup=40),
    StagePlan("short", steps=900, batch=5, rate=2e-3, warmup=15),
    StagePlan("long", steps=600, batch=4, rate=2e-3, warmup=10),
    StagePlan("claims", steps=900, batch=2, rate=1.6e-3, warmup=5),
)
"""Steps of each stage; batch is a worker's."""
FURTHER = (
    StagePlan("heads", steps=150, batch=10, rate=4e-3, warmup=10),
    StagePlan("tower", steps=1000, batch=10, rate=1e-3, warmup=20),
    StagePlan("long", steps=600, batch=4, rate=2e-3, warmup=20),
    StagePlan("claims", steps=900, batch=2, rate=1.6e-3, warmup=5),
)
"""The same for weights of an earlier run, whose heads are gone."""
MIXES = {
    "short": Mix(visual=56, text=168, described=0.75, followed=0.05, focus=0.8),
    "long": Mix(visual=144, text=208, described=0.8, followed=0.1, focus=0.7, sees=False),
    "claims": Mix(visual=80, text=216, described=0.1, followed=0.05, sees=False, claims=True, outside=0.15, frozen=10),
}


def train_reference(
    out_dir: Path,
    *,
    minutes: dict[str, float] | None = None,
    steps: dict[str, int] | None = None,
    seed: int = 0,
    resume: bool = True,
    workers: int | None = None,
    evaluated: int = 100,
    language_model: Path | None = None,
    begin: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Train, write `reference_vlm.safetensors` and `reference_vlm_report.json` into out_dir, return the report's path.

    minutes, steps: limits by stage in place of the plan's; whichever is reached first ends a stage. begin: weights of
    another run, which are trained further as `FURTHER` plans; a run already in out_dir goes on with its own.
    workers: processes of one thread each, one a core by default. evaluated: unseen scenes the result
    is measured on, 0 for none. With resume a run goes on from its last checkpoint (one every two minutes).
    Raises ModelNotFound or ModelFetchError where `reference-lm` cannot be had, ModelNotFound or ModelError for `begin`.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    path = language_model or reference_lm.fetch()
    if begin is not None:
        read_weights(begin)
    plans = [_limited(plan, minutes or {}, steps or {}) for plan in (PLAN if begin is None else FURTHER)]
    workers = workers or default_workers()
    if workers == 1:
        run_stages(out_dir, plans, path, seed, resume, ALONE, progress, begin)
    else:
        _run_team(out_dir, plans, path, seed, resume, workers, progress, begin)
    return finish(out_dir, plans, path, seed, workers, evaluated)


def default_workers() -> int:
    """One process for each core this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _limited(plan: StagePlan, minutes: dict[str, float], steps: dict[str, int]) -> StagePlan:
    return replace(plan, steps=steps.get(plan.name, plan.steps), minutes=minutes.get(plan.name, plan.minutes))


def run_stages(
    out_dir: Path,
    plans: Sequence[StagePlan],
    path: Path,
    seed: int,
    resume: bool,
    team: Team,
    progress: Progress | None,
    begin: Path | None = None,
) -> None:
    """Every stage that is not done yet, in this process, which is one of the team's."""
    torch.manual_seed(seed)
    language = load_language_model(path)
    processor = build_processor(path)
    config = reference_config(copy.deepcopy(language.config), processor.image_token_id)
    model = Trainee(config, language.model.embed_tokens.weight, processor.tokenizer)
    saved = load_checkpoint(out_dir) if resume else None
    if saved is None and begin is not None:
        open_language(model, language, compiled=shutil.which("g++") is not None)
        model.load_state_dict(read_weights(begin), strict=False)
    clock = Clock() if saved is None else Clock(**saved["clock"])
    names = [plan.name for plan in plans]
    started = names.index(clock.stage) if clock.stage in names else 0
    for number, plan in enumerate(plans):
        if plan.name in MIXES:
            open_language(model, language, compiled=shutil.which("g++") is not None)
        if saved is not None and number == max(started, 0):
            model.load_state_dict(saved["model"], strict=False)
        if number < started:
            continue
        first = FIRST_SCENE + seed * 100_000_000 + number * 20_000_000
        stage = make_stage(plan, model, processor.tokenizer, first)
        run_stage(plan, stage, model, clock, out_dir, saved, progress, save_every=SAVE_EVERY, team=team)


def make_stage(plan: StagePlan, model: Trainee, tokenizer: Any, first: int) -> Any:
    """The stage of a plan; its scenes have seeds from `first` on."""
    if plan.name == "windows":
        return WindowStage(model, plan.batch, first)
    if plan.name == "heads":
        return HeadsStage(model, plan.batch, first)
    if plan.name == "tower":
        return TowerStage(model, plan.batch, first)
    return LanguageStage(model, tokenizer, plan.batch, first, MIXES[plan.name])


def _run_team(
    out_dir: Path,
    plans: Sequence[StagePlan],
    path: Path,
    seed: int,
    resume: bool,
    workers: int,
    progress: Progress | None,
    begin: Path | None,
) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        arguments = [
            (rank, workers, store, out_dir, plans, path, seed, resume, begin, queue) for rank in range(workers)
        ]
        team = [context.Process(target=_work, args=given) for given in arguments]
        for process in team:
            process.start()
        try:
            while any(process.is_alive() for process in team):
                try:
                    event = queue.get(timeout=1)
                except Empty:
                    event = None
                if event is not None and progress is not None:
                    progress(*event)
                if any(process.exitcode not in (None, 0) for process in team):
                    break
        finally:
            failed = [process.exitcode for process in team if process.exitcode not in (None, 0)]
            for process in team:
                if process.is_alive() and failed:
                    process.terminate()
                process.join()
    if failed:
        raise RuntimeError(f"A training process ended with code {failed[0]}; run again to go on from the checkpoint.")


def _work(
    rank: int, size: int, store: str, out_dir: Path, plans: Sequence[StagePlan], path: Path, seed: int,
    resume: bool, begin: Path | None, queue: Any,
) -> None:  # fmt: skip
    torch.set_num_threads(1)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    run_stages(out_dir, plans, path, seed, resume, Team(rank, size), lambda *event: queue.put(event), begin)
    distributed.destroy_process_group()


def _leave_with_parent() -> None:
    """A run that was killed must not go on in its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def finish(out_dir: Path, plans: Sequence[StagePlan], path: Path, seed: int, workers: int, evaluated: int) -> Path:
    """Weights and report of the last checkpoint."""
    export(out_dir, path, out_dir / WEIGHTS_NAME)
    saved = load_checkpoint(out_dir)
    assert saved is not None
    report: dict[str, Any] = {
        "seed": seed,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {workers} workers",
        "torch": torch.__version__,
        "stages": {
            plan.name: {
                "batch": plan.batch * workers,
                "rate": plan.rate,
                "steps": saved["clock"]["steps"].get(plan.name, 0),
                "seconds": round(saved["clock"]["seconds"].get(plan.name, 0.0), 1),
            }
            for plan in plans
        },
        "curve": saved["clock"]["curve"],
    }
    if evaluated:
        model, processor = load_reference_vlm(weights=out_dir / WEIGHTS_NAME, language_model=path)
        report["seen"] = evaluate(model, processor, evaluated).as_dict()
        report["withheld"] = evaluate(model, processor, evaluated, withhold=True).as_dict()
    target = out_dir / REPORT_NAME
    target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return target


def export(out_dir: Path, path: Path, target: Path) -> None:
    """The last checkpoint's weights as they ship."""
    saved = load_checkpoint(out_dir)
    assert saved is not None
    shipped = {
        name: value.to(torch.bfloat16).contiguous()
        for name, value in saved["model"].items()
        if not name.startswith(("heads.", "places."))
    }
    temporary = target.with_suffix(".part")
    save_file(shipped, temporary)
    os.replace(temporary, target)
