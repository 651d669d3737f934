"""One sequence with its KV rows, kept from request to request (SYSTEM.md M2, V5).

What a request's prompt shares with what is held is not computed again, also after an edit in the middle; what
was decoded stays held, token for token. Pictures are compared by hash and never cut in two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mmspec_agent.core.decode import OpenDrafter
from mmspec_agent.core.drafters.base import Drafter
from mmspec_agent.core.hf_target import HFSequence, Visual
from mmspec_agent.core.visual.families import PictureInput
from mmspec_agent.core.visual.placing import Placed, common_prefix, cut_at_borders, place, visual_inputs
from mmspec_agent.core.visual.segments import prefix_keys

if TYPE_CHECKING:
    from .vision import Vision

PREFILL_CHUNK = 512
"""Rows of one prefill forward, so that it can be cancelled in between and its masks stay small."""


@dataclass
class Conversation:
    """KV rows, the ids they belong to, the pictures among them, and the drafters' memory.

    ``tokens`` may be longer than the cache (pending tokens); never shorter. ``rendered`` is the text of the last
    prompt and reply, so that the next prompt can continue the very ids that were decoded. ``gaps``: whether rows
    were dropped, so that what is held is no longer what the ids alone would give. ``lossy``: by the name of a lossy
    option, the first row that it made; all rows behind that one attended to it, so they bear the mark as well.
    """

    sequence: HFSequence
    drafters: list[OpenDrafter]
    tokens: list[int] = field(default_factory=list)
    rendered: str = ""
    pictures: tuple[Placed, ...] = ()
    gaps: bool = False
    lossy: dict[str, int] = field(default_factory=dict)
    _unsaved: list[tuple[str, int, int]] = field(default_factory=list)

    @classmethod
    def open(cls, sequence: HFSequence, drafters: Iterable[Drafter]) -> Conversation:
        """An empty one."""
        return cls(sequence, [OpenDrafter.of(d) for d in drafters])

    def encode(self, tokenizer: Any, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of a rendered prompt: where it continues what is held, the held ids and then the new text's."""
        if self.rendered and text.startswith(self.rendered):
            rest = text[len(self.rendered) :]
            held = _without_tail(self.tokens, tokenizer, rest)
            return held + list(tokenizer.encode(rest, add_special_tokens=False))
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def encode_with_pictures(
        self, vision: Vision, tokenizer: Any, text: str, pictures: Sequence[PictureInput]
    ) -> tuple[list[int], tuple[Placed, ...]]:
        """``encode`` for a prompt whose placeholders are written out, and where its pictures lie."""
        token = vision.family.image_token_id
        if self.tokens.count(token) != sum(one.picture.count or 0 for one in self.pictures):
            # The model wrote a placeholder of its own into an answer: it cannot be told from a picture's.
            self.rendered = ""
        ids = self.encode(tokenizer, text, vision.starts_with_special(text))
        return ids, place(ids, token, pictures)

    def reuse(self, ids: Sequence[int], pictures: tuple[Placed, ...] = ()) -> int:
        """Make ``ids`` the sequence, keeping the longest common prefix of the cache; returns its length."""
        self.sequence.renew()
        common = common_prefix(self.tokens, self.pictures, ids, pictures)
        # The last token's logits are needed, so its row is computed anew.
        kept = cut_at_borders(min(common, self.sequence.length, len(ids) - 1), pictures)
        self.sequence.truncate(kept)
        self.sequence.begin(len(ids))
        kept = self.sequence.length
        self.tokens = list(ids)
        self.pictures = pictures
        self.gaps = self.gaps and kept > 0
        self._forget_marks(kept)
        for drafter in self.drafters:
            drafter.failed = False
        return kept

    def absorb(self, vision: Vision, check: Callable[[], None] = lambda: None) -> int:
        """Make everything up to the end of the last picture ready; returns rows copied from stored segments.

        A stored segment of the same whole prefix is copied in. What has to be computed is, but for the last rows of
        the prompt: they are staged, so that pictures and the text behind them share the loop's first forward.
        ``check`` is called between forwards and may raise to cancel.
        """
        keys = [] if self.gaps else prefix_keys(vision.weights, self.tokens, self.pictures)
        for one in self.pictures:
            if one.picture.lossy is not None:
                self.lossy.setdefault(one.picture.lossy, one.start)
        with vision.memory.pinned(keys):
            restored = self._restore(vision, keys, check)
        self._unsaved = [
            (key, before, one.end)
            for key, before, one in zip(keys, [0, *(one.end for one in self.pictures)], self.pictures)
            if key not in vision.memory
        ]
        last = self.pictures[-1].end if self.pictures else 0
        while len(self.tokens) - self.sequence.length > PREFILL_CHUNK and self.sequence.length < last:
            self._prefill(vision, min(last, self.sequence.length + PREFILL_CHUNK), check)
        if self.sequence.length < last:
            rest = len(self.tokens) - self.sequence.length
            self.sequence.stage(self._visual(vision, len(self.tokens)), rest)
        self.pictures = tuple(_light(one) for one in self.pictures)
        return restored

    def _restore(self, vision: Vision, keys: Sequence[str], check: Callable[[], None]) -> int:
        """Copy stored segments in, picture by picture; compute a missing one only if a later one is stored."""
        restored = 0
        for index, (one, key) in enumerate(zip(self.pictures, keys)):
            if one.end <= self.sequence.length:
                continue
            before = self.sequence.length
            copied, lossy = vision.segments.restore(key, self.sequence)
            restored += copied
            for name in lossy if copied else ():
                self.lossy.setdefault(name, before)
            if not copied and any(later in vision.memory for later in keys[index + 1 :]):
                self._prefill(vision, one.end, check)
            elif not copied:
                break
        return restored

    def save_segments(self, vision: Vision) -> None:
        """Store the rows of the request's new pictures, for other conversations with the same prefix."""
        for key, start, end in self._unsaved:
            if end <= self.sequence.length:
                marks = [name for name, first in self.lossy.items() if first < end]
                vision.segments.save(key, self.sequence, start, end, marks)
        self._unsaved = []

    def append_segment(self, vision: Vision, ids: Sequence[int], pictures: Sequence[PictureInput]) -> None:
        """Append whole pictures with the tokens around them (a frame, say) and compute their rows at once.

        Nothing before them is computed again (SYSTEM.md V4); pending tokens are, as they go first.
        """
        offset = len(self.tokens)
        added = place(ids, vision.family.image_token_id, pictures)
        self.tokens.extend(ids)
        self.pictures += tuple(one.shifted(offset) for one in added)
        self.rendered = ""
        self._prefill(vision, len(self.tokens))
        self.pictures = tuple(_light(one) for one in self.pictures)

    def drop_segment(self, start: int, end: int) -> None:
        """Forget the tokens start … end-1 and their rows; all others keep rows and positions (SYSTEM.md V7).

        This is not the same as never having seen them: what came later attended to them.
        """
        if not 0 <= start <= end <= self.sequence.length or cut_at_borders(end, self.pictures) != end:
            raise ValueError(f"cannot drop tokens {start} to {end} of {self.sequence.length} cached ones")
        self.sequence.drop(start, end)
        del self.tokens[start:end]
        gone_rows = end - start
        self.lossy = {n: at - gone_rows if at >= end else min(at, start) for n, at in self.lossy.items()}
        self._forget_marks(self.sequence.length)
        before = [one for one in self.pictures if one.end <= start]
        behind = [one.shifted(start - end) for one in self.pictures if one.start >= end]
        self.pictures = (*before, *behind)
        self.rendered, self.gaps = "", True

    def keep_tokens(self, count: int) -> None:
        """Forget tokens behind ``count``: a stop string ended the reply in the middle of a step."""
        del self.tokens[count:]
        self.sequence.truncate(min(self.sequence.length, count))
        self._forget_marks(self.sequence.length)

    def _forget_marks(self, length: int) -> None:
        """Marks of rows that are gone: ``length`` rows are left."""
        self.lossy = {name: first for name, first in self.lossy.items() if first < length}

    def _prefill(self, vision: Vision, end: int, check: Callable[[], None] = lambda: None) -> None:
        """Compute rows up to ``end`` in chunks; pictures that see both ways stay in one piece."""
        while self.sequence.length < end:
            check()
            start = self.sequence.length
            stop = min(end, start + PREFILL_CHUNK)
            if vision.family.bidirectional and cut_at_borders(stop, self.pictures) != stop:
                stop = next(one.end for one in self.pictures if one.start < stop < one.end)
            self.sequence.prefill(self.tokens[start:stop], self._visual(vision, stop))

    def _visual(self, vision: Vision, stop: int) -> Visual:
        """What a forward over the tokens from the cache's end to ``stop`` needs beside their ids."""
        return visual_inputs(
            vision.family,
            self.tokens,
            self.pictures,
            self.sequence.length,
            stop,
            self.sequence.positions,
            vision.encoder.encode,
        )


def _light(one: Placed) -> Placed:
    """Without the pixels: they were needed for the vision tower only."""
    return replace(one, picture=replace(one.picture, load=gone))


def gone() -> dict[str, Any]:
    """Stands for pixels that are no longer held."""
    raise AssertionError("the pixels of a picture whose rows are held were asked for")


def _without_tail(tokens: Sequence[int], tokenizer: Any, rest: str) -> list[int]:
    """The held ids, without a final end-of-turn token that ``rest`` spells out again."""
    held = list(tokens)
    while held and held[-1] in tokenizer.all_special_ids and rest.startswith(tokenizer.decode([held[-1]])):
        held.pop()
    return held
