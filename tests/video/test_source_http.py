"""What a URL is, is found out from what comes: films end, whatever they are called; streams go on."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

import av
import pytest
from made_clips import PATIENCE, encode, moving, read_all, serving, wait_until_no_threads
from PIL import Image

from mmspec_agent.core.errors import SourceError, SourceNotFound, SourceOpenError, SourceStalled
from mmspec_agent.video.source import open_source

pytestmark = pytest.mark.slow

Site = dict[str, tuple[str, bytes, bool]]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pictures in several containers, and as a playlist with an end."""
    root = tmp_path_factory.mktemp("films")
    for name, codec, kind in (
        ("film.mp4", "libx264", "mp4"), ("film.ts", "mpeg2video", "mpegts"), ("film.mkv", "libx264", "matroska"),
        ("film.webm", "libvpx", "webm"), ("film.h264", "libx264", "h264"), ("film.mjpeg", "mjpeg", "mjpeg"),
    ):  # fmt: skip
        encode(root / name, moving(40), codec, format=kind, pix_fmt="yuvj420p" if codec == "mjpeg" else "yuv420p")
    with (
        av.open(str(root / "film.mp4")) as film,
        av.open(
            str(root / "list.m3u8"), "w", format="hls", options={"hls_time": "0.4", "hls_playlist_type": "vod"}
        ) as playlist,
    ):
        stream = playlist.add_stream_from_template(film.streams.video[0])
        for packet in film.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                playlist.mux(packet)
    images = [Image.fromarray(picture) for picture in moving(5)]
    images[0].save(root / "five.gif", save_all=True, append_images=images[1:], duration=100)
    images[0].save(root / "still.png")
    return root


def site_of(root: Path) -> Site:
    return {f"/{path.name}": ("application/octet-stream", path.read_bytes(), True) for path in root.iterdir()}


@pytest.mark.parametrize("suffix", ["mp4", "ts", "mkv", "webm", "h264", "mjpeg"])
@pytest.mark.parametrize("shape", ["/film.{0}", "/{0}?x=film.m3u8", "/live.mjpg/{0}", "/{0}"])
def test_a_film_over_http_ends_under_any_name(films: Path, suffix: str, shape: str) -> None:
    path = shape.format(suffix)
    content = (films / f"film.{suffix}").read_bytes()
    site = {path.split("?")[0]: ("application/octet-stream", content, True)}
    with serving(site) as (host, _), open_source(f"http://{host}{path}") as source:
        assert not source.is_live
        assert len(list(source)) == 40
    wait_until_no_threads()


def test_a_playlist_with_an_end_ends(films: Path) -> None:
    site = site_of(films)
    site["/other"] = ("application/vnd.apple.mpegurl", site["/list.m3u8"][1], True)
    with serving(site) as (host, requests):
        for path in ("/list.m3u8", "/other"):
            with open_source(f"http://{host}{path}") as source:
                assert not source.is_live
                assert len(list(source)) == 40
        assert len([path for path in requests if path.endswith(".ts")]) <= 2 * len(list(films.glob("list*.ts"))) + 2


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv", "film.ts", "film.h264"])
def test_a_film_without_a_length_ends_too(films: Path, name: str) -> None:
    """HTTP/1.0 without Content-Length: whatever has no duration either is followed until it begins anew."""
    site = {"/cam": ("application/octet-stream", (films / name).read_bytes(), False)}
    with serving(site) as (host, requests):
        with open_source(f"http://{host}/cam", backoff=0.02) as source:
            indices = [frame.index for frame in source]
        assert 1 <= len(indices) <= 40
        assert len(requests) <= 3


def test_pictures_over_http_are_recordings_of_their_pictures(films: Path) -> None:
    with serving(site_of(films)) as (host, _):
        assert len(read_all(f"http://{host}/still.png")) == 1
        assert len(read_all(f"http://{host}/five.gif")) == 5


def test_what_is_not_there_is_said(films: Path) -> None:
    with serving(site_of(films)) as (host, _), pytest.raises(SourceNotFound, match="404"):
        open_source(f"http://{host}/nothing.mp4")
    site = {"/page": ("text/html", b"<html>no film</html>" * 100, True), "/empty": ("video/mp4", b"", True)}
    with serving(site) as (host, _):
        for path in ("/page", "/empty"):
            with pytest.raises(SourceOpenError):
                open_source(f"http://{host}{path}")
    wait_until_no_threads()


def test_a_connection_that_breaks_off_is_taken_up_again(films: Path) -> None:
    """The server tells the length, honours ranges, and hangs up after a third of the film, again and again."""
    content = (films / "film.ts").read_bytes()
    starts: list[int] = []
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)

        def serve() -> None:
            while not ended.is_set():
                try:
                    client, _ = server.accept()
                except TimeoutError:
                    continue
                with client:
                    client.settimeout(PATIENCE)
                    start = int(client.recv(4096).decode().lower().split("range: bytes=")[1].split("-")[0])
                    starts.append(start)
                    head = f"HTTP/1.0 206 Part\r\nContent-Length: {len(content) - start}\r\n\r\n"
                    with suppress(OSError):
                        client.sendall(head.encode() + content[start : start + len(content) // 3 + 1])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert len(read_all(f"http://127.0.0.1:{server.getsockname()[1]}/film")) == 40
        ended.set()
        thread.join(PATIENCE)
    assert len(set(starts)) >= 3


@pytest.mark.parametrize("scheme", ["http", "rtsp"])
@pytest.mark.parametrize("talks", [b"", b"HTTP/1.0 200 OK\r\nContent-Length: 99999\r\n\r\nabc"])
def test_a_server_that_falls_silent_does_not_outlast_the_open_timeout(scheme: str, talks: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        clients = []

        def serve() -> None:
            client, _ = server.accept()
            clients.append(client)
            client.sendall(talks)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(SourceError):
            open_source(f"{scheme}://127.0.0.1:{server.getsockname()[1]}/x", open_timeout=0.5)
        wait_until_no_threads()
        for client in clients:
            client.close()


def test_a_film_that_stalls_is_an_error_by_name(films: Path) -> None:
    content = (films / "film.ts").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = threading.Event()

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(4096)
                head = f"HTTP/1.0 200 OK\r\nContent-Length: {100_000_000 + len(content)}\r\n\r\n"
                client.sendall(head.encode() + content)
                held.wait(PATIENCE)

        threading.Thread(target=serve, daemon=True).start()
        source = open_source(f"http://127.0.0.1:{server.getsockname()[1]}/film", read_timeout=0.5)
        with source, pytest.raises(SourceStalled):
            list(source)
        held.set()
    wait_until_no_threads()
