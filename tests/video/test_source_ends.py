"""Pipes, failures that end by name, and closing in every state: nothing hangs, nothing is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_clips import PATIENCE, encode, moving, read_all, wait_until_no_threads

from mmspec_agent.core.errors import SourceEnded, SourceError, SourceLost, SourceOpenError, SourceOpenTimeout
from mmspec_agent.video.frame import Frame
from mmspec_agent.video.opening import CLOSE_WAIT_S
from mmspec_agent.video.source import FrameSource, open_source

Picture = np.ndarray[Any, np.dtype[np.uint8]]


# -- pipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mpegts", "matroska", "h264"])
def test_a_named_pipe_gives_every_frame(tmp_path: Path, kind: str) -> None:
    content = encode(tmp_path / "film", moving(40), format=kind).read_bytes()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        time.sleep(0.05)  # the reader is there first
        with pipe.open("wb") as file:
            file.write(content)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    assert len(read_all(pipe)) == 40
    thread.join(PATIENCE)
    wait_until_no_threads()


@pytest.mark.slow
def test_standard_input_gives_every_frame(tmp_path: Path) -> None:
    film = encode(tmp_path / "film.ts", moving(40), "mpeg2video", format="mpegts")
    program = "from mmspec_agent.video.source import open_source; print(len(list(open_source('-'))))"
    for given in (film.open("rb"), subprocess.DEVNULL):
        done = subprocess.run([sys.executable, "-c", program], stdin=given, capture_output=True, text=True, check=False)
        assert (done.stdout.strip() == "40") if given != subprocess.DEVNULL else ("SourceOpenError" in done.stderr)
    with subprocess.Popen(["cat", str(film)], stdout=subprocess.PIPE) as cat:
        done = subprocess.run(
            [sys.executable, "-c", program], stdin=cat.stdout, capture_output=True, text=True, check=False
        )
        assert done.stdout.strip() == "40", done.stderr


def test_a_pipe_without_a_writer_is_given_up_in_time_without_a_thread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SourceOpenTimeout, match="open_timeout"):
        open_source(tmp_path / "pipe", open_timeout=0.3)
    wait_until_no_threads()
    assert len(os.listdir("/proc/self/fd")) <= descriptors


# -- flat pictures behind failures ----------------------------------------------------------------------------------


class Camera:
    """Gives what a script says: a picture's kind a read, "x" for a failed one; the last one for ever."""

    def __init__(self, script: str, seed: int = 0) -> None:
        self._script, self._count = script, 0
        self._rng = np.random.default_rng(seed)

    def read(self) -> tuple[bool, Picture | None]:
        time.sleep(0.002)
        kind = self._script[min(self._count, len(self._script) - 1)]
        self._count += 1
        if kind == "x":
            return False, None
        if kind == ".":
            return True, self._rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        level = {"b": (0, 0, 0), "g": (0, 135, 0), "w": (255, 255, 255)}[kind]
        return True, np.full((48, 64, 3), level, np.uint8)

    def release(self) -> None:
        """Nothing is held."""


def taken(source: FrameSource, count: int = 10**9) -> tuple[list[Frame], SourceError | None]:
    """Frames until there are ``count``, or until the source fails."""
    frames: list[Frame] = []
    try:
        while len(frames) < count:
            frame = source.latest(timeout=PATIENCE)
            assert frame is not None
            frames.append(frame)
    except SourceError as error:
        return frames, error
    return frames, None


@pytest.mark.parametrize("flat", ["b", "g", "w"])
def test_flat_pictures_behind_a_failure_are_not_handed_out(flat: str) -> None:
    with open_source(Camera("....x" + flat * 12 + ".")) as source:
        frames: list[Frame] = []
        while source.stats.withheld < 12 or len(frames) < 3 or not any(f.discontinuity for f in frames):
            frames += taken(source, 1)[0]
        assert source.stats.withheld == 12
        assert [event.kind for event in source.take_events()].count("warning") == 1
    assert all(np.ptp(frame.rgb) > 0 for frame in frames)
    assert sum(frame.discontinuity for frame in frames) == 1


@pytest.mark.parametrize("script", [".." + "xbbb" * 30, "..." + "xxb" * 30, "." + "xggx" * 30])
def test_failing_again_and_again_ends_by_name(script: str) -> None:
    with open_source(Camera(script)) as source:
        frames, error = taken(source)
    assert isinstance(error, SourceLost)
    assert "again and again" in str(error)
    assert all(np.ptp(frame.rgb) > 0 for frame in frames)


def test_a_camera_made_anew_that_gives_nothing_but_black_ends_by_name() -> None:
    made: list[Camera] = []

    def make() -> Camera:
        made.append(Camera(("...." if not made else "bbb") + "x", len(made)))
        return made[-1]

    with open_source(make, backoff=0.005, backoff_cap=0.01) as source:
        frames, error = taken(source)
    assert isinstance(error, SourceLost)
    assert "again and again" in str(error)
    assert len(made) < 20
    assert all(np.ptp(frame.rgb) > 0 for frame in frames)


def test_a_dark_scene_that_never_failed_is_shown_and_so_is_one_that_differs() -> None:
    with open_source(Camera("bbbbbbbb")) as source:
        assert taken(source, 3)[1] is None
    with open_source(Camera("..xbw.")) as source:
        until = time.monotonic() + PATIENCE
        while source.stats.grabbed < 5 and time.monotonic() < until:
            time.sleep(0.005)
        assert source.stats.withheld == 1  # white is not what black was: two pictures that differ are pictures


def test_failures_that_recover_are_no_end() -> None:
    with open_source(Camera("..x" * 40 + ".")) as source:
        frames, error = taken(source, 40)
    assert error is None
    assert len(frames) == 40


# -- closing --------------------------------------------------------------------------------------------------------


@contextmanager
def silent_server(talks: bytes = b"") -> Iterator[int]:
    """Accepts, says ``talks`` and then nothing."""
    stop = threading.Event()
    clients: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            while not stop.is_set():
                try:
                    client, _ = server.accept()
                except OSError:
                    continue
                clients.append(client)
                client.sendall(talks)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        stop.set()
        thread.join(PATIENCE)
        for client in clients:
            client.close()


def jpeg_part() -> bytes:
    import cv2

    body = cv2.imencode(".jpg", moving(1)[0])[1].tobytes()
    return f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n"


def stream_head() -> bytes:
    return b"HTTP/1.0 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=frame\r\n\r\n" + jpeg_part() * 4


def closed_soon(close: Callable[[], None]) -> None:
    """Closing returns, and leaves no thread: a guard of many times what is promised, for a machine that is busy."""
    started = time.monotonic()
    close()
    assert time.monotonic() - started < 10 * CLOSE_WAIT_S
    wait_until_no_threads()


def test_closing_while_stalled() -> None:
    """The server has gone silent: all time-outs are an hour, so only the closing can end the read."""
    with silent_server(stream_head()) as port:
        source = open_source(
            f"http://127.0.0.1:{port}/cam", stall_timeout=3600, read_timeout=3600, open_timeout=PATIENCE
        )
        assert source.latest(PATIENCE) is not None
        closed_soon(source.close)
        with pytest.raises(SourceEnded):
            source.latest()


@pytest.mark.slow
def test_closing_while_it_reconnects() -> None:
    with silent_server(stream_head()) as port:
        source = open_source(f"http://127.0.0.1:{port}/cam", stall_timeout=0.2, open_timeout=3600, backoff=0.01)
    # Nobody is there any more; then somebody is, who never answers.
    with socket.create_server(("127.0.0.1", port)):
        until = time.monotonic() + PATIENCE
        while not any(e.kind in ("stalled", "lost") for e in source.take_events()) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)
        closed_soon(source.close)


@pytest.mark.parametrize("wait", [0.0, 3600.0])
def test_closing_between_attempts(wait: float) -> None:
    with silent_server(stream_head()) as port:
        source = open_source(f"http://127.0.0.1:{port}/cam", stall_timeout=0.1, backoff=wait or 0.001, backoff_cap=3600)
    until = time.monotonic() + PATIENCE
    while not any(e.kind in ("stalled", "lost") for e in source.take_events()) and time.monotonic() < until:
        time.sleep(0.01)
    closed_soon(source.close)


_CTRL_C = """
import signal, threading, os, sys, time
from mmspec_agent.video.source import open_source
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    with open_source({given}, open_timeout=3600, read_timeout=3600, stall_timeout=3600) as source:
        while True:
            source.latest()
except KeyboardInterrupt:
    print("interrupted", sum(t.name.startswith("mmspec-") for t in threading.enumerate()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["http", "rtsp", "pipe", "stalled", "hanging camera"])
def test_an_interrupt_ends_opening_and_reading(state: str, tmp_path: Path) -> None:
    """All time-outs are an hour: without an end by the interrupt the test would not come back."""
    os.mkfifo(tmp_path / "pipe")
    with silent_server(stream_head() if state == "stalled" else b"") as port:
        given = {
            "http": f"'http://127.0.0.1:{port}/cam'",
            "rtsp": f"'rtsp://127.0.0.1:{port}/cam'",
            "pipe": f"{str(tmp_path / 'pipe')!r}",
            "stalled": f"'http://127.0.0.1:{port}/cam'",
            "hanging camera": "lambda: time.sleep(3600)",
        }[state]
        done = subprocess.run(
            [sys.executable, "-c", _CTRL_C.format(given=given)],
            capture_output=True,
            text=True,
            check=False,
            timeout=10 * PATIENCE,
        )
    left = 1 if state == "hanging camera" else 0
    assert done.stdout.split() == ["interrupted", str(left)], done.stderr


def test_closing_an_endless_film_half_way(tmp_path: Path) -> None:
    with silent_server(b"HTTP/1.0 200 OK\r\nContent-Length: 900000\r\n\r\n" + b"\x47" * 9999) as port:
        with pytest.raises(SourceOpenError):
            open_source(f"http://127.0.0.1:{port}/film.ts", open_timeout=0.5)
        wait_until_no_threads()
