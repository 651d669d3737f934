"""What a program hands over itself: iterators of pictures, and several sources in a row."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmspec_agent.core.errors import SourceNotFound

from .frame import Frame, StreamInfo
from .reader import Reader
from .source_options import SourceOptions


class IterableReader(Reader):
    """Pictures, ``(time_s, picture)`` pairs, paths or ``Frame``s of the user's own; their errors pass through."""

    patience = 0
    is_decoded = False

    def __init__(self, items: Iterable[Any], options: SourceOptions, *, is_live: bool) -> None:
        super().__init__()
        self._items: Iterator[Any] = iter(items)
        # Live pictures without times of their own count from their arrival, unless a pace was asked for.
        self._rate = options.rate or (None if is_live else 25.0)
        self._is_live = is_live
        self._count = 0
        self._picture: Any = None
        self.order = options.order or "rgb"

    def open(self) -> StreamInfo:
        """Describe; nothing is taken yet."""
        return StreamInfo("iterator", "python", is_live=self._is_live)

    def advance(self) -> bool:
        """Take the next item; pictures are copied, since generators reuse their buffer."""
        try:
            item = next(self._items)
        except StopIteration:
            return False
        self.time_s, self.discontinuity = self._count / self._rate if self._rate else None, False
        self._count += 1
        if isinstance(item, Frame):
            self.time_s, self.discontinuity, item = item.time_s, item.discontinuity, item.rgb
        elif isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], (int, float, np.number, type(None))):
            self.time_s, item = None if item[0] is None else float(item[0]), item[1]
            # Times that are missing now and then are told from those of the pictures around.
            self.rate = self._rate
        self._picture = _copied(item)
        return True

    def picture(self) -> Any:
        """The item last taken."""
        return self._picture

    def close(self) -> None:
        """Close a generator, so that its ``finally`` runs."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


def _copied(item: Any) -> Any:
    if isinstance(item, (str, os.PathLike)):
        path = Path(item)
        if not path.is_file():
            raise SourceNotFound(f"an iterator of pictures gave the path {path.name!r}, and there is no such file")
        with Image.open(path) as image:
            return image.copy()
    if hasattr(item, "detach") and hasattr(item, "clone"):
        return item.detach().clone()
    return item.copy() if hasattr(item, "copy") else np.array(item)


class ChainReader(Reader):
    """Several recordings, one behind the other; each begins behind a gap."""

    def __init__(self, makes: Sequence[Callable[[], Reader]], name: str) -> None:
        super().__init__()
        self._makes = list(makes)
        self._name = name
        self._reader: Reader | None = None
        self._offset = 0.0
        self._last = 0.0
        self._step = 0.0

    def open(self) -> StreamInfo:
        """Open the first; a ``SourceError`` of any other comes when its turn does."""
        info = self._open_next()
        return replace(info, name=self._name, frame_count=None)

    def _open_next(self) -> StreamInfo:
        reader = self._makes.pop(0)()
        self.cancelled.on_set(reader.cancel)
        before, self._reader = self._reader, reader
        if before is not None:
            self.notes += before.take_notes()
            self.remarks += before.take_remarks()
            before.close()
            self._offset = self._last + (self._step or 0.04)
        info = reader.open()
        self.rate, self.order = reader.rate, reader.order
        return info

    def advance(self) -> bool:
        """Go on in the source in hand, or in the one behind it."""
        assert self._reader is not None, "a reader is opened before it is read"
        self.discontinuity = False
        while not self._reader.advance():
            if self._reader.patience > 0 or not self._makes:
                return False
            self._open_next()
            self.discontinuity = True
        self.discontinuity = self.discontinuity or self._reader.discontinuity
        raw = self._reader.time_s
        if raw is not None:
            self._step, self._last = self._offset + raw - self._last, self._offset + raw
        self.time_s = None if raw is None else self._last
        return True

    def picture(self) -> Any:
        """Of the source in hand."""
        return self._reader.picture() if self._reader is not None else None

    @property
    def patience(self) -> int:  # type: ignore[override]
        """Of the source in hand."""
        return self._reader.patience if self._reader is not None else 0

    def take_notes(self) -> list[str]:
        """Of the source in hand too."""
        return super().take_notes() + (self._reader.take_notes() if self._reader is not None else [])

    def take_remarks(self) -> list[str]:
        """Of the source in hand too."""
        return super().take_remarks() + (self._reader.take_remarks() if self._reader is not None else [])

    def close(self) -> None:
        """Close the source in hand."""
        if self._reader is not None:
            self._reader.close()
