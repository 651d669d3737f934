"""A password in an address is never shown: not in errors and their causes, events, logs, warnings or names."""

from __future__ import annotations

import logging
import socket
import threading
import traceback
from typing import Any

import pytest
from made_clips import encode, moving, serving

from mmspec_agent.video.redaction import shown
from mmspec_agent.video.source import open_source

SECRET = "hunter2"
"""Planted in every part an address has."""


def spellings(host: str) -> list[str]:
    """Addresses, mistyped ones, pipelines and paths, each with the secret somewhere."""
    s = SECRET
    return [
        f"http://user:{s}@{host}/cam.mjpg",
        f"http://{s}@{host}/cam.mjpg",
        f"http://{s}:@{host}/cam.mjpg",
        f"http://:{s}@{host}/",
        f"https://user:{s}@{host}/cam",
        f"HTTP://user:{s}@{host}/cam",
        f" http://user:{s}@{host}/cam",
        f"http://user:{s}@{host}",
        f"http://user:12/{s}@{host}/cam",
        f"http://user:{s}/34@{host}/cam",
        f"http://user:{s}?x@{host}/cam",
        f"http://user:{s}#x@{host}/cam",
        f"http://user:a@{s}@{host}/cam",
        f"http://user:%68{s}%40@{host}/cam",
        f"http://user:pa%2F{s}@{host}/cam",
        f"http://{host}/cam?password={s}",
        f"http://{host}/cam?user=a&pwd={s}&channel=1",
        f"http://{host}/cam#{s}",
        f"http://{host}/cam;token={s}",
        f"http://{host}/token/{s}/index.m3u8",
        f"http://{host}/user=admin&password={s}&channel=1",
        f"http://{host}/?{s}",
        f"http://{host}//{s}",
        f"http://{host}:{s}/",
        f"rtsp://admin:{s}@{host}/live",
        f"rtsp://admin:12/{s}@{host}",
        f"rtsp://{host}/user=admin&password={s}&channel=1&stream=0.sdp",
        f"rtsp://{host}/user=admin_password={s}_channel=1",
        f"rtsp://{host}/{s}",
        f"rtsps://admin:{s}@{host}/live",
        f"rtsp:/admin:{s}@{host}/live",
        f"rtsp//admin:{s}@{host}/live",
        f"rtsp:admin:{s}@{host}/live",
        f"rtsp:\\\\admin:{s}@{host}\\live",
        f"rtmp://{host}/app/{s}",
        f"srt://{host}?passphrase={s}&mode=caller",
        f"udp://{s}@{host}",
        f"ftp://user:{s}@{host}/film.mp4",
        f"admin:{s}@{host}/live",
        f"//admin:{s}@{host}/live",
        f"user={s}",
        f"rtspsrc location=rtsp://admin:{s}@{host}/live user-pw={s} ! decodebin ! appsink",
        f"rtspsrc location=rtsp://{host}/ user-pw={s} !decodebin!appsink",
        f"http://user:{s}＠{host}/cam",
        f"http://[::1:{s}]/cam",
        f"file://user:{s}@{host}/film.mp4",
        f"file:///film.mp4?token={s}",
        f"data:text/plain,{s}?",
        f"concat:http://{host}/?a={s}|b",
        f"crypto+http://{host}/?key={s}",
    ]


@pytest.fixture(scope="module")
def refusing() -> str:
    """A host and port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"127.0.0.1:{port}"


def everything_of(error: BaseException) -> str:
    """Messages of an error and of all behind it, shown or suppressed, with the traceback as printed."""
    parts, chain = [], [error]
    while chain:
        one = chain.pop()
        parts += [str(one), repr(one), repr(one.args), "".join(traceback.format_exception_only(one))]
        chain += [other for other in (one.__cause__, one.__context__) if other is not None]
    return "\n".join([*parts, "".join(traceback.format_exception(error))])


def test_there_are_enough_spellings() -> None:
    assert len(set(spellings("h"))) >= 40


@pytest.mark.parametrize("number", range(len(spellings("h"))))
def test_nothing_that_fails_to_open_shows_its_secret(
    number: int, refusing: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    given = spellings(refusing)[number]
    told: list[str] = []
    with caplog.at_level(logging.DEBUG), pytest.raises(Exception) as caught:
        open_source(given, open_timeout=0.4, reconnect=False, on_event=lambda event: told.append(event.text))
    out, err = capfd.readouterr()
    seen = [everything_of(caught.value), *told, caplog.text, out, err]
    # The line of this test that opened it is in the traceback; the address itself is not.
    assert not [text for text in seen if SECRET in text]
    assert SECRET not in shown(given)


def test_hosts_and_schemes_of_plain_addresses_are_still_named() -> None:
    assert shown("rtsp://admin:pa%3Ass@cam.local:554/live?key=1") == "rtsp://cam.local:554"
    assert shown("http://10.0.0.1/a.mjpg") == "http://10.0.0.1"
    assert shown("rtsp://user@[::1]:8554/x") == "rtsp://[::1]:8554"
    assert shown("clip.mp4") == "clip.mp4"
    assert shown(0) == "camera 0"
    assert shown("videotestsrc ! appsink") == "GStreamer pipeline"


def names_of(source: Any) -> str:
    return repr(source.info) + " ".join(thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_opens_shows_no_secret_either(is_whole: bool, tmp_path: Any) -> None:
    """Events, frames' source, thread names, and the error of a stream that ends."""
    content = encode(tmp_path / "film.ts", moving(30), "mpeg2video").read_bytes()
    told: list[str] = []
    with serving({f"/{SECRET}/cam": ("video/mp2t", content, is_whole)}) as (host, requests):
        address = f"http://user:{SECRET}@{host}/{SECRET}/cam?token={SECRET}"
        with open_source(address, on_event=lambda e: told.append(e.text), reconnect=1, backoff=0.02) as source:
            frames = [repr(names_of(source))]
            try:
                frames += [repr(frame) for frame in source]
            except Exception as error:
                frames.append(everything_of(error))
    assert requests[0].endswith(f"token={SECRET}")
    assert told
    assert not [text for text in frames + told if SECRET in text]
