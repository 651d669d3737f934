"""What every benchmark shares (SYSTEM.md M10): arms in turn, ratios with their spread, bars, one JSON object."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, TypeVar

import torch
from rich.console import Console
from rich.table import Table

from mmspec_agent.models.progress import Progress

T = TypeVar("T")

PACKAGES = ("mmspec_agent", "torch", "transformers", "llguidance", "numpy")


class Timed(NamedTuple):
    """One run of an arm: what it returned, and the seconds on the clock and on the processor (all threads)."""

    value: Any
    wall: float
    cpu: float


class Spread(NamedTuple):
    """Median, least and greatest of a ratio over repeats."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


class Bar(NamedTuple):
    """A claim and what was measured: ``value`` must reach ``bar``, or stay below it if ``at_most``."""

    name: str
    value: float
    bar: float
    at_most: bool = False

    @property
    def ok(self) -> bool:
        """Whether the claim holds here; a value that is not a number never does."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        bar = f"<= {self.bar:g}" if self.at_most else f">= {self.bar:g}"
        return {"name": self.name, "value": _rounded(self.value), "bar": bar, "ok": self.ok}


@dataclass
class Report:
    """The result of a benchmark: ``arms`` are what ran, ``ratios`` what is claimed, ``details`` the raw rows."""

    bench: str
    environment: dict[str, Any]
    arms: dict[str, Any] = field(default_factory=dict)
    ratios: dict[str, Spread] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every bar is reached."""
        return all(bar.ok for bar in self.bars)

    def as_dict(self) -> dict[str, Any]:
        """The one object that ``--json`` prints."""
        return {
            "bench": self.bench,
            "environment": self.environment,
            "arms": _rounded(self.arms),
            "ratios": {name: _rounded(spread._asdict()) for name, spread in self.ratios.items()},
            "bars": [bar.as_dict() for bar in self.bars],
            "details": _rounded(self.details),
        }

    def render(self, console: Console) -> None:
        """Ratios and bars as tables."""
        title = f"mmspec bench {self.bench}"
        if self.ratios:
            ratios = Table("ratio", "median", "min", "max", title=title, title_justify="left")
            for name, spread in self.ratios.items():
                ratios.add_row(name, *(f"{value:.2f}" for value in spread))
            console.print(ratios)
        bars = Table("bar", "measured", "must be", "", title="bars" if self.ratios else title, title_justify="left")
        for bar in self.bars:
            verdict = "[green]ok[/]" if bar.ok else "[red]falls short[/]"
            bars.add_row(bar.name, f"{bar.value:.3f}", f"{'≤' if bar.at_most else '≥'} {bar.bar:g}", verdict)
        if self.bars:
            console.print(bars)


def timed(work: Callable[[], Any]) -> Timed:
    """Run once under the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    value = work()
    return Timed(value, time.perf_counter() - wall, time.process_time() - cpu)


def take_turns(arms: Mapping[str, Callable[[], Any]], turn: int) -> dict[str, Timed]:
    """Run every arm once, starting with another one each ``turn``, so that no arm always runs on a hot cache."""
    names = list(arms)
    start = turn % len(names)
    runs = {name: timed(arms[name]) for name in names[start:] + names[:start]}
    return {name: runs[name] for name in names}


def counted(items: Iterable[T], progress: Progress, text: str, total: int) -> Iterable[T]:
    """``items``, with progress reported after each."""
    progress.stage(text, float(total))
    for done, item in enumerate(items, start=1):
        yield item
        progress.advance_to(float(done))


def environment(**more: Any) -> dict[str, Any]:
    """Machine and versions that the figures belong to; ``more`` is added as it is."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "packages": {name: _version(name) for name in PACKAGES},
        **more,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = next((line for line in file if line.startswith("model name")), "")
    except OSError:
        found = ""
    return found.partition(":")[2].strip() or platform.processor() or platform.machine()


def _rounded(value: Any) -> Any:
    """Floats to four significant places, all the way down: more would be noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if value == value and abs(value) != float("inf") else None
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
