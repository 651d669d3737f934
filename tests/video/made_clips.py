"""Clips made by PyAV for the tests: a picture that moves, in any codec, container, field order and pixel shape."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from mmspec_agent.video.frame import Frame
from mmspec_agent.video.source import open_source

Picture = npt.NDArray[np.uint8]
PATIENCE = 60.0
"""Seconds waited for what has to come; a machine that is busy may take its time."""


def moving(count: int, height: int = 96, width: int = 128, seed: int = 0) -> list[Picture]:
    """Coloured blocks that move to the right by four pixels a picture."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(30, 220, (height // 8, width // 8, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    return [np.roll(blocks, 4 * index, 1) for index in range(count)]


def encode(path: Path, pictures: list[Picture], codec: str = "libx264", **settings: Any) -> Path:
    """Write a clip. Settings: ``fps``, ``format`` of the container, ``pix_fmt``, ``options`` of the codec, and
    ``attributes`` of the codec context."""
    options = settings.get("options") or {}
    with av.open(str(path), "w", format=settings.get("format")) as container:
        stream: Any = container.add_stream(codec, rate=settings.get("fps", 25), options=options)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = settings.get("pix_fmt", "yuv420p")
        for name, value in (settings.get("attributes") or {}).items():
            setattr(stream.codec_context, name, value)
        for picture in pictures:
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def interlaced(path: Path, pictures: list[Picture], codec: str) -> Path:
    """A clip of fields: H.264 in any container, or MPEG-2."""
    own = {"x264-params": "interlaced=1:tff=1"} if codec == "libx264" else {}
    return encode(path, pictures, codec, options={"flags": "+ildct+ilme", **own})


def square(ratio: Fraction) -> dict[str, Any]:
    """Attributes of a clip whose pixels are ``ratio`` times as wide as high."""
    return {"sample_aspect_ratio": ratio}


def read_all(given: Any, **options: Any) -> list[Frame]:
    """Every frame of a source."""
    with open_source(given, **options) as source:
        return list(source)


def source_threads() -> int:
    """How many threads of sources are alive."""
    return sum(thread.name.startswith("mmspec-") for thread in threading.enumerate())


def wait_until_no_threads() -> None:
    """What was released may still be on its way out."""
    until = time.monotonic() + PATIENCE
    while source_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert source_threads() == 0


class Answer(BaseHTTPRequestHandler):
    """Serves what the server's ``site`` holds: path to (content type, content, whether its length is told)."""

    def __init__(self, site: dict[str, tuple[str, bytes, bool]], log: list[str], *arguments: Any) -> None:
        self._site, self._log = site, log
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """One file, whole; ranges are not known here."""
        path = self.path.split("?")[0]
        self._log.append(self.path)
        if path not in self._site:
            self.send_error(404)
            return
        kind, content, has_length = self._site[path]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if has_length:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            self.wfile.write(content)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@contextmanager
def serving(site: dict[str, tuple[str, bytes, bool]]) -> Iterator[tuple[str, list[str]]]:
    """A server on the loopback; its address, and the requests it got."""
    log: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Answer, site, log))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", log
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)
