"""Readers: one connection to one source, blocking, without threads; sources add the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .cancel import Cancel
from .frame import Order, StreamInfo


class Reader(ABC):
    """One connection to one source; subclasses fill ``open``, ``advance``, ``picture`` and ``close``.

    ``order``: of its pictures. ``has_times``: its times are the stream's own and can be trusted. ``discontinuity``:
    the current picture follows a gap the reader knows of. ``time_s``: what the source says is the time of the current
    picture, in seconds. ``rate``: pictures a second, where pictures without a time are to be counted by it.
    ``repeats_from_start``: what is opened anew may begin anew, so that the same first picture means the end.
    ``ends``: running out of pictures is the end, not a loss. ``patience``: failed reads in a row after which the
    source has run out. ``is_decoded``: the pictures come out of a decoder, so that none at all is a fault.
    ``is_hopeless``: it failed in a way that another connection would fail in too.
    """

    order: Order = "rgb"
    has_times: bool = True
    discontinuity: bool = False
    time_s: float | None = None
    rate: float | None = None
    ends: bool = True
    repeats_from_start: bool = False
    patience: int = 3
    is_decoded: bool = True
    is_hopeless: bool = False
    damage: str | None = None

    def __init__(self) -> None:
        self.cancelled = Cancel()
        self.notes: list[str] = []
        self.remarks: list[str] = []

    @abstractmethod
    def open(self) -> StreamInfo:
        """Connect; a ``SourceError`` where that fails."""

    @abstractmethod
    def advance(self) -> bool:
        """Go to the next picture; False for a failed read, which may be followed by good ones."""

    @abstractmethod
    def picture(self) -> Any:
        """The current picture, not overwritten by later ones; None where decoding it failed."""

    def cancel(self) -> None:
        """Called by other threads: whatever is being read or waited for ends as soon as it can."""
        self.cancelled.set()

    def close(self) -> None:  # noqa: B027  (most readers hold nothing that has to be freed)
        """Free the device; called by the thread that reads, never beside a read; harmless when repeated."""

    def take_notes(self) -> list[str]:
        """Sentences since the last call on what the user may have wanted otherwise."""
        notes, self.notes = self.notes, []
        return notes

    def take_remarks(self) -> list[str]:
        """Sentences since the last call on what was made of the pictures; nothing is missing."""
        remarks, self.remarks = self.remarks, []
        return remarks
