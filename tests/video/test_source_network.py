"""Streams over loopback that stall, die and come back (cases rtsp-*, reconnect-*, frigate-idle-camera)."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

from mmspec_agent.core.errors import (
    SourceEnded,
    SourceError,
    SourceLost,
    SourceOpenError,
    SourceOpenTimeout,
    SourceStalled,
)
from mmspec_agent.video.source import FrameSource, open_source

pytestmark = pytest.mark.slow

PATIENCE = 60.0
"""Seconds waited for what has to come; a machine that is busy may take its time."""

_HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=frame\r\n\r\n"


class MjpegServer:
    """Serves ``frames`` pictures of one grey level with noise, ``period`` apart, then holds or drops the connection."""

    def __init__(
        self, level: int = 60, frames: int = 10**9, period: float = 0.05, hold: bool = True, port: int = 0
    ) -> None:
        self.level, self.frames, self.period, self.hold = level, frames, period, hold
        self._socket = socket.create_server(("127.0.0.1", port), reuse_port=False)
        self.port = self._socket.getsockname()[1]
        self._stop = threading.Event()
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://user:secret@127.0.0.1:{self.port}/cam.mjpg"

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self._clients.append(client)
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        rng = np.random.default_rng(self.level)
        try:
            client.recv(4096)
            client.sendall(_HEAD)
            for _ in range(self.frames):
                if self._stop.is_set():
                    break
                noise = rng.integers(-4, 5, (48, 64, 3))
                _, jpeg = cv2.imencode(".jpg", np.clip(self.level + noise, 0, 255).astype(np.uint8))
                body = jpeg.tobytes()
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                client.sendall(head + body + b"\r\n")
                self._stop.wait(self.period)
            if self.hold:
                self._stop.wait()
        except OSError:
            pass
        finally:
            client.close()

    def close(self) -> None:
        self._stop.set()
        for open_socket in (self._socket, *self._clients):
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()
        for thread in self._threads:
            thread.join(2)


@contextmanager
def serving(server: MjpegServer) -> Iterator[MjpegServer]:
    try:
        yield server
    finally:
        server.close()


def until_error(source: FrameSource, tries: int = 50) -> SourceError | None:
    """The error the source ends in."""
    for _ in range(tries):
        try:
            source.latest(timeout=1)
        except SourceError as error:
            return error
    return None


def _threads() -> int:
    return sum(thread.name.startswith("mmspec-") for thread in threading.enumerate())


def test_stalled_stream_is_reported_in_time_and_never_blocks() -> None:
    with serving(MjpegServer(frames=10, hold=True)) as server, open_source(server.url, read_timeout=1.0) as source:
        arrived, unanswered = time.monotonic(), 0
        while not [event for event in source.take_events() if event.kind == "stalled"]:
            frame = source.latest(timeout=0.05)
            arrived = frame.arrived_s if frame is not None else arrived
            unanswered = 0 if frame is not None else unanswered + 1
            assert time.monotonic() - arrived < PATIENCE
        assert time.monotonic() - arrived >= 0.95
        assert unanswered >= 3  # the consumer was told again and again that there is nothing
        assert source.stats.stalls == 1
        back = source.latest(timeout=PATIENCE)
        assert back is not None
        assert back.discontinuity
        assert source.stats.reconnects == 1
    assert _threads() == 0


def test_without_reconnecting_a_stall_is_an_error() -> None:
    with serving(MjpegServer(frames=3)) as server, open_source(server.url, read_timeout=0.7, reconnect=False) as source:
        error = until_error(source)
    assert isinstance(error, SourceStalled)
    assert "stall_timeout" in str(error)


@pytest.mark.parametrize("scheme", ["http", "rtsp"])
def test_silent_server_fails_to_open_in_time_without_naming_the_password(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://user:secret@127.0.0.1:{silent.getsockname()[1]}/live"
        with pytest.raises(SourceOpenTimeout) as caught:
            open_source(url, open_timeout=1.0, read_timeout=1.0)
        assert "secret" not in str(caught.value)
        assert "127.0.0.1" in str(caught.value)


def test_refused_connection_fails_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(SourceOpenError):
        open_source(f"http://127.0.0.1:{port}/cam.mjpg", open_timeout=5)


def test_stream_that_goes_away_and_comes_back_resumes_with_a_discontinuity() -> None:
    first = MjpegServer(level=60, frames=20, hold=False)
    with open_source(first.url, read_timeout=2, backoff=0.2, backoff_cap=0.5) as source:
        frames = [source.latest(timeout=PATIENCE)]
        time.sleep(1.2)
        first.close()
        frames += list(iter(lambda: source.latest(timeout=0.1), None))
        time.sleep(1.0)
        with serving(MjpegServer(level=180, port=first.port)):
            resumed = source.latest(timeout=PATIENCE)
            frames += [resumed, source.latest(timeout=PATIENCE)]
    assert resumed is not None
    assert resumed.discontinuity
    assert abs(int(resumed.rgb.mean()) - 180) < 6
    kept = [f for f in frames if f is not None]
    assert all(a.index < b.index and a.time_s < b.time_s for a, b in pairwise(kept))
    assert sum(f.discontinuity for f in kept) >= 1
    assert source.stats.reconnects >= 1


def test_relay_restarted_three_times_leaks_nothing() -> None:
    sockets_before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    server = MjpegServer(level=40)
    indices: list[int] = []
    with open_source(server.url, read_timeout=2, backoff=0.1, backoff_cap=0.4) as source:
        for level in (90, 140, 190):
            frame = source.latest(timeout=PATIENCE)
            assert frame is not None
            indices.append(frame.index)
            server.close()
            server = MjpegServer(level=level, port=server.port)
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                frame = source.latest(timeout=1)
                if frame is not None and abs(int(frame.rgb.mean()) - level) < 8:
                    break
            assert frame is not None
            assert abs(int(frame.rgb.mean()) - level) < 8
            indices.append(frame.index)
        assert _threads() <= 3
    server.close()
    assert indices == sorted(set(indices))
    assert _threads() == 0
    if sockets_before:
        assert len(os.listdir("/proc/self/fd")) <= sockets_before + 2


def test_gives_up_after_the_attempts_allowed() -> None:
    server = MjpegServer(frames=3, hold=False)
    with open_source(server.url, read_timeout=1, reconnect=2, backoff=0.1) as source:
        server.close()
        error = until_error(source)
    assert isinstance(error, SourceLost)
    assert "2 attempts" in str(error)
    assert "secret" not in str(error)


def test_slow_but_regular_camera_is_not_restarted() -> None:
    server = MjpegServer(period=2.0)
    with serving(server), open_source(server.url, read_timeout=0.8, stall_timeout=5) as source:
        frames = [source.latest(timeout=PATIENCE) for _ in range(3)]
        assert all(frame is not None and not frame.discontinuity for frame in frames)
        assert source.stats.reconnects == source.stats.stalls == 0


def test_live_reader_is_not_behind_the_stream() -> None:
    """A consumer of 5 Hz on a 25 Hz stream sees the newest picture, whatever OpenCV buffers."""
    with serving(MjpegServer(period=0.04)) as server, open_source(server.url, read_timeout=2) as source:
        for _ in range(10):
            grabbed = source.stats.grabbed
            frame = source.latest(timeout=PATIENCE)
            assert frame is not None
            assert frame.index >= grabbed - 1
            time.sleep(0.2)
        stats = source.stats
        assert stats.grabbed - stats.delivered - stats.dropped in (0, 1)
        assert stats.dropped > 0


def test_close_while_stalled_ends_the_threads() -> None:
    with serving(MjpegServer(frames=2)) as server:
        source = open_source(server.url, read_timeout=1.5)
        assert source.latest(timeout=PATIENCE) is not None
        time.sleep(0.3)
        source.close()
        source.close()
        assert _threads() == 0
        with pytest.raises(SourceEnded):
            source.latest(timeout=1)


def test_errors_are_of_one_family() -> None:
    assert issubclass(SourceOpenTimeout, SourceError)
    assert issubclass(SourceOpenTimeout, TimeoutError)
