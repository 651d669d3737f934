"""Pictures in files through Pillow: single ones, folders, animations, pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageOps, UnidentifiedImageError

from mmspec_agent.core.errors import SourceUndecodable

from .frame import StreamInfo
from .reader import Reader
from .source_options import SourceOptions

PICTURE_SUFFIXES = frozenset(
    {".png", ".apng", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif"}
)
_FASTEST_MS = 10.0
_USUAL_MS = 100.0
"""Animations that ask for 10 ms or less are shown at 10 pictures a second, as browsers do."""
_MAGIC = (b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"BM", b"II*\x00", b"MM\x00*", b"P5", b"P6")


class Page(NamedTuple):
    """A picture with the seconds it stands, None where its file does not say."""

    picture: Any
    seconds: float | None


class PicturesReader(Reader):
    """Picture files one after the other, turned as EXIF says; an unreadable one is a failed read.

    Animations and files of several pages give all their pictures, at their own pace where they have one.
    """

    is_decoded = True

    def __init__(self, files: list[Any], name: str, options: SourceOptions) -> None:
        super().__init__()
        self._files = files
        self._name = name
        self._turn = options.rotation == "auto"
        self._rate = options.rate or 1.0
        self._pages = self._all_pages()
        self._page: Page | None = None
        self._next_time = 0.0
        self._unread = len(files)

    @classmethod
    def of_folder(cls, folder: Path, options: SourceOptions) -> PicturesReader:
        """All pictures directly in ``folder``; ``SourceUndecodable`` if there are none."""
        paths = sorted((p for p in folder.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES), key=natural)
        if not paths:
            kinds = ", ".join(sorted(PICTURE_SUFFIXES))
            raise SourceUndecodable(f"folder {folder} holds no pictures; accepted are files ending in {kinds}")
        return cls(list(paths), str(folder), options)

    def open(self) -> StreamInfo:
        """Describe; files are opened one by one."""
        return StreamInfo(self._name, "pillow", is_live=False, fps=self._rate)

    def advance(self) -> bool:
        """Decode the next picture."""
        page = next(self._pages, None)
        if page is None:
            return False
        self._page, self.time_s = page, self._next_time
        self._next_time += page.seconds if page.seconds is not None else 1.0 / self._rate
        return True

    def picture(self) -> Any:
        """The picture last decoded."""
        return self._page.picture if self._page is not None else None

    @property
    def patience(self) -> int:  # type: ignore[override]
        """Every file left may still be good."""
        return self._unread

    def _all_pages(self) -> Iterator[Page | None]:
        """Every picture of every file; None for what cannot be read."""
        for file in self._files:
            self._unread -= 1
            try:
                with _opened(file) as image:
                    yield from self._pages_of(image)
            except _UNREADABLE:
                yield None

    def _pages_of(self, image: Any) -> Iterator[Page]:
        count = getattr(image, "n_frames", 1)
        # An APNG may carry a picture for viewers that do not animate.
        first = 1 if count > 1 and image.info.get("default_image") else 0
        for number in range(first, count):
            image.seek(number)
            image.load()
            milliseconds = image.info.get("duration") if count > 1 else None
            turned = ImageOps.exif_transpose(image) if self._turn else image
            yield Page(turned.copy(), _seconds(milliseconds))

    def close(self) -> None:
        """Nothing is held open but the file in hand."""
        self._pages, self._page = iter(()), None


_UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    UnidentifiedImageError,
    Image.DecompressionBombError,
)


@contextmanager
def _opened(file: Any) -> Iterator[Any]:
    """An image of a path or an open file; one of the user's own is left open and where it was."""
    if isinstance(file, Image.Image):
        place = file.tell() if getattr(file, "n_frames", 1) > 1 else None
        yield file
        if place is not None:
            file.seek(place)
        return
    with Image.open(file) as image:
        yield image


def _seconds(milliseconds: Any) -> float | None:
    if not isinstance(milliseconds, (int, float)):
        return None
    return float(milliseconds if milliseconds > _FASTEST_MS else _USUAL_MS) / 1000.0


def looks_like_a_picture(head: bytes) -> bool:
    """Whether a file that begins so is a picture, by its first 16 bytes."""
    return head.startswith(_MAGIC) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def natural(path: Path) -> list[Any]:
    """A key that sorts shot9 before shot10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", path.name.lower())]
