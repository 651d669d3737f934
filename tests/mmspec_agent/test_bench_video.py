"""``mmspec bench video`` on a tiny model: films with truth, arms that agree, lags, bars, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_chat import tiny_chat_vlm
from typer.testing import CliRunner

from mmspec_agent.bench.video import VideoOptions, lags, run
from mmspec_agent.bench.video_arms import NAMES, OURS, PLAIN, STATELESS
from mmspec_agent.bench.video_hours import hours
from mmspec_agent.bench.video_scenes import CHANGES, KINDS, film
from mmspec_agent.cli.main import build
from mmspec_agent.clip import bundled_clip
from mmspec_agent.core.errors import OptionError, SourceNotFound
from mmspec_agent.models.progress import Silent
from mmspec_agent.video.frame import Frame
from mmspec_agent.video.gate import Gate
from mmspec_agent.video.watch import DEFAULT_GATE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model as `save_pretrained` leaves it."""
    path = tmp_path_factory.mktemp("vlm")
    model, processor = tiny_chat_vlm()
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_films_have_truth_and_change_where_they_say(kind: str) -> None:
    one = film(kind, 6)
    assert [shot.time_s for shot in one.shots] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    facts = [shot.fact for shot in one.shots]
    assert all(fact is not None for fact in facts)
    values = [fact.value for fact in facts if fact is not None]
    assert len({fact.text for fact in facts if fact is not None}) == 1
    if kind in CHANGES:
        assert one.change == 3
        assert len(set(values[:3])) == len(set(values[3:])) == 1
        assert values[2] != values[3]
    else:
        assert one.change is None


def test_the_gate_learns_the_noise_and_breaks_at_a_cut() -> None:
    for kind in ("static_noise", "cut"):
        gate = Gate(DEFAULT_GATE)
        found = []
        for index, shot in enumerate(film(kind, 10).shots):
            frame = Frame(shot.image, shot.time_s, shot.time_s, index)
            found.append(gate.decide(frame).reason)
            gate.answered(frame)
        assert set(found[4:]) <= ({"still"} if kind == "static_noise" else {"still", "changed", "scene break"})
        assert (found[5] == "still") == (kind == "static_noise")


def test_all_arms_run_and_ours_equals_plain(folder: str) -> None:
    options = VideoOptions(folder, ("fp32",), ("static_noise", "cut"), frames=4, new_tokens=6, hours=0)
    report = run(options, Silent())
    bars = {bar.name: bar for bar in report.bars}
    assert bars["fp32: share of answers equal to the plain arm's"].ok
    assert "fp32 static_noise: tokens per step" in bars
    assert "fp32 cut: answer changes at the right frame" in bars
    assert bars["gate: largest difference from scikit-image's SSIM"].ok
    assert bars["gate: milliseconds of one core for a frame of 1080p"].bar == 3.0
    arms = report.arms["fp32"]["static_noise"]
    assert set(arms) == set(NAMES)
    assert arms[STATELESS]["vision_passes"] == 1
    assert arms[OURS]["vision_passes"] <= 1
    assert arms["HF with history"]["answers"] == 3
    assert arms["HF with history"]["prefilled_tokens"] > arms[STATELESS]["prefilled_tokens"]
    assert arms[OURS]["forwards"] <= arms[PLAIN]["forwards"]
    assert report.details["equal_answers"]["fp32"]["equal_to_hf_stateless"] == 1.0
    json.dumps(report.as_dict())


def test_json_from_the_command_with_a_clip(folder: str) -> None:
    arguments = ["bench", "video", "--model", folder, "--json", "--scene", "lamp", "--frames", "4", "--dtype", "fp32"]
    arguments += ["--new-tokens", "4", "--hours", "0", "--clips", str(bundled_clip())]
    result = CliRunner().invoke(build(), arguments)
    assert result.exit_code in (0, 1), result.exception
    report = json.loads(result.stdout)
    assert {row["scene"] for row in report["details"]["frames"]} == {"lamp", "scenes.mp4"}
    assert any("changes at the right frame" in bar["name"] for bar in report["bars"])


def test_hours_stay_flat_in_the_short_form() -> None:
    found = hours(300, Silent())
    assert found.kv_bytes_last <= found.kv_bytes_first
    assert found.resident_growth < 16 * 2**20
    assert found.rebased >= 3


def test_lags_follow_the_newest_frame() -> None:
    assert max(lags([0.3])) == pytest.approx(0.3)
    slow = lags([1.2])
    assert np.max(slow) <= 1.2 + 0.5
    assert np.mean(slow[-10:]) == pytest.approx(np.mean(slow[:10]), abs=0.2)


def test_wrong_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown scene 'fog'"):
        VideoOptions(kinds=("fog",))
    with pytest.raises(OptionError, match="frames=2"):
        VideoOptions(frames=2)
    result = CliRunner().invoke(build(), ["bench", "video", "--clips", str(tmp_path)])
    assert isinstance(result.exception, SourceNotFound)
