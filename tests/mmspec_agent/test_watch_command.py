"""`mmspec watch` around the answers: what is checked first, how it is said, what is told while nothing comes."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from rich.console import Console
from tiny_chat import tiny_chat_vlm
from typer.testing import CliRunner

from mmspec_agent.cli import watch as command
from mmspec_agent.cli.interrupts import ended_at_once
from mmspec_agent.cli.main import build
from mmspec_agent.cli.spoken import FLAGS, spoken
from mmspec_agent.cli.watch_view import View
from mmspec_agent.clip import bundled_clip
from mmspec_agent.core.errors import MMSpecError
from mmspec_agent.engine import Engine

RUN = CliRunner()
SECRET = "hunter2"


class ModelLoaded(AssertionError):
    """The model was to be loaded."""


@pytest.fixture
def without_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: Any) -> Any:
        raise ModelLoaded

    monkeypatch.setattr(command, "_loaded", loaded)


@pytest.mark.usefixtures("without_model")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("no/such.mp4", "no/such.mp4"),
        ("731", "camera 731"),
        (f"http://u:{SECRET}@127.0.0.1:9/x?token={SECRET}", "http://127.0.0.1:9 "),
        ("clip --fps 0", "--fps 0"),
        ("clip --rate -1", "--rate -1"),
        ("clip --rotation 45", "--rotation 45"),
        ("clip --open-timeout 0", "--open-timeout 0"),
        ("clip --read-timeout -2", "--read-timeout -2"),
        ("clip --stall-timeout 0", "--stall-timeout 0"),
        ("clip --frozen-timeout -1", "--frozen-timeout -1"),
        ("clip --every 0", "--every 0"),
        ("clip --lossy-skip 0", "--lossy-skip 0"),
        ("clip --temperature -1", "--temperature -1"),
        ("clip --gate-threshold 3", "--gate-threshold 3"),
        ("clip --gate-max-age 0", "--gate-max-age 0"),
        ("clip -q a -q a", "given twice"),
        ("clip --save out.txt", "--save"),
        ("0 --every-frame", "--every-frame"),
    ],
)
def test_what_is_wrong_is_said_before_the_model_is_loaded_in_the_command_lines_words(arguments: str, said: str) -> None:
    result = RUN.invoke(build(), ["watch", *arguments.split()])
    assert isinstance(result.exception, MMSpecError)
    assert said in str(result.exception)
    assert SECRET not in str(result.exception) + result.output
    words = str(result.exception)
    assert not [name for name in FLAGS if f"{name}=" in words or ("_" in name and name in words)]


@pytest.mark.usefixtures("without_model")
def test_options_that_are_right_reach_the_model() -> None:
    options = (
        "--open-timeout 3 --stall-timeout 4 --frozen-timeout 0 --reconnect 2 --temperature 0.5 --seed 3 --steady "
        "--gate-threshold 0.9 --gate-max-age 5 --time-stamps --max-frame-tokens 50 --rate 3 --rotation 90"
    )
    result = RUN.invoke(build(), ["watch", "clip", *options.split()])
    assert isinstance(result.exception, ModelLoaded)


def test_flags_stand_for_names_only_where_names_stand() -> None:
    assert spoken("every=0 was given") == "--every 0 was given"
    assert spoken("at every frame, for every window") == "at every frame, for every window"
    assert spoken("within 3 s (open_timeout)") == "within 3 s (--open-timeout)"
    assert spoken("my_fps=3, x.fps=3") == "my_fps=3, x.--fps 3"


@pytest.fixture(scope="module")
def engine() -> Engine:
    model, processor = tiny_chat_vlm()
    return Engine(model, processor)


@pytest.mark.parametrize("name", ["cat [dQw4w9WgXcQ].mp4", "x[/y].mp4", "[bold]a[/bold]", "[/]", "\\[x]"])
def test_names_are_shown_as_they_are(name: str, engine: Engine) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    with (
        engine.watch(bundled_clip(), "what?", fps=2, max_new_tokens=3) as watch,
        View(console, engine.tokenizer, watch, name) as view,
    ):
        view.add(next(watch))
    assert f"{name} at 0.00 s" in out.getvalue()


def test_a_panel_names_what_was_thinned_and_is_wiped_when_the_terminal_narrows(engine: Engine) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    with (
        engine.watch(bundled_clip(), "what?", fps=2, max_new_tokens=3) as watch,
        View(console, engine.tokenizer, watch, "clip") as view,
    ):
        for index, answer in enumerate(islice(watch, 3)):
            console.width = 60 if index == 2 else 100
            before = out.getvalue()
            view.add(answer)
            assert ("\x1b[2J" in out.getvalue()[len(before) :]) == (index == 2)
    assert "thinned" in out.getvalue()
    assert "superseded" not in out.getvalue()


def test_the_signal_itself_ends_the_process_while_there_is_nothing_to_tidy_up() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ended_at_once():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before


@contextmanager
def falling_silent() -> Iterator[int]:
    """Four pictures, then nothing, on every connection."""
    body = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))[1].tobytes()
    part = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n"
    head = b"HTTP/1.0 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=frame\r\n\r\n"
    clients: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                    client.sendall(head + part * 4)
                except OSError:
                    return
                clients.append(client)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    for client in clients:
        client.close()


@pytest.mark.slow
def test_a_stall_is_told_while_it_lasts_and_an_interrupt_ends_it(tmp_path: Path) -> None:
    """No answer can come after the fourth picture: the line of the stall can only have been told by itself."""
    model, processor = tiny_chat_vlm()
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    with falling_silent() as port:
        address = f"http://user:{SECRET}@127.0.0.1:{port}/{SECRET}?x={SECRET}"
        arguments = [
            address,
            "--json",
            "--model",
            str(tmp_path),
            "--max-new-tokens",
            "3",
            "--stall-timeout",
            "1",
            "--frozen-timeout",
            "0",
        ]
        program = "import sys; from mmspec_agent.cli.main import main; sys.argv[0] = 'mmspec'; main()"
        with subprocess.Popen(
            [sys.executable, "-c", program, "watch", *arguments, "--reconnect", "1000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            lines: list[dict[str, Any]] = []
            while not (any("text" in one for one in lines) and lines[-1].get("event", {}).get("kind") == "stalled"):
                line = process.stdout.readline()
                assert line, process.stderr.read()
                assert SECRET not in line
                lines.append(json.loads(line))
            process.send_signal(signal.SIGINT)
            rest, noise = process.communicate(timeout=60)
    assert process.returncode == 0
    assert SECRET not in rest + noise
    assert "Traceback" not in noise
