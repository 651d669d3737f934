"""`mmspec bench image`, `mmspec ask` and their tables, on the tiny model: what is counted is counted right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_chat import noise_picture, tiny_chat_vlm
from typer.testing import CliRunner

from mmspec_agent import Engine
from mmspec_agent.bench.common import Report
from mmspec_agent.bench.image import TURNS, ImageOptions, Measured, run, summarise
from mmspec_agent.bench.image_arms import HF, OURS, Answered, ImageArms
from mmspec_agent.bench.image_lossy import accuracy_table
from mmspec_agent.bench.image_memory import budget_run, int8_table
from mmspec_agent.cli.main import build
from mmspec_agent.core.errors import OptionError
from mmspec_agent.models.progress import Silent


@pytest.fixture
def engine() -> Engine:
    return Engine(*tiny_chat_vlm(), visual_budget=60_000)


def test_both_arms_answer_the_same(engine: Engine) -> None:
    arms = ImageArms(engine)
    session = engine.session()
    picture = {"type": "image", "image": noise_picture(1)}
    first = arms.turn(
        session, {"role": "user", "content": [picture, {"type": "text", "text": "what?"}]}, 10, hf_first=True
    )
    assert first[HF].tokens == first[OURS].tokens
    assert (first[HF].vision_passes, first[OURS].vision_passes) == (1, 1)
    second = arms.turn(session, {"role": "user", "content": "and?"}, 10, hf_first=False)
    assert (second[HF].vision_passes, second[OURS].vision_passes) == (1, 0)
    assert second[OURS].prefilled == second[OURS].new_text
    assert 0 < second[OURS].first_token <= second[OURS].total
    assert 0 < second[HF].first_token <= second[HF].total


def test_bars_are_read_off_the_turns() -> None:
    """Ours twice as fast in every turn, first token after a quarter of the time; one repeat in three was disturbed."""
    measured = [
        Measured(
            turn,
            0,
            tuple(
                {
                    HF: Answered([1, 2, 3], 0.4 * slow, 2.0 * slow, 1, 100, 100),
                    OURS: Answered([1, 2, 3], 0.1, 1.0, int(turn.first), 20, 20, 2.0),
                }
                for slow in (1.0, 9.0, 1.0)
            ),
        )
        for turn in TURNS
    ]
    report = Report("image", {})
    summarise(report, "fp32", measured)
    assert report.ok
    assert all(spread.median == pytest.approx(2.0) for name, spread in report.ratios.items() if "speed" in name)
    slow = [
        one._replace(repeats=tuple({**each, OURS: each[OURS]._replace(total=3.0)} for each in one.repeats))
        for one in measured
    ]
    worse = Report("image", {})
    summarise(worse, "fp32", slow)
    assert not worse.ok


def test_budget_and_int8_tables(engine: Engine) -> None:
    held = budget_run(engine, noise_picture, 30, Silent())
    assert held["most_bytes"] <= held["budget"] == 60_000
    assert held["vision_passes"] == 30
    assert held["evictions"] > 0
    assert held["changed_answers"] == 0
    assert held["vision_passes_when_asked_again"] < held["asked_again"]
    table = int8_table(engine, [noise_picture(3)], "what?", 12)
    assert 0 < table["tokens_compared"] <= 12
    assert table["share_of_bytes"] < 1


def test_compression_is_measured_at_every_ratio(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec_agent.bench.image_lossy.KEPT", (None, 2))
    rows = accuracy_table(engine, 1, Silent())
    assert [row["visual_tokens"] for row in rows] == ["all", 2]
    assert rows[0]["prompt_tokens"] == rows[1]["prompt_tokens"] + 2
    assert rows[0]["questions"] == rows[1]["questions"] == 5


def test_strange_options_are_named() -> None:
    for options in (ImageOptions(scenes=0), ImageOptions(repeats=0)):
        with pytest.raises(OptionError, match="at least one scene"):
            run(options, Silent())


def test_ask_prints_answers_and_costs(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise_picture(5).save(tmp_path / "p.png")
    loaded: list[str] = []

    def from_pretrained(name: str, **_: Any) -> Engine:
        loaded.append(name)
        return engine

    monkeypatch.setattr(Engine, "from_pretrained", from_pretrained)
    command = ["ask", str(tmp_path / "p.png"), "what?", "--then", "and?", "--max-new-tokens", "6"]
    shown = CliRunner().invoke(build(), command)
    assert shown.exit_code == 0, shown.output
    assert "vision tower ran 1×" in shown.output
    assert "vision tower ran 0×" in shown.output
    as_json = CliRunner().invoke(build(), [*command, "--json"])
    lines = [json.loads(line) for line in as_json.stdout.splitlines() if line.startswith("{")]
    assert [line["question"] for line in lines] == ["what?", "and?"]
    assert loaded == ["reference-vlm", "reference-vlm"]
    for wrong in (["ask", "what?"], ["ask", str(tmp_path / "gone.png"), "what?"]):
        assert CliRunner().invoke(build(), wrong).exit_code != 0
    assert len(loaded) == 2, "a wrong path is found before a model is loaded"
