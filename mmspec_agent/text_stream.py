"""Tokens to text, step by step: whole characters, and nothing that a stop string could take back."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

REPLACEMENT = "\ufffd"


class Stopped(NamedTuple):
    """A stop string was completed by token ``tokens`` - 1; the answer is ``text``."""

    tokens: int
    text: str


class Detokenizer:
    """Text of a growing list of ids; decodes only a short window per step."""

    def __init__(self, tokenizer: Any, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._window = 0
        self._read = 0
        self.text = ""

    def add(self, ids: Sequence[int]) -> str:
        """Append ids; returns the whole characters they completed."""
        self._ids.extend(ids)
        before = self._decode(self._ids[self._window : self._read])
        now = self._decode(self._ids[self._window :])
        if len(now) <= len(before) or now.endswith(REPLACEMENT):
            return ""
        new = now[len(before) :]
        self._window, self._read = self._read, len(self._ids)
        self.text += new
        return new

    def flush(self) -> str:
        """What is left at the end, incomplete characters as replacement characters."""
        before = self._decode(self._ids[self._window : self._read])
        new = self._decode(self._ids[self._window :])[len(before) :]
        self._window, self._read = self._read, len(self._ids)
        self.text += new
        return new

    def _decode(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        text = self._tokenizer.decode(list(ids), skip_special_tokens=self._skip, clean_up_tokenization_spaces=False)
        return str(text)


class TextStream:
    """Splits an answer into pieces safe to show: stop strings are found over token and step borders.

    Stop strings are looked for in the text with its special tokens spelled out, whether or not those are shown, so
    that one that is spelled by special tokens, in part or whole, ends the answer too.
    """

    def __init__(self, tokenizer: Any, stop_strings: Sequence[str] = (), skip_special_tokens: bool = True) -> None:
        self._stops = tuple(s for s in stop_strings if s)
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens)
        spelled = self._stops and skip_special_tokens
        self._spelled = Detokenizer(tokenizer, False) if spelled else self._detokenizer
        self._lengths: list[tuple[int, int]] = [(0, 0)]
        """Characters of the spelled and of the shown text after each token."""
        self._count = 0
        self._shown = 0
        self._searched_from = 0

    @property
    def text(self) -> str:
        """All text so far, shown or held back."""
        return self._detokenizer.text

    def add(self, ids: Sequence[int], guarded: Sequence[bool] = ()) -> Stopped | None:
        """Append a step's ids; says so if they complete a stop string.

        Token by token, so that where the answer ends does not depend on how many tokens a step brought. What the
        ``guarded`` ones write (a tool call, say) is no place for stop strings: none begins or ends there.
        """
        for token, guard in itertools.zip_longest(ids, guarded, fillvalue=False):
            start = len(self._spelled.text)
            self._count += 1
            self._detokenizer.add([token])
            if self._spelled is not self._detokenizer:
                self._spelled.add([token])
            self._lengths.append((len(self._spelled.text), len(self.text)))
            if guard:
                self._searched_from = len(self._spelled.text)
                continue
            at = self._find_stop(start)
            if at is not None:
                self._detokenizer.text = self.text[: self._shown_length(at)]
                return Stopped(self._count, self.text)
        return None

    def _shown_length(self, spelled: int) -> int:
        """How many shown characters come before character ``spelled`` of the spelled text."""
        before = bisect_right(self._lengths, spelled, key=lambda lengths: lengths[0]) - 1
        start, shown = self._lengths[before]
        if before + 1 == len(self._lengths):
            return shown
        end, shown_end = self._lengths[before + 1]
        # What one token adds is either shown as it is spelled or, for special tokens, not at all.
        return min(shown + spelled - start, shown_end) if shown_end - shown == end - start else shown

    def piece(self, held_back: int = 0) -> str:
        """What may be shown now and was not yet; ``held_back`` more characters are kept for others' reasons."""
        safe = min(self._shown_length(len(self._spelled.text) - self._possible_stop()), len(self.text) - held_back)
        new = self.text[self._shown : safe]
        self._shown = max(self._shown, safe)
        return new

    def finish(self, stopped: bool = False) -> str:
        """The last piece."""
        if not stopped:
            self._detokenizer.flush()
        new = self.text[self._shown :]
        self._shown = len(self.text)
        return new

    def _find_stop(self, start: int) -> int | None:
        text = self._spelled.text
        longest = max(map(len, self._stops), default=0)
        first = max(self._searched_from, start - longest + 1)
        found = [text.find(s, first) for s in self._stops]
        return min((at for at in found if at >= 0), default=None)

    def _possible_stop(self) -> int:
        """Length of the longest end of the spelled text that could still become a stop string."""
        text, best = self._spelled.text[self._searched_from :], 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), best, -1):
                if text.endswith(stop[:size]):
                    best = size
                    break
        return best
