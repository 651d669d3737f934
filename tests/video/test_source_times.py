"""Times out of what sources report: restarts, holes, missing and negative ones; live and recorded alike."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from made_clips import read_all

from mmspec_agent.video.clock import SimulatedClock
from mmspec_agent.video.source_times import FrameTimes

P = np.zeros((48, 64, 3), np.uint8)


def timed(times: list[float | None]) -> list[Any]:
    return [(time, P) for time in times]


def every(count: int, step: float = 0.1, start: float = 0.0) -> list[float | None]:
    return [start + index * step for index in range(count)]


@pytest.mark.parametrize("live", [False, True])
def test_times_that_restart_go_on(live: bool) -> None:
    given = timed(every(100) * 2)
    options: dict[str, Any] = {"live": True, "clock": SimulatedClock()} if live else {}
    frames = read_all(given, fps=1, **options)
    # What is played live ends with its newest picture, thinned or not.
    frames = frames[:20]
    assert [f.time_s for f in frames] == pytest.approx(list(range(20)), abs=0.11)
    assert sum(f.discontinuity for f in frames) == 1
    assert frames[-1].time_s < 20


def test_many_restarts_add_up() -> None:
    frames = read_all(timed(every(10) * 30))
    assert len(frames) == 300
    assert frames[-1].time_s == pytest.approx(29.9)
    assert sum(f.discontinuity for f in frames) == 29


@pytest.mark.parametrize(
    ("raw", "marked"),
    [
        ([*every(5), *every(5, start=-3.0)], [5]),
        ([*every(5), 60.0, -1.0, -0.9], [5, 6]),
        ([-2.0, -1.9, -1.8, -1.7, 5.0, -7.0, -6.9], [4, 5]),
        ([*every(5, start=-0.5)], []),
        ([*every(4), 100.0, 100.1], [4]),
    ],
)
def test_a_gap_is_marked_at_its_frame(raw: list[float | None], marked: list[int]) -> None:
    live: dict[str, Any] = {"live": True, "clock": SimulatedClock()}
    for options in ({}, live):
        frames = read_all(timed(raw), **options)
        assert [f.index for f in frames if f.discontinuity] == marked
        assert [f.raw_time_s for f in frames] == raw


def test_missing_times_are_counted() -> None:
    nothing: list[float | None] = [None] * 100
    assert len(read_all(timed(nothing), fps=1)) == 4
    assert len(read_all(timed(nothing), fps=1, rate=10)) == 10
    mixed = read_all(timed([0.0, 0.1, None, None, 0.4, 0.5]))
    assert [f.time_s for f in mixed] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    late = read_all(timed([None, None, 7.0, 7.1]), rate=10)
    assert [f.time_s for f in late] == pytest.approx([0.0, 0.1, 7.0, 7.1])


@pytest.mark.parametrize("seed", range(20))
def test_any_times_become_strictly_increasing_ones(seed: int) -> None:
    """And what runs evenly in the source runs evenly here: a step is kept wherever the source steps forward."""
    rng = random.Random(seed)
    times, raw, before = FrameTimes(), rng.uniform(-50, 50), None
    last: float | None = None
    for _ in range(300):
        draw = rng.random()
        raw = raw + rng.uniform(0.001, 0.3) if draw < 0.8 else rng.uniform(-1e4, 1e4)
        given = None if 0.8 < draw < 0.85 else math.nan if 0.85 < draw < 0.87 else raw
        stamp = times.stamp(given, rng.choice([None, 25.0]))
        assert math.isfinite(stamp.time_s)
        assert last is None or stamp.time_s > last
        if given is not None and before is not None and last is not None and 0.01 < given - before < 0.3:
            assert stamp.time_s - last == pytest.approx(given - before, abs=1e-6)
        before, last = (given if given is None or math.isfinite(given) else None), stamp.time_s


def test_frames_of_a_restarting_stream_never_bunch() -> None:
    clock = SimulatedClock()
    frames = read_all(timed(every(20) * 3), live=True, clock=clock)
    assert all(b.arrived_s - a.arrived_s == pytest.approx(0.1, abs=0.02) for a, b in pairwise(frames))
