"""HTTP as a file whose reads can be ended from another thread, and which never shows its address."""

from __future__ import annotations

import http.client
import socket
import urllib.error
import urllib.request
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from mmspec_agent.core.errors import SourceError, SourceNotFound, SourceOpenError, SourceOpenTimeout

from .cancel import Cancel
from .redaction import shown

_SKIP_LIMIT = 1 << 18
_SEEK_WITHOUT_RANGES = 1 << 26
"""Bytes up to which a file whose server knows no ranges is asked for again in order to go back in it."""
_STEP_S = 0.1
_RESUMPTIONS = 4
_LONGEST_READ_S = 3600.0


class HttpStream:
    """The body of one GET request, from any place of it. ``name`` is the address, for the decoder alone."""

    def __init__(self, url: str, cancel: Cancel, timeout: float, start: int = 0, end: int | None = None) -> None:
        self.name = url
        self._cancel = cancel
        self._timeout = timeout
        self._end = end
        self._position = self._wanted = start
        self._response: Any = None
        self._socket: socket.socket | None = None
        self.length: int | None = None
        self.has_ranges = False
        self.content_type = ""
        self._head = b""
        self._connect(start)

    def _connect(self, start: int) -> None:
        self._drop()
        self._cancel.check()
        headers = {"User-Agent": "mmspec", "Accept": "*/*", "Range": _range(start, self._end)}
        url, manager = _without_login(self.name)
        opener = urllib.request.build_opener(
            _Http(self._connected),
            _Https(self._connected),
            urllib.request.HTTPCookieProcessor(),
            urllib.request.HTTPDigestAuthHandler(manager),
            urllib.request.HTTPBasicAuthHandler(manager),
        )
        problem: SourceError
        try:
            response = opener.open(urllib.request.Request(url, headers=headers), timeout=self._timeout)
            self._opened(response, start)
            return
        except urllib.error.HTTPError as error:
            problem = self._refusal(error.code)
            error.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = self._failure(error)
        # Raised here, so that the library's own error, which may name the address, is not its context.
        self._cancel.check()
        raise problem

    def _opened(self, response: Any, start: int) -> None:
        self._response = response
        self.content_type = response.headers.get_content_type() if response.headers.get("Content-Type") else ""
        length = response.headers.get("Content-Length", "")
        self.has_ranges = response.status == 206
        if length.isdigit():
            self.length = int(length) + (start if self.has_ranges else 0)
        self._position = start if self.has_ranges else 0

    def _refusal(self, code: int) -> SourceError:
        where = shown(self.name)
        if code in (401, 403):
            return SourceOpenError(f"{where} refuses this login (HTTP {code}). Check user and password of the address.")
        if code in (404, 410):
            return SourceNotFound(f"{where} has nothing at this address (HTTP {code}). Check its path.")
        return SourceOpenError(f"{where} answers with HTTP {code}. Check the address and that the source is on.")

    def _failure(self, error: BaseException) -> SourceError:
        reason = getattr(error, "reason", error)
        where = shown(self.name)
        if isinstance(reason, TimeoutError):
            return SourceOpenTimeout(f"{where} did not answer within {self._timeout:g} s (open_timeout)")
        detail = {ConnectionRefusedError: "refuses connections", socket.gaierror: "is an unknown host"}
        said = next((text for kind, text in detail.items() if isinstance(reason, kind)), "does not open")
        return SourceOpenError(f"{where} {said}. Check the address, the password and that the source is on.")

    def _connected(self, connection: socket.socket) -> None:
        """A copy of the socket is kept, by which a blocked read can be ended whatever wraps the original."""
        self._socket = connection.dup()
        self._cancel.on_set(self._shut)

    def _shut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def is_finite(self) -> bool:
        """Whether the server says where the body ends."""
        return self.length is not None and self.content_type != "multipart/x-mixed-replace"

    def seekable(self) -> bool:
        """Whether another place of the body can be asked for at a bearable price."""
        return self.length is not None and (self.has_ranges or self.length <= _SEEK_WITHOUT_RANGES)

    def readable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._wanted

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place of the body; a request is made by the next read, if any."""
        base = {0: 0, 1: self._wanted, 2: self.length or 0}[whence]
        self._wanted = max(0, base + offset)
        return self._wanted

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes as soon as there are any; none at the end."""
        if self._head:
            part, self._head = self._head[:size], self._head[size:]
            self._wanted = self._position - len(self._head)
            return part
        self._go_to_wanted()
        content = self._resumed(size)
        self._position += len(content)
        self._wanted = self._position
        return content

    def _resumed(self, size: int) -> bytes:
        """The next bytes of the body; a file that breaks off is asked for again from there."""
        for attempt in range(_RESUMPTIONS):
            if self.length is not None and self._position >= self.length:
                return b""
            try:
                content = self._body(size)
            except ConnectionError:
                if not self.seekable() or attempt == _RESUMPTIONS - 1:
                    raise
                content = b""
            if content or self.length is None or not self.seekable():
                return content
            self._cancel.wait(_STEP_S * 2**attempt)
            wanted = self._position
            self._connect(wanted)
            while self._position < wanted and (part := self._body(min(1 << 16, wanted - self._position))):
                self._position += len(part)
        raise ConnectionError("the connection broke off")

    def peek(self, size: int) -> bytes:
        """The first bytes, which the next reads give again; called before anything was read."""
        while len(self._head) < size and (part := self._body(size - len(self._head))):
            self._head += part
            self._position += len(part)
        return self._head

    def _go_to_wanted(self) -> None:
        ahead = self._wanted - self._position
        if self.length is not None and self._wanted >= self.length:
            self._position = self._wanted
            return
        if ahead and not 0 < ahead <= _SKIP_LIMIT:
            self._connect(self._wanted)
        while self._position < self._wanted and (part := self._body(min(1 << 16, self._wanted - self._position))):
            self._position += len(part)

    def _body(self, size: int) -> bytes:
        self._cancel.check()
        try:
            content: bytes = self._response.read1(size)
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            content = b""
            self._cancel.check()
            raise ConnectionError("the connection broke off") from None
        self._cancel.check()
        return content

    def _drop(self) -> None:
        self._cancel.forget(self._shut)
        self._head = b""
        if self._response is not None:
            self._response.close()
        if self._socket is not None:
            self._socket.close()
        self._response = self._socket = None

    def close(self) -> None:
        """End the connection; harmless when repeated."""
        self._shut()
        self._drop()


def _range(start: int, end: int | None) -> str:
    return f"bytes={start}-" + (str(end - 1) if end is not None else "")


def _without_login(url: str) -> tuple[str, Any]:
    """The address without user and password, and a manager that knows them."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    plain = urlunsplit((parts.scheme, host, parts.path or "/", parts.query, ""))
    manager = urllib.request.HTTPPasswordMgrWithPriorAuth()
    if parts.username is not None:
        login = unquote(parts.username), unquote(parts.password or "")
        manager.add_password(None, f"{parts.scheme}://{host}", *login, is_authenticated=False)
    return plain.replace(" ", "%20"), manager


class _Http(urllib.request.HTTPHandler):
    """HTTP that tells of its socket before it is waited for."""

    def __init__(self, told: Any) -> None:
        super().__init__()
        self._told = told

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_plain, self._told), request)


class _Https(urllib.request.HTTPSHandler):
    """The same over TLS."""

    def __init__(self, told: Any) -> None:
        super().__init__()
        self._told = told

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_secure, self._told), request)


def _plain(told: Any, host: str, **options: Any) -> http.client.HTTPConnection:
    connection: Any = http.client.HTTPConnection(host, **options)
    connection._create_connection = partial(_connect_socket, told)
    made: http.client.HTTPConnection = connection
    return made


def _secure(told: Any, host: str, **options: Any) -> http.client.HTTPSConnection:
    connection: Any = http.client.HTTPSConnection(host, **options)
    connection._create_connection = partial(_connect_socket, told)
    made: http.client.HTTPSConnection = connection
    return made


def _connect_socket(told: Any, address: Any, timeout: Any = None, source_address: Any = None) -> socket.socket:
    """As ``socket.create_connection``, in which the socket is told of before it connects."""
    problem: OSError = OSError("no address")
    host, port = address
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(timeout)
            told(made)
            made.connect(place)
            # From here on the source decides what is a stall, and ends the read.
            made.settimeout(_LONGEST_READ_S)
            return made
        except OSError as error:
            made.close()
            problem = error
    raise problem
