"""What this machine and this model allow: costs of a forward, what the controller makes of them (SYSTEM.md M6)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from mmspec_agent.core.controller import Controller
from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.tree import DraftTree

from .bench.common import environment
from .bench.stepping import GREEDY, engine_share, forward_costs, interpolated
from .engine import Engine
from .models.progress import Progress

NODES = (0, 1, 2, 4, 8, 16, 32, 64)
ACCEPTANCES = (0.2, 0.4, 0.6, 0.8, 0.95)
CHAIN_DEPTH = 24
CONTEXT = 128
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")


class Choice(NamedTuple):
    """What the controller does with a chain whose tokens are each accepted with chance ``acceptance``."""

    acceptance: float
    nodes: int
    tokens_per_step: float
    speed: float
    """Tokens per second over plain decoding's, by the measured costs."""


@dataclass(frozen=True)
class Diagnosis:
    """Everything `mmspec doctor` shows; ``seconds`` of a forward by its rows (the pending token and the nodes)."""

    environment: Mapping[str, Any]
    model: Mapping[str, Any]
    dtypes: Mapping[str, str]
    seconds: Mapping[int, float]
    engine_share: float
    choices: tuple[Choice, ...]
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "environment": dict(self.environment),
            "model": dict(self.model),
            "dtypes": dict(self.dtypes),
            "forward_ms_by_nodes": {rows - 1: round(1000 * s, 3) for rows, s in self.seconds.items()},
            "engine_share_of_a_step_at_16_nodes": round(self.engine_share, 4),
            "controller": [{k: round(v, 3) for k, v in choice._asdict().items()} for choice in self.choices],
            "verdict": self.verdict,
        }


def examine(engine: Engine, name: str, progress: Progress, repeats: int = 5) -> Diagnosis:
    """Measure ``engine``'s model: medians of ``repeats`` forwards of each size behind a context of 128 tokens."""
    target = engine.target
    prompt = _prompt(target)
    progress.stage("forwards of 0 … 64 draft nodes", 2.0)
    nodes = [n for n in NODES if target.context_limit is None or n + CONTEXT + 1 < target.context_limit]
    seconds = forward_costs(target, prompt, nodes, repeats)
    progress.advance_to(1.0)
    share = engine_share(target, prompt, 16, repeats, GREEDY).share
    progress.advance_to(2.0)
    choices = controller_choices(seconds)
    dtypes = dtype_support()
    return Diagnosis(
        environment(),
        _model_facts(target, name, seconds),
        dtypes,
        seconds,
        share,
        choices,
        verdict(seconds, share, choices, dtypes[_short(target.dtype)]),
    )


def controller_choices(seconds: Mapping[int, float]) -> tuple[Choice, ...]:
    """The nodes that the controller would verify at several rates of acceptance, by the given costs of a forward."""
    controller = Controller()
    for rows, value in seconds.items():
        for _ in range(20):
            controller.cost.observe(rows, value)
    costs = dict(seconds)
    choices = []
    for rate in ACCEPTANCES:
        chain = DraftTree.chain(range(CHAIN_DEPTH), "probe", [rate**d for d in range(1, CHAIN_DEPTH + 1)])
        chosen = controller.choose(chain, 1, controller.budget())
        tokens = 1.0 + sum(chosen.scores)
        speed = tokens * interpolated(costs, 1) / interpolated(costs, 1 + len(chosen))
        choices.append(Choice(rate, len(chosen), tokens, speed))
    return tuple(choices)


def dtype_support() -> dict[str, str]:
    """For each dtype, how the device computes it: "native", "emulated" (works, slowly) or "no"."""
    if torch.cuda.is_available():
        bf16 = "native" if torch.cuda.is_bf16_supported(including_emulation=False) else "emulated"
        return {"fp32": "native", "bf16": bf16, "fp16": "native"}
    flags = cpu_flags()
    bf16 = "native" if {"amx_bf16", "avx512_bf16"} & set(flags) or "bf16" in flags else "emulated"
    fp16 = "native" if "avx512_fp16" in flags else "emulated"
    return {"fp32": "native", "bf16": bf16, "fp16": fp16}


def cpu_flags() -> list[str]:
    """The vector and matrix extensions that matter here, as Linux names them; empty where it cannot be read."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith(("flags", "Features"))]
    except OSError:
        return []
    found = set(lines[0].partition(":")[2].split()) if lines else set()
    return [flag for flag in (*CPU_FLAGS, "bf16") if flag in found]


def verdict(seconds: Mapping[int, float], share: float, choices: tuple[Choice, ...], dtype_state: str) -> str:
    """One line: what bounds decoding here, and what follows from it."""
    costs = dict(seconds)
    growth = interpolated(costs, 17) / interpolated(costs, 1)
    pays = next((c.acceptance for c in choices if c.speed > 1.05), None)
    drafts = f"drafts pay from an acceptance of about {pays:g}" if pays is not None else "drafts do not pay"
    if dtype_state == "emulated":
        return (
            "dtype-bound: this processor has no instructions for the model's dtype; load it with dtype='fp32' "
            f"({drafts})"
        )
    if share > 0.15:
        return (
            f"engine-bound: {share:.0%} of a step is spent outside the model's forward; the model is very small or "
            f"the machine very busy, so the gain is capped ({drafts})"
        )
    if growth < 2.0:
        return f"bandwidth-bound: 17 rows cost {growth:.2f} times one row, so draft trees are cheap; {drafts}"
    if growth < 6.0:
        return f"between bandwidth and compute: 17 rows cost {growth:.2f} times one row; {drafts}"
    return (
        f"compute-bound: 17 rows cost {growth:.1f} times one row; {drafts}; more threads or a native 16-bit dtype "
        "make rows cheaper"
    )


def _prompt(target: HFTarget) -> list[int]:
    usable = [t for t in range(3, min(target.vocab_size, 1000)) if t not in target.placeholder_ids]
    limit = CONTEXT if target.context_limit is None else min(CONTEXT, target.context_limit // 4)
    return [usable[(7 * i) % len(usable)] for i in range(max(2, limit))]


def _model_facts(target: HFTarget, name: str, seconds: Mapping[int, float]) -> dict[str, Any]:
    weights = sum(p.numel() * p.element_size() for p in target.model.parameters())
    return {
        "name": name,
        "class": type(target.model).__name__,
        "dtype": _short(target.dtype),
        "device": str(target.device),
        "layers": len(target.layer_types),
        "vocabulary": target.vocab_size,
        "context": target.context_limit,
        "weight_bytes": weights,
        "weight_gigabytes_per_second": round(weights / min(seconds.values()) / 1e9, 2),
    }


def _short(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")


def busy() -> str | None:
    """A warning if others use the machine: the figures then are those of a shared one."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= 1.2 * cores:
        return None
    return f"the machine is busy (load {load:.1f} on {cores} cores): times are longer and noisier than they need be"
