"""Training of the reference vision-language model: labels and words first, then through the language model (M8).

A run is a function of its seed and plan: scenes come from the step's index, so that a resumed run continues
with the pictures it would have seen.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, distributed, nn

CHECKPOINT = "checkpoint.pt"
Progress = Callable[[str, int, float, dict[str, float]], None]
"""Called with stage, step, share of the stage done (0-1) and the step's losses."""


@dataclass(frozen=True)
class StagePlan:
    """A stage ends after `steps`, or after `minutes` where given; the learning rate falls over whichever is nearer."""

    name: str
    steps: int
    batch: int
    rate: float
    minutes: float | None = None
    warmup: int = 50


class Stage(Protocol):
    """What the loop needs of a stage."""

    def groups(self, rate: float) -> list[dict[str, Any]]:
        """Optimizer groups."""
        ...

    def backward(self, step: int) -> dict[str, float]:
        """Gradients of the step's batch; losses and accuracies to report."""
        ...


@dataclass
class Clock:
    """What a checkpoint carries beside weights: where the run stands, and its curve."""

    stage: str = ""
    step: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    curve: list[dict[str, Any]] = field(default_factory=list)


class Team(NamedTuple):
    """Processes that share each step: one of one thread a core beats one of many threads on a machine in use."""

    rank: int = 0
    size: int = 1

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make every process' gradients the mean over all."""
        if self.size == 1:
            return
        grads = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grads.append(parameter.grad)
        flat = torch.cat([grad.flatten() for grad in grads])
        distributed.all_reduce(flat)
        flat /= self.size
        for grad, mean in zip(grads, torch.split(flat, [grad.numel() for grad in grads])):
            grad.copy_(mean.view_as(grad))

    def first(self, value: float) -> float:
        """The value of the first process, so that all stop at the same step."""
        if self.size == 1:
            return value
        box = torch.tensor([value], dtype=torch.float64)
        distributed.broadcast(box, 0)
        return float(box)


ALONE = Team()


class Optimizers:
    """Muon for the groups marked so (a tower from scratch learns shapes far sooner by it), AdamW for the others."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        plain = [{k: v for k, v in g.items() if k != "muon"} for g in groups if not g.get("muon")]
        turned = [{k: v for k, v in g.items() if k != "muon"} for g in groups if g.get("muon")]
        self._parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(plain, betas=(0.9, 0.98), weight_decay=0.01)]
        if turned:
            self._parts.append(torch.optim.Muon(turned, weight_decay=0.01, adjust_lr_fn="match_rms_adamw", ns_steps=3))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self._parts for group in part.param_groups]

    def zero_grad(self) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def step(self) -> None:
        for part in self._parts:
            part.step()

    def state_dict(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self._parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for part, state in zip(self._parts, states):
            part.load_state_dict(state)


def run_stage(
    plan: StagePlan, stage: Stage, model: nn.Module, clock: Clock, out_dir: Path,
    saved: dict[str, Any] | None = None, progress: Progress | None = None, save_every: float = 120.0,
    team: Team = ALONE,
) -> None:  # fmt: skip
    """Train one stage to its end, from the saved optimizer and step where there are any."""
    optimizer = Optimizers(stage.groups(plan.rate))
    peaks = [group["lr"] for group in optimizer.param_groups]
    start = 0
    if saved is not None and saved["clock"]["stage"] == plan.name:
        start = clock.step
        optimizer.load_state_dict(saved["optimizer"])
    clock.stage, clock.step = plan.name, start
    last, last_save = time.monotonic(), time.monotonic()
    done = _share(plan, clock)
    while done < 1:
        factor = _rate(plan, clock.step, done)
        for group, peak in zip(optimizer.param_groups, peaks):
            group["lr"] = peak * factor
        optimizer.zero_grad()
        losses = stage.backward(clock.step * team.size + team.rank)
        team.average(p for g in optimizer.param_groups for p in g["params"])
        for group in optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)
        optimizer.step()
        clock.step += 1
        now = time.monotonic()
        clock.seconds[plan.name] = team.first(clock.seconds.get(plan.name, 0.0) + now - last)
        clock.steps[plan.name], last = clock.step, now
        done = _share(plan, clock)
        if clock.step % 25 == 0:
            clock.curve.append({"stage": plan.name, "step": clock.step, **{k: round(v, 4) for k, v in losses.items()}})
        if progress is not None and team.rank == 0:
            progress(plan.name, clock.step, done, losses)
        if team.rank == 0 and (now - last_save > save_every or done >= 1):
            save_checkpoint(out_dir, model, optimizer, clock)
            last_save = time.monotonic()


def _share(plan: StagePlan, clock: Clock) -> float:
    by_steps = clock.step / plan.steps if plan.steps else 1.0
    by_time = clock.seconds.get(plan.name, 0.0) / 60 / plan.minutes if plan.minutes else 0.0
    return max(by_steps, by_time)


def _rate(plan: StagePlan, step: int, done: float) -> float:
    """Linear warm-up, flat to 40 %, then linearly down to 4 %."""
    return min(1.0, (step + 1) / plan.warmup) * min(1.0, max(0.04, (1 - done) / 0.6))


def save_checkpoint(out_dir: Path, model: nn.Module, optimizer: Optimizers, clock: Clock) -> None:
    """Weights, optimizer and clock in one file, replaced atomically."""
    state = {
        "model": trained_state(model),
        "optimizer": optimizer.state_dict(),
        "clock": asdict(clock),
    }
    temporary = out_dir / f"{CHECKPOINT}.{os.getpid()}"
    torch.save(state, temporary)
    os.replace(temporary, out_dir / CHECKPOINT)


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """The parameters (not buffers: those come from the language model) by name."""
    return {name: value.detach() for name, value in model.named_parameters()}


def load_checkpoint(out_dir: Path) -> dict[str, Any] | None:
    """The saved state, or None."""
    path = out_dir / CHECKPOINT
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state
