"""The video examples run as they stand, here on a tiny model and the bundled clip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_chat import tiny_chat_vlm

from mmspec_agent.clip import bundled_clip

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model as `save_pretrained` leaves it."""
    path = tmp_path_factory.mktemp("vlm")
    model, processor = tiny_chat_vlm()
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return str(path)


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_webcam_qa_falls_back_to_the_clip(folder: str) -> None:
    out = run("webcam_qa.py", "/dev/no-camera-here", folder)
    assert "watching the bundled clip instead" in out
    assert out.count("How many objects are there?") == 6
    assert "tokens drafted" in out


@pytest.mark.slow
def test_doorbell_tells_news_only(folder: str) -> None:
    out = run("doorbell.py", str(bundled_clip()), "What is new?", folder)
    assert out.startswith("ding dong at 0.0 s")
    answered, news = (int(word) for word in out.splitlines()[-1].split() if word.isdecimal())
    assert answered == 16
    assert news == out.count("ding dong")
