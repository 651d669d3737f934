"""What the gate sees and what it must not miss (cases ssim-*, exposure-step, drift-anchor, camera-shake, scene-cut)."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from mmspec_agent.core.errors import OptionError
from mmspec_agent.video.frame import Frame
from mmspec_agent.video.gate import Gate, GateDecision, GateOptions, measure_gate
from mmspec_agent.video.similarity import compare, factor_for, reduce, ssim, ssim_reference, thumbnail

Picture = npt.NDArray[np.uint8]


def scene(seed: int = 0, height: int = 360, width: int = 640) -> Picture:
    """Coloured boxes and discs on a soft gradient, a little blurred: texture and flat parts, as cameras see."""
    rng = np.random.default_rng(seed)
    picture = np.add.outer(np.linspace(60, 120, height), np.linspace(0, 60, width))[:, :, None].repeat(3, 2)
    picture = picture.astype(np.uint8)
    for _ in range(40):
        x, y, size = int(rng.integers(0, width)), int(rng.integers(0, height)), int(rng.integers(8, 60))
        colour = tuple(int(c) for c in rng.integers(40, 200, 3))
        if rng.random() < 0.5:
            cv2.rectangle(picture, (x, y), (x + size, y + size), colour, -1)
        else:
            cv2.circle(picture, (x, y), size // 2, colour, -1)
    return np.asarray(cv2.GaussianBlur(picture, (5, 5), 0), dtype=np.uint8)


def noisy(picture: Picture, sigma: float, seed: int) -> Picture:
    noise = np.random.default_rng(seed).normal(0, sigma, picture.shape)
    changed: Picture = np.clip(picture + noise, 0, 255).astype(np.uint8)
    return changed


def gain(picture: Picture, factor: float) -> Picture:
    changed: Picture = np.clip(picture * factor, 0, 255).astype(np.uint8)
    return changed


def frame(picture: Picture, index: int = 0, *, time_s: float | None = None, discontinuity: bool = False) -> Frame:
    return Frame(picture, index * 0.1 if time_s is None else time_s, None, index, discontinuity=discontinuity)


def judge(anchor: Picture, picture: Picture, options: GateOptions | None = None) -> GateDecision:
    gate = Gate(options)
    first = frame(anchor)
    assert not gate.decide(first).hit
    gate.answered(first)
    return gate.decide(frame(picture, 1))


@pytest.mark.parametrize("size", [(7, 7), (7, 400), (50, 31), (135, 240), (126, 224)])
def test_fast_ssim_equals_skimage(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    for sigma in (0, 3, 30, 200):
        one = rng.integers(0, 256, size, dtype=np.uint8)
        other = np.clip(one + rng.normal(0, sigma, size), 0, 255).astype(np.uint8)
        assert ssim(one, other) == pytest.approx(ssim_reference(one, other), abs=1e-4)


def test_gate_value_equals_skimage_on_the_thumbnail() -> None:
    one, other = scene(0, 1080, 1920), noisy(scene(0, 1080, 1920), 10, 3)
    decision = judge(one, other)
    grays = [cv2.cvtColor(reduce(picture), cv2.COLOR_RGB2GRAY) for picture in (one, other)]
    assert grays[0].shape == (135, 240)
    assert decision.ssim == pytest.approx(ssim_reference(grays[0], grays[1]), abs=1e-4)


def test_reduction_is_by_a_whole_factor_and_keeps_the_edges() -> None:
    assert factor_for(1920, 1080) == 8
    assert factor_for(640, 360) in (2, 3)
    assert factor_for(100, 50) == 1
    odd = np.zeros((361, 643, 3), np.uint8)
    odd[:, -1] = 255
    small = reduce(odd)
    assert small[:, -1].max() > 60


@pytest.mark.parametrize("size", [(6, 6), (1, 1), (5, 400), (7, 7), (400, 5), (8, 8)])
def test_small_pictures_never_raise(size: tuple[int, int]) -> None:
    black, white = np.zeros((*size, 3), np.uint8), np.full((*size, 3), 255, np.uint8)
    assert judge(black, black).ssim == pytest.approx(1.0)
    assert judge(black, black).hit
    assert not judge(black, white).hit


def test_the_same_picture_is_a_hit_and_may_be_left_out() -> None:
    decision = judge(scene(), scene())
    assert decision.hit
    assert decision.skippable
    assert decision.reason == "still"
    assert decision.ssim == pytest.approx(1.0)
    assert decision.colour == 0


@pytest.mark.parametrize("diameter", [4, 8, 16, 32])
def test_a_lamp_may_reuse_the_draft_but_never_leaves_the_frame_out(diameter: int) -> None:
    lit = scene()
    cv2.circle(lit, (200, 120), diameter // 2, (255, 0, 0), -1)
    decision = judge(scene(), lit)
    assert decision.ssim > 0.98
    assert decision.hit
    assert not decision.skippable
    assert decision.colour > 12 or decision.tile_min < 0.9


def test_a_change_of_colour_at_equal_luma_is_seen() -> None:
    """Green to red with the same grey value: SSIM says 1.0000."""
    green, red = scene(), scene()
    cv2.circle(green, (300, 200), 20, (0, 120, 0), -1)
    cv2.circle(red, (300, 200), 20, (236, 0, 0), -1)
    decision = judge(green, red)
    assert decision.ssim > 0.999
    assert decision.colour > 50
    assert not decision.skippable


def test_exposure() -> None:
    """A little brighter is still the same scene, half as bright again or an infrared switch is a break."""
    assert judge(scene(), gain(scene(), 1.2)).hit
    for changed in (gain(scene(), 1.5), gain(scene(), 0.6)):
        decision = judge(scene(), changed)
        assert decision.scene_break
        assert not decision.hit
    grey = cv2.cvtColor(cv2.cvtColor(scene(), cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    infrared = judge(scene(), np.asarray(grey, dtype=np.uint8))
    assert infrared.scene_break
    assert judge(np.asarray(grey, dtype=np.uint8), scene()).scene_break


def test_a_cut_is_a_scene_break() -> None:
    decision = judge(scene(0), scene(1))
    assert not decision.hit
    assert decision.reason in ("scene break", "changed")
    other = noisy(np.full((360, 640, 3), 100, np.uint8), 40, 0)
    assert judge(scene(0), other).scene_break


def test_slow_drift_is_compared_with_the_answered_frame() -> None:
    """A cross-fade of 200 frames: every pair of neighbours looks the same, the anchor tells."""
    one, other = scene(0).astype(float), scene(1).astype(float)
    gate = Gate()
    first = frame(scene(0))
    gate.decide(first)
    gate.answered(first)
    missed_at, before, neighbours = [], thumbnail(scene(0)), []
    for index in range(1, 201):
        share = index / 200
        current = frame((one * (1 - share) + other * share).astype(np.uint8), index)
        decision = gate.decide(current)
        thumb = thumbnail(current.rgb)
        neighbours.append(compare(before, thumb).ssim)
        before = thumb
        if not decision.hit:
            missed_at.append(index)
            gate.answered(current)
    assert min(neighbours) > 0.95
    assert len(missed_at) >= 2
    assert missed_at[0] < 150


def test_camera_shake_reads_as_change_unless_it_is_undone() -> None:
    """Shifts by 6 and 12 of 640 pixels are 2 and 4 of the thumbnail."""
    for shift in (6, 12):
        shaken = np.roll(scene(), (shift // 2, shift), axis=(0, 1))
        assert not judge(scene(), shaken).hit
        steady = judge(scene(), shaken, GateOptions(steady=True))
        assert steady.hit
        assert not steady.skippable
    assert not judge(scene(0), scene(1), GateOptions(steady=True)).hit
    assert judge(scene(0, 6, 6), scene(0, 6, 6), GateOptions(steady=True)).hit


def test_an_old_anchor_is_no_hit() -> None:
    gate = Gate(GateOptions(max_age_s=5))
    first = frame(scene(), time_s=0.0)
    gate.decide(first)
    gate.answered(first)
    assert gate.decide(frame(scene(), 1, time_s=4.9)).hit
    late = gate.decide(frame(scene(), 2, time_s=5.2))
    assert late.reason == "anchor age"
    assert not late.hit
    assert not late.skippable


def test_nothing_crosses_a_gap() -> None:
    gate = Gate()
    first = frame(scene())
    gate.decide(first)
    gate.answered(first)
    gap = gate.decide(frame(scene(), 1, discontinuity=True))
    assert gap.reason == "discontinuity"
    assert gap.crosses_gap
    assert not gap.hit
    # The frame behind the gap was not answered: what was before it is still out of reach.
    assert gate.decide(frame(scene(), 2)).crosses_gap
    third = frame(scene(), 3)
    gate.answered(third)
    assert gate.decide(frame(scene(), 4)).hit


def test_another_size_is_a_break_and_reset_forgets() -> None:
    gate = Gate()
    gate.answered(frame(scene()))
    assert gate.decide(frame(scene(0, 180, 320), 1)).reason == "size"
    gate.reset()
    assert gate.decide(frame(scene(), 2)).reason == "first"


def static(gate: Gate, sigma: float, count: int = 14) -> list[GateDecision]:
    picture, decisions = scene(), []
    for index in range(count):
        current = frame(noisy(picture, sigma, index), index)
        decisions.append(gate.decide(current))
        gate.answered(current)
    return decisions


def test_calibration_lets_noise_of_sigma_8_pass() -> None:
    assert not any(d.hit for d in static(Gate(), 12)[1:])
    gate = Gate(GateOptions(calibrate_s=0.8))
    decisions = static(gate, 12)
    assert gate.threshold < 0.95
    assert all(d.hit for d in decisions[9:])
    assert not any(d.skippable for d in decisions)
    assert all(d.hit for d in static(Gate(GateOptions(calibrate_s=0.8)), 8)[9:])
    assert not gate.decide(frame(scene(1), 15)).hit


def test_calibration_is_not_fooled_by_motion_and_never_raises_the_threshold() -> None:
    moving = Gate(GateOptions(calibrate_s=0.8))
    for index in range(14):
        moving.decide(frame(np.roll(scene(), index * index, axis=1), index))
    assert moving.threshold == 0.95
    quiet = Gate(GateOptions(calibrate_s=0.8))
    static(quiet, 0.5)
    assert quiet.threshold == 0.95


def test_options_are_checked() -> None:
    wrong: list[dict[str, Any]] = [{"threshold": 2.0}, {"max_age_s": 0.0}, {"colour_threshold": -1.0}]
    for options in wrong:
        with pytest.raises(OptionError, match=next(iter(options))):
            GateOptions(**options)


def test_the_gate_measures_itself() -> None:
    """The bar of 3 ms of one core at 1080p belongs to ``mmspec bench video``: a test may run on a busy machine."""
    cost = measure_gate(frames=8)
    assert (cost.width, cost.height) == (1920, 1080)
    assert cost.worst_error < 1e-4
    assert min(cost.fast_ms, cost.cpu_ms, cost.reference_ms) > 0


@pytest.mark.parametrize(("width", "height"), [(640, 360), (1920, 1080), (3840, 2160), (1000, 4000)])
def test_what_is_compared_does_not_grow_with_the_frame(width: int, height: int) -> None:
    small = thumbnail(np.zeros((height, width, 3), np.uint8))
    assert max(small.gray.shape) <= 280
    assert small.chroma.shape[:2] == small.gray.shape


def disc(picture: Picture, radius: int, level: float, seed: int) -> Picture:
    """A soft-edged disc, ``level`` brighter than what it lies on, somewhere in the picture."""
    height, width = picture.shape[:2]
    rng = np.random.default_rng(seed)
    place = int(rng.integers(radius, width - radius)), int(rng.integers(radius, height - radius))
    mask = np.zeros((height, width), np.float32)
    cv2.circle(mask, place, radius, 1.0, -1, cv2.LINE_AA)
    changed: Picture = np.clip(picture + level * mask[:, :, None], 0, 255).astype(np.uint8)
    return changed


@pytest.mark.parametrize(
    ("size", "level", "radius"),
    [
        ((360, 640), 20, 2), ((360, 640), 120, 2), ((1080, 1920), 20, 5), ((1080, 1920), 40, 4), ((1080, 1920), 120, 3),
        ((2160, 3840), 20, 12), ((2160, 3840), 40, 8), ((2160, 3840), 120, 5),
    ],
)  # fmt: skip
def test_a_grey_spot_of_the_size_the_page_names_is_never_left_out(
    size: tuple[int, int], level: int, radius: int
) -> None:
    """Colourless and on texture: neither chroma nor the mean of a tile tells."""
    before = scene(0, *size)
    gate, first = Gate(), frame(before)
    gate.decide(first)
    gate.answered(first)
    for seed in range(4):
        assert not gate.decide(frame(disc(before, radius, level, seed), seed + 1)).skippable


@pytest.mark.parametrize("level", [20, 120])
def test_a_spot_is_seen_through_noise(level: int) -> None:
    for seed in range(4):
        before = scene(0)
        assert not judge(noisy(before, 3, 1), noisy(disc(before, 6, level, seed), 3, 2)).skippable


def test_a_spot_that_fades_in_is_noticed_before_it_is_half_there() -> None:
    """Frames left out do not move the anchor: small steps add up until they are seen."""
    gate, before = Gate(), scene(0)
    first = frame(before)
    gate.decide(first)
    gate.answered(first)
    noticed = [not gate.decide(frame(disc(before, 8, 40 * k / 40, 3), k)).skippable for k in range(1, 41)]
    assert noticed.index(True) < 20


@pytest.mark.parametrize("sigma", [0.5, 1, 2, 4, 6])
def test_noise_alone_may_still_be_left_out(sigma: float) -> None:
    assert judge(noisy(scene(), sigma, 1), noisy(scene(), sigma, 2)).skippable
