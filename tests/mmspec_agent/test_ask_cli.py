"""`mmspec ask` before a model is loaded: what is asked of what, and errors in the words of a command line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from mmspec_agent.cli.ask import _split
from mmspec_agent.cli.main import main
from mmspec_agent.cli.wording import in_command_line_words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    (tmp_path / "plain").write_bytes((tmp_path / "a.png").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error_of(*words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["mmspec", "ask", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    return shown


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["a.png", "b.png"], "a question"),
        (["a.png", "gone.jpg"], "a question"),
        (["a.png", "plain"], "a question"),
        (["a.png"], "a question"),
        (["a.png", "https://h/x"], "a question"),
        (["a.png", "  "], "a question"),
        (["What is it?"], "a picture"),
        (["gone.png", "What?"], "no picture 'gone.png'"),
        (["http://127.0.0.1:1/a.png", "What?"], "--allow-remote"),
        (["ftp://127.0.0.1/a.png", "What?"], "'ftp'"),
        (["a.png", "What?", "--model", "/no/such/model"], "model"),
    ],
)
def test_errors_before_the_model_is_loaded(
    folder: Path, words: list[str], missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = error_of(*words, monkeypatch=monkeypatch, capsys=capsys)
    assert missing in shown
    assert not re.search(r"\w=(True|\d)|engine\.", shown)


def test_a_question_may_name_a_picture(folder: Path) -> None:
    assert _split(["a.png", "Is it like b.png"]) == (["a.png"], "Is it like b.png")
    assert _split(["a.png", "b.png", "Which?"]) == (["a.png", "b.png"], "Which?")


def test_wording() -> None:
    assert in_command_line_words("pass allow_remote=True to allow it") == "pass --allow-remote to allow it"
    assert in_command_line_words("max_new_tokens=0: accepted") == "--max-new-tokens 0: accepted"
    assert in_command_line_words("use engine.watch for it") == "use mmspec watch for it"
    assert in_command_line_words("a == b, x=3") == "a == b, x=3"
