"""What may be shown of a source: addresses and pipelines carry passwords in every part of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_SCHEME = re.compile(r"^\s*([A-Za-z][A-Za-z0-9+.-]{1,15}):[/\\]*(?=\S)")
_HOST = re.compile(r"^(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253})|\[[0-9A-Fa-f:.%]+\])$")
_SUSPICIOUS = re.compile(r"[@=?&#;!|\\]|//|(?i:passw|token|secret)")
_HIDDEN = "(address not shown)"


def shown(spec: Any) -> str:
    """The name of a source in every error, event, log line and title: never a password, token or query.

    Paths that exist are shown whole. Of addresses only scheme, host and port are left, and only where it is sure
    which part is the host. Of everything else that may hold a secret (pipelines, mistyped addresses) only the kind.
    """
    if isinstance(spec, int):
        return f"camera {spec}"
    if not isinstance(spec, (str, os.PathLike)):
        return type(spec).__name__
    text = os.fsdecode(os.fspath(spec))
    if is_pipeline(text):
        return "GStreamer pipeline"
    if _exists(text):
        return text
    if text.lower().startswith("file:"):
        return text if not _SUSPICIOUS.search(text[5:].lstrip("/")) else f"file:{_HIDDEN}"
    scheme = _SCHEME.match(text)
    if scheme is not None and not _is_drive(text):
        return _shown_address(text.strip(), scheme.group(1).lower())
    return _HIDDEN if _SUSPICIOUS.search(text) else text


def is_pipeline(text: str) -> bool:
    """Whether a text is a GStreamer pipeline: elements joined by " ! "."""
    return re.search(r"\s!\s", text) is not None and not _exists(text)


def _shown_address(text: str, scheme: str) -> str:
    """``scheme://host:port`` of a plain address, ``scheme://(address not shown)`` of any other."""
    hidden = f"{scheme}://{_HIDDEN}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return hidden
    host = parts.netloc.rpartition("@")[2]
    host = host[: -len(f":{port}")] if port is not None and host.endswith(f":{port}") else host
    behind = text.split(parts.netloc, 1)[-1] if parts.netloc else text
    # An "@" behind the host means that a password with "/", "?" or "#" in it was taken for the host.
    if "@" in behind or "%40" in behind or not _HOST.match(host):
        return hidden
    return f"{scheme}://{host}" + (f":{port}" if port is not None else "")


def _is_drive(text: str) -> bool:
    return re.match(r"^[A-Za-z]:[\\/]", text) is not None


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False
