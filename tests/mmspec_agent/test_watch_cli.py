"""``mmspec watch`` on a tiny model and the bundled clip: JSON lines, the log view, the annotated clip, errors."""

from __future__ import annotations

import io
import json
from itertools import islice
from pathlib import Path

import cv2
import pytest
from rich.console import Console
from tiny_chat import tiny_chat_vlm
from typer.testing import CliRunner

from mmspec_agent.cli.demo_video import VideoPart
from mmspec_agent.cli.main import build
from mmspec_agent.cli.watch_view import View
from mmspec_agent.clip import LENGTH_S, bundled_clip
from mmspec_agent.core.errors import OptionError
from mmspec_agent.engine import Engine
from mmspec_agent.video.source import open_source

RUN = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model as `save_pretrained` leaves it."""
    path = tmp_path_factory.mktemp("vlm")
    model, processor = tiny_chat_vlm()
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return str(path)


def watch(folder: str, *arguments: str) -> str:
    result = RUN.invoke(build(), ["watch", "clip", "--model", folder, "--max-new-tokens", "6", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_json_lines(folder: str) -> None:
    out = watch(folder, "--json", "-q", "what?", "-q", "why?", "--fps", "2", "--limit", "6")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["question"] for line in lines] == ["what?", "why?"] * 3
    assert [line["time_s"] for line in lines] == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert all(set(line) >= {"text", "lag_s", "gate", "stats", "seen", "changed"} for line in lines)


def test_log_view_and_annotated_clip(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    out = watch(folder, "--fps", "2", "--limit", "4", "--save", str(path))
    assert "frames seen, 4 answers" in out
    assert out.count(" lag ") >= 4
    capture = cv2.VideoCapture(str(path))
    assert capture.get(cv2.CAP_PROP_FRAME_WIDTH) == 480
    count = 0
    while capture.read()[0]:
        count += 1
    assert count == 5 * 3 + 10


def test_wrong_arguments_are_ours_to_explain(folder: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"\.mp4"):
        watch(folder, "--save", "out.txt")
    with pytest.raises(OptionError, match="no folder"):
        watch(folder, "--save", str(tmp_path / "missing" / "out.mp4"))
    with pytest.raises(OptionError, match="rotation"):
        watch(folder, "--rotation", "45")


def test_the_bundled_clip_is_small_and_whole() -> None:
    assert bundled_clip().stat().st_size <= 300_000
    frames = list(open_source(bundled_clip()))
    assert len(frames) == 80
    assert frames[-1].time_s == pytest.approx(LENGTH_S - 0.1, abs=0.01)
    assert frames[0].size == (192, 192)


def test_the_live_view_shows_stream_gate_and_sources() -> None:
    model, processor = tiny_chat_vlm()
    engine = Engine(model, processor)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    with (
        engine.watch(bundled_clip(), ["what?", "why?"], fps=2, max_new_tokens=5) as opened,
        View(console, engine.tokenizer, opened, "clip") as view,
    ):
        for answer in islice(opened, 4):
            view.add(answer)
    shown = out.getvalue()
    for part in (
        "clip at 0.50 s",
        "in, 2 seen",
        "a second, lag",
        "gate",
        "tokens by",
        "what?",
        "why?",
        "vision passes",
    ):
        assert part in shown
    assert "2 frames seen, 4 answers" in shown


def test_the_demo_part_compares_with_and_without_drafts(folder: str) -> None:
    out = io.StringIO()
    part = VideoPart("fp32", folder)
    assert part.unavailable() is None
    part.show(Console(file=out, width=100))
    shown = out.getvalue()
    assert "8 frames seen, 8 answers" in shown
    assert "forwards instead of" in shown
    assert "the same tokens" in shown
