"""Did the picture change since the last answer?

The verdict decides whether the last answer is *offered* as a draft at once; after any other verdict the acceptance
measured behind such verdicts decides. The target verifies drafts on the real frame: a wrong hit costs one rejected
block, never an answer. Leaving a frame out altogether (``skippable``) is lossy, so it asks for more: no tile may have
changed, no colour, no spot of luma, and the anchor may not be old.

Camera shake of 2 or more pixels of the thumbnail reads as change (SSIM 0.92 to 0.96) unless ``steady`` is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import cv2
import numpy as np

from mmspec_agent.core.errors import OptionError

from .frame import Frame
from .similarity import GrayArray, Likeness, Thumbnail, compare, compare_shaken, ssim, ssim_reference, thumbnail

Reason = Literal["first", "discontinuity", "size", "scene break", "anchor age", "changed", "still"]
_MAX_SPREAD = 0.02
_MIN_PAIRS = 3


@dataclass(frozen=True)
class GateOptions:
    """``threshold``: SSIM from which the picture counts as unchanged. ``tile_threshold``,
    ``colour_threshold`` and ``luma_threshold`` (levels of chroma and luma) matter for leaving frames out only. A
    ``scene break`` is an SSIM below ``break_ssim``, brightness changed by ``break_luma`` times, or colour gone (or
    back) to less than ``break_saturation``.
    ``steady``: undo small shifts of the camera before a frame counts as changed (several ms, on such frames only).
    ``max_age_s``: an anchor older than this is no hit. ``calibrate_s``: lower the threshold to what sensor noise
    allows, measured over that many seconds, if the picture stands still then; never below ``calibrate_floor``.
    """

    threshold: float = 0.95
    tile_threshold: float = 0.9
    colour_threshold: float = 12.0
    luma_threshold: float = 5.0
    break_ssim: float = 0.5
    break_luma: float = 1.3
    break_saturation: float = 0.25
    steady: bool = False
    max_age_s: float | None = None
    calibrate_s: float | None = None
    calibrate_floor: float = 0.8

    def __post_init__(self) -> None:
        for name in ("threshold", "tile_threshold", "break_ssim", "break_saturation", "calibrate_floor"):
            if not -1.0 <= getattr(self, name) <= 1.0:
                raise OptionError(f"gate option {name}={getattr(self, name)!r} was given; accepted are -1 to 1")
        for name in ("max_age_s", "calibrate_s", "colour_threshold", "luma_threshold", "break_luma"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise OptionError(f"gate option {name}={value!r} was given; accepted are numbers above 0")


@dataclass(frozen=True)
class GateDecision:
    """A frame against the last answered one.

    ``hit``: offer the last answer. ``skippable``: nothing at all seems to have changed. ``scene_break``: the old
    answer has nothing to say here. ``crosses_gap``: frames were lost before this one; what was remembered is stale.
    ``ssim``, ``tile_min``, ``colour`` and ``luma`` are NaN where nothing was compared. ``threshold``: the one in force.
    """

    ssim: float
    tile_min: float
    colour: float
    hit: bool
    reason: Reason
    skippable: bool = False
    scene_break: bool = False
    crosses_gap: bool = False
    threshold: float = 0.95
    age_s: float = 0.0
    luma: float = float("nan")


class Gate:
    """Compares every frame with the anchor, the last frame that was *answered*, so that slow drift adds up."""

    def __init__(self, options: GateOptions | None = None) -> None:
        self._options = options or GateOptions()
        self._anchor: Thumbnail | None = None
        self._anchor_time = 0.0
        self._last: tuple[Frame, Thumbnail] | None = None
        self._gap = False
        self._calibration = Calibration(self._options)

    @property
    def threshold(self) -> float:
        """The threshold in force, after calibration."""
        return self._calibration.threshold

    def decide(self, frame: Frame) -> GateDecision:
        """The verdict on ``frame``; about 2 ms of one core at 1080p."""
        thumb = thumbnail(frame.rgb)
        if frame.discontinuity:
            self._anchor, self._gap = None, True
            self._calibration.restart()
        self._calibration.feed(thumb, frame.time_s)
        self._last = (frame, thumb)
        if self._anchor is None:
            return self._without_anchor()
        if self._anchor.full_size != thumb.full_size:
            return self._miss("size", scene_break=True)
        age = max(0.0, frame.time_s - self._anchor_time)
        likeness = compare(self._anchor, thumb)
        if self._options.steady and likeness.ssim < self.threshold:
            likeness = likeness._replace(ssim=compare_shaken(self._anchor, thumb))
        return self._judge(likeness, age)

    def answered(self, frame: Frame) -> None:
        """``frame`` has been answered: it is the anchor from here on."""
        known = self._last is not None and self._last[0] is frame
        thumb = self._last[1] if self._last is not None and known else thumbnail(frame.rgb)
        self._anchor, self._anchor_time, self._gap = thumb, frame.time_s, False

    def reset(self) -> None:
        """Forget the anchor: another question, another stream."""
        self._anchor, self._last, self._gap = None, None, False
        self._calibration.restart()

    def _without_anchor(self) -> GateDecision:
        if self._gap:
            return self._miss("discontinuity", scene_break=True, crosses_gap=True)
        return self._miss("first")

    def _miss(self, reason: Reason, scene_break: bool = False, crosses_gap: bool = False) -> GateDecision:
        nan = float("nan")
        return GateDecision(nan, nan, nan, False, reason, False, scene_break, crosses_gap, self.threshold)

    def _judge(self, likeness: Likeness, age: float) -> GateDecision:
        options = self._options
        broken = (
            likeness.ssim < options.break_ssim
            or likeness.luma_ratio >= options.break_luma
            or likeness.saturation_ratio < options.break_saturation
        )
        reason: Reason = "still"
        if broken:
            reason = "scene break"
        elif options.max_age_s is not None and age > options.max_age_s:
            reason = "anchor age"
        elif likeness.ssim < self.threshold:
            reason = "changed"
        hit = reason == "still"
        # Tiles were compared where they lie, so a shaken frame is offered a draft and never left out.
        quiet = (
            likeness.tile_min >= options.tile_threshold
            and likeness.colour <= options.colour_threshold
            and likeness.luma <= options.luma_threshold
        )
        return GateDecision(
            likeness.ssim,
            likeness.tile_min,
            likeness.colour,
            hit,
            reason,
            skippable=hit and quiet and likeness.ssim >= options.threshold,
            scene_break=broken,
            threshold=self.threshold,
            age_s=age,
            luma=likeness.luma,
        )


class Calibration:
    """Finds what SSIM sensor noise alone leaves, from consecutive frames of a source that stands still."""

    def __init__(self, options: GateOptions) -> None:
        self._options = options
        self.threshold = options.threshold
        self.restart()

    def restart(self) -> None:
        """Measure anew; until then the threshold is the one asked for."""
        self.threshold = self._options.threshold
        self._pairs: list[float] = []
        self._before: Thumbnail | None = None
        self._since: float | None = None
        self._done = self._options.calibrate_s is None

    def feed(self, thumb: Thumbnail, time_s: float) -> None:
        """Take a frame into account, as long as the measurement lasts."""
        if self._done:
            return
        before, self._before = self._before, thumb
        self._since = time_s if self._since is None else self._since
        if before is not None and before.gray.shape == thumb.gray.shape:
            self._pairs.append(compare(before, thumb).ssim)
        if time_s - self._since >= (self._options.calibrate_s or 0.0) and len(self._pairs) >= _MIN_PAIRS:
            self._done = True
            self._before = None
            self._settle()

    def _settle(self) -> None:
        """Noise gives the same low value again and again; motion does not, and leaves the threshold alone."""
        lowest, highest = min(self._pairs), max(self._pairs)
        usual = lowest - 0.01
        if highest - lowest <= _MAX_SPREAD and usual >= self._options.calibrate_floor:
            self.threshold = min(self._options.threshold, usual)


class GateCost(NamedTuple):
    """Milliseconds per frame on one core: ``fast_ms`` of the gate as used and ``cpu_ms``, what of that was not spent
    waiting for other programs; ``reference_ms`` of scikit-image's SSIM on the same two thumbnails alone;
    ``worst_error``: the largest difference of the two SSIM values."""

    width: int
    height: int
    fast_ms: float
    cpu_ms: float
    reference_ms: float
    worst_error: float


def measure_gate(width: int = 1920, height: int = 1080, frames: int = 20, seed: int = 0) -> GateCost:
    """Time the gate on noisy synthetic frames, OpenCV held to one thread meanwhile; medians."""
    pictures = _measured_frames(width, height, seed)
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        fast, cpu = _time_gate(pictures, frames)
        reference, errors = _time_reference([thumbnail(picture.rgb).gray for picture in pictures])
    finally:
        cv2.setNumThreads(threads)
    return GateCost(width, height, _median_ms(fast), _median_ms(cpu), _median_ms(reference), max(errors))


def _measured_frames(width: int, height: int, seed: int) -> list[Frame]:
    rng = np.random.default_rng(seed)
    ramp = np.add.outer(np.arange(height) % 200, np.arange(width) % 251).astype(np.int16) // 2
    frames = []
    for index in range(4):
        noisy = ramp[:, :, None] + rng.integers(-12, 13, (height, width, 3), dtype=np.int16)
        frames.append(Frame(np.clip(noisy, 0, 255).astype(np.uint8), float(index), None, index))
    return frames


def _time_gate(pictures: Sequence[Frame], count: int) -> tuple[list[float], list[float]]:
    gate = Gate()
    gate.answered(pictures[0])
    wall, cpu = [], []
    for index in range(count):
        started, started_cpu = time.perf_counter(), time.thread_time()
        gate.decide(pictures[index % len(pictures)])
        wall.append(time.perf_counter() - started)
        cpu.append(time.thread_time() - started_cpu)
    return wall, cpu


def _time_reference(grays: Sequence[GrayArray]) -> tuple[list[float], list[float]]:
    seconds, errors = [], []
    for gray in grays:
        started = time.perf_counter()
        exact = ssim_reference(grays[0], gray)
        seconds.append(time.perf_counter() - started)
        errors.append(abs(exact - ssim(grays[0], gray)))
    return seconds, errors


def _median_ms(seconds: Sequence[float]) -> float:
    return float(np.median(seconds)) * 1000.0
