"""The bytes of a picture from where a text says they are: a URL, a data: URL, base64, a path."""

from __future__ import annotations

import base64
import binascii
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mmspec_agent.core.errors import PictureError, PictureNotFound

from .pixels import ACCEPTED

MAX_PIXELS = 89_478_485
"""What Pillow itself warns at: a quarter of a gigabyte of RGB. A file of a few kilobytes can claim more."""

MAX_REMOTE_BYTES = 64 << 20
MAX_LOCAL_BYTES = 1 << 30
REMOTE_TIMEOUT_SECONDS = 20
"""Longest silence of a server."""
REMOTE_DEADLINE_SECONDS = 60
"""Longest time that one picture may take to arrive."""

_CHUNK = 1 << 16
_MIN_BARE_BASE64 = 32
"""Shorter text is taken for a path that is not there."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SAFE_IN_URL = "/:?&=+$,;%~@!*'()#[]"


@dataclass(frozen=True)
class PictureRules:
    """Where pictures may come from, and how large they may be.

    ``allow_remote``: fetch http(s) URLs. ``allow_local``: read paths and file: URLs (a server for others says no).
    ``remote_hint``: how the caller's interface allows fetching, for the error that asks for it.
    """

    allow_remote: bool = False
    allow_local: bool = True
    max_pixels: int = MAX_PIXELS
    remote_hint: str = "pass allow_remote=True"


class Encoded(NamedTuple):
    """A picture file's bytes, and what to call them in an error."""

    body: bytes
    name: str


def bytes_of_text(text: str, rules: PictureRules) -> Encoded:
    """The bytes behind a URL, a data: URL, a path, or base64 text. PictureError, or PictureNotFound."""
    text = text.strip() if text[:1].isspace() or text[-1:].isspace() else text
    if text[:5].lower() == "data:":
        return Encoded(_data_url(text), "the data: URL")
    scheme = _SCHEME.match(text)
    kind = scheme[1].lower() if scheme else "file" if text[:5].lower() == "file:" else ""
    if kind in ("http", "https"):
        return Encoded(_fetch(text, rules), shown_url(text))
    if kind == "file":
        return bytes_of_path(_file_url(text), rules)
    if kind:
        raise PictureError(f"{shown_url(text)}: a URL of kind {kind!r} cannot be read; accepted is {ACCEPTED}")
    bare = _bare_base64(text)
    if bare is not None and not (rules.allow_local and _is_file(text)):
        return Encoded(bare, "the base64 text")
    return bytes_of_path(Path(text), rules)


def bytes_of_path(path: Path, rules: PictureRules) -> Encoded:
    """A file's bytes. PictureNotFound if there is none."""
    shown = str(path) if len(str(path)) < 200 else f"{str(path)[:80]}…"
    if not rules.allow_local:
        raise PictureError("paths are not read here; pass the picture itself as a data: URL")
    try:
        path = path.expanduser()
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise PictureError(f"{shown!r} is a device or a pipe, not a file of a picture")
        with path.open("rb") as file:
            body = file.read(MAX_LOCAL_BYTES + 1)
    except FileNotFoundError as error:
        raise PictureNotFound(f"there is no picture {shown!r}; accepted is {ACCEPTED}") from error
    except (OSError, ValueError, RuntimeError) as error:
        raise PictureError(f"{shown!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(body) > MAX_LOCAL_BYTES:
        raise PictureError(f"{shown!r} is larger than {MAX_LOCAL_BYTES >> 20} MiB; shrink it first")
    return Encoded(body, shown)


def bytes_of_file(file: Any) -> Encoded:
    """What an open binary file holds, from its start where it can go back there."""
    name = f"the open {type(file).__name__}"
    try:
        if getattr(file, "seekable", lambda: False)():
            file.seek(0)
        body = file.read(MAX_LOCAL_BYTES + 1)
    except Exception as error:  # objects with a read of their own raise what they like
        raise PictureError(f"{name} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise PictureError(f"{name} gives {type(body).__name__}, not bytes; open it in binary mode ('rb')")
    if len(body) > MAX_LOCAL_BYTES:
        raise PictureError(f"{name} holds more than {MAX_LOCAL_BYTES >> 20} MiB; shrink it first")
    return Encoded(bytes(body), name)


def bytes_of_base64(text: Any) -> bytes:
    """Base64, also of the URL-safe alphabet, without its padding, with line breaks, or as a data: URL."""
    if isinstance(text, (bytes, bytearray, memoryview)):
        text = bytes(text).decode("latin-1")
    if not isinstance(text, str):
        raise PictureError(f"base64 text is expected where a {type(text).__name__} was given")
    if text[:5].lower() == "data:":
        return _data_url(text)
    plain = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError(f"the picture's base64 text is damaged: {error}") from error


def shown_url(url: str) -> str:
    """A URL as errors may show it: without user, password and query, and not endlessly long."""
    head, _, _ = url.partition("?")
    scheme, mark, rest = head.partition("://")
    host, slash, path = rest.partition("/")
    plain = f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}" if mark else head
    return plain if len(plain) < 200 else f"{plain[:80]}…"


def _data_url(text: str) -> bytes:
    head, comma, body = text.partition(",")
    if not comma:
        raise PictureError("the data: URL has no comma; accepted is data:image/png;base64,…")
    if head.split(";")[-1].strip().lower() != "base64":
        return urllib.parse.unquote_to_bytes(body)
    try:
        return bytes_of_base64(urllib.parse.unquote(body))
    except PictureError as error:
        raise PictureError(f"the data: URL is damaged: {error.__cause__ or error}") from error


def _bare_base64(text: str) -> bytes | None:
    if len(text) < _MIN_BARE_BASE64:
        return None
    try:
        return bytes_of_base64(text)
    except PictureError:
        return None


def _is_file(text: str) -> bool:
    try:
        return Path(text).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def _file_url(text: str) -> Path:
    try:
        parts = urllib.parse.urlsplit(text)
        path = urllib.request.url2pathname(parts.path)
    except (ValueError, OSError) as error:
        raise PictureError(f"{text[:80]!r} is no file: URL: {error}") from error
    if parts.netloc not in ("", "localhost"):
        raise PictureError(f"{text[:80]!r} names a file of another machine ({parts.netloc}); accepted is {ACCEPTED}")
    return Path(path)


def _fetch(url: str, rules: PictureRules) -> bytes:
    shown = shown_url(url)
    if not rules.allow_remote:
        raise PictureError(
            f"{shown} would have to be fetched from the network; {rules.remote_hint} to allow it, or give a local path "
            "or a data: URL"
        )
    try:
        with _opener().open(_request(url), timeout=REMOTE_TIMEOUT_SECONDS) as answer:
            body = _read(answer, shown)
    except PictureError:
        raise
    except Exception as error:  # the server decides what goes wrong: http.client, ssl and sockets raise their own
        raise PictureError(f"{shown} cannot be fetched: {_reason(error)}") from error
    if len(body) > MAX_REMOTE_BYTES:
        raise PictureError(f"{shown} is larger than {MAX_REMOTE_BYTES >> 20} MiB; download and shrink it first")
    return body


def _opener() -> urllib.request.OpenerDirector:
    """http and https alone: a redirect may not lead to a file or to ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _request(url: str) -> urllib.request.Request:
    """The address as a server takes it: quoted, its user and password in a header of their own."""
    parts = urllib.parse.urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    host = host.encode("idna").decode() if not host.isascii() else host
    plain = urllib.parse.urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    request = urllib.request.Request(urllib.parse.quote(plain, safe=_SAFE_IN_URL))
    request.add_header("User-Agent", "mmspec_agent")
    if at:
        secret = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    return request


def _read(answer: Any, shown: str) -> bytes:
    """The body, within the limits of bytes and time: a server may send it drop by drop."""
    started, parts, size = time.monotonic(), [], 0
    while size <= MAX_REMOTE_BYTES:
        part = answer.read1(_CHUNK)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if time.monotonic() - started > REMOTE_DEADLINE_SECONDS:
            raise PictureError(f"{shown} did not arrive within {REMOTE_DEADLINE_SECONDS} seconds")
    missing = getattr(answer, "length", None)
    if missing and size <= MAX_REMOTE_BYTES:
        raise PictureError(f"{shown} broke off {missing} bytes before its end")
    return b"".join(parts)


def _reason(error: Exception) -> str:
    """What went wrong, without the address, which may hold secrets."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        inner = error.reason
        return f"{type(inner).__name__}: {inner}" if isinstance(inner, Exception) else str(inner).split("://")[0]
    if isinstance(error, TimeoutError):
        return f"the server was silent for {REMOTE_TIMEOUT_SECONDS} seconds"
    if isinstance(error, http.client.HTTPException):
        return f"what answers is no HTTP server, or breaks off ({type(error).__name__})"
    return getattr(error, "strerror", None) or type(error).__name__
