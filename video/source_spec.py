"""What a text or an object given as a source means, before anything is opened."""

from __future__ import annotations

import glob
import io
import operator
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import numpy as np

from mmspec_agent.core.errors import SourceNotFound, SourceOpenError, SourceUndecodable

from .reader_pictures import PICTURE_SUFFIXES, natural
from .redaction import is_pipeline, shown

ACCEPTED = (
    "accepted are a camera index, a URL, a video file, an animation, a picture, a folder of pictures, a list of "
    "files, an open file, an iterator of pictures and objects with read() and release()"
)
Kind = Literal["camera", "url", "video", "pictures", "folder", "files", "open file", "capture", "items"]
_NUMBERED = re.compile(r"%(?:0(\d+))?d")
_MOST_FILES = 100_000


@dataclass(frozen=True)
class Spec:
    """A source told apart: its ``kind``, what is opened, and its name for people, which holds no secret."""

    kind: Kind
    target: Any
    name: str


def told_apart(given: Any) -> Spec:
    """The kind of source ``given`` is; a ``SourceError`` that names it where it is none."""
    if isinstance(given, (bool, np.bool_)) or given is None:
        raise _refused(given)
    if isinstance(given, (str, os.PathLike)):
        return _text(os.fsdecode(os.fspath(given)))
    if isinstance(given, (int, np.integer)):
        return _camera(operator.index(given))
    if hasattr(given, "convert") and hasattr(given, "getbands"):
        return Spec("pictures", [given], "a picture")
    if _is_array(given):
        return _array(given)
    if callable(given) or (hasattr(given, "read") and hasattr(given, "release")):
        return Spec("capture", given, "capture object")
    if hasattr(given, "read"):
        return _open_file(given)
    if isinstance(given, (bytes, bytearray, memoryview, dict, set, frozenset)) or not isinstance(given, Iterable):
        raise _refused(given)
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, (str, os.PathLike)) for one in given):
        return _files([_expanded(os.fsdecode(os.fspath(one))) for one in given], f"{len(given)} files")
    return Spec("items", given, "iterator")


def _refused(given: Any) -> SourceNotFound:
    hint = ". Wrap the content of a file in io.BytesIO" if isinstance(given, (bytes, bytearray, memoryview)) else ""
    return SourceNotFound(f"a {type(given).__name__} was given as a video source; {ACCEPTED}{hint}")


def _camera(index: int) -> Spec:
    if not 0 <= index < 1 << 16:
        raise SourceNotFound(f"camera {index} was given; camera indices begin at 0")
    return Spec("camera", index, f"camera {index}")


def _is_array(given: Any) -> bool:
    return hasattr(given, "shape") and hasattr(given, "dtype") and hasattr(given, "ndim")


def _array(given: Any) -> Spec:
    """One picture [h, w] or [h, w, c]; several [n, h, w, c], or [n, h, w] where the last axis holds no channels."""
    shape = tuple(given.shape)
    one = len(shape) == 2 or (len(shape) == 3 and (shape[2] in (1, 2, 3, 4) or _channels_first(given)))
    if 0 in shape or len(shape) not in (2, 3, 4):
        raise SourceNotFound(
            f"an array of shape {shape} was given as a video source; accepted are one picture (h, w, c) and "
            "several (n, h, w, c)"
        )
    return Spec("items", [given] if one else given, "a picture" if one else "an array of pictures")


def _channels_first(given: Any) -> bool:
    return hasattr(given, "detach") and given.shape[0] in (1, 3, 4)


def _open_file(given: Any) -> Spec:
    if isinstance(given, io.TextIOBase):
        raise SourceOpenError('a file opened as text was given as a video source; open it with mode "rb"')
    if getattr(given, "closed", False):
        raise SourceOpenError("a closed file was given as a video source; keep it open while it is read")
    return Spec("open file", given, "open file")


def _text(text: str) -> Spec:
    if not text.strip() or "\0" in text:
        raise SourceNotFound(f"{text!r} was given as a video source; {ACCEPTED}")
    if text == "-":
        return Spec("video", "-", "standard input")
    if re.fullmatch(r"-?\d+", text) and not Path(text).exists():
        return _camera(int(text) if len(text) < 9 else 1 << 16)
    if is_pipeline(text):
        return Spec("camera", text, shown(text))
    if text.lower().startswith("file:") and not Path(text).exists():
        return _path(_path_of(text), text)
    if "://" in text and not Path(text).exists():
        return Spec("url", text.strip(), shown(text))
    return _path(_expanded(text), text)


def _expanded(text: str) -> Path:
    """With "~" in place; as it is where nobody has that name."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def _path_of(url: str) -> Path:
    """The path of a file URL in any of its spellings: one, two or three slashes, this host's name, "%20"."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost", "127.0.0.1"):
        raise SourceNotFound(
            f"a file URL of another host was given; accepted are file:///… of this machine, {ACCEPTED}"
        )
    rest = re.sub(r"^file:(//[^/]*)?", "", url, flags=re.IGNORECASE)
    spellings = [unquote(rest), rest, unquote(parts.path)]
    found = next((Path(one) for one in spellings if one and Path(one).exists()), None)
    return found or Path(spellings[0] or "/")


def _path(path: Path, given: str) -> Spec:
    name = shown(given)
    if path.is_dir():
        return Spec("folder", path, name)
    if not path.exists():
        return _several(path, name)
    if str(path).startswith("/dev/video"):
        return Spec("camera", str(path), name)
    if path.is_file() and path.stat().st_size == 0:
        raise SourceOpenError(f"{name} is empty (0 bytes); was its download or recording cut short?")
    if path.suffix.lower() in PICTURE_SUFFIXES:
        return Spec("pictures", [path], name)
    return Spec("video", str(path.absolute()), name)


def _several(path: Path, name: str) -> Spec:
    """Files named by a pattern, "*" and "?" or "%04d", where no file of that very name exists."""
    text = str(path)
    numbered = _NUMBERED.search(path.name)
    if numbered:
        pattern = glob.escape(str(path.parent)) + "/" + _NUMBERED.sub("*", glob.escape(path.name))
        wanted = re.compile(_numbers(path.name))
        found = [one for one in glob.glob(pattern)[:_MOST_FILES] if wanted.fullmatch(Path(one).name)]
    else:
        found = glob.glob(text, recursive=True)[:_MOST_FILES] if glob.has_magic(text) else []
    files = sorted((Path(one) for one in found if Path(one).is_file()), key=natural)
    if not files:
        matches = "matches no file" if numbered or glob.has_magic(text) else "does not exist"
        raise SourceNotFound(f"{name} was given as a video source and {matches}; {ACCEPTED}")
    return _files(files, name)


def _numbers(name: str) -> str:
    """A regular expression of the names that a "%04d" pattern makes."""
    parts, last = [], 0
    for match in _NUMBERED.finditer(name):
        least = match.group(1)
        parts += [re.escape(name[last : match.start()]), rf"\d{{{int(least)},}}" if least else r"\d+"]
        last = match.end()
    return "".join([*parts, re.escape(name[last:])])


def _files(files: list[Path], name: str) -> Spec:
    missing = [path for path in files if not path.exists()]
    if missing:
        raise SourceNotFound(f"{shown(str(missing[0]))} was given among {name} and does not exist")
    folder = next((path for path in files if path.is_dir()), None)
    if folder is not None:
        raise SourceUndecodable(f"{folder} was given among {name} and is a folder; give its files, or it alone")
    if all(path.suffix.lower() in PICTURE_SUFFIXES for path in files):
        return Spec("pictures", files, name)
    return Spec("files", files, name)
