"""The frames of a stream as frozen KV: appended once, evicted whole, moved when the range runs out.

Order of the context: prefix (sinks: system prompt and the user's header), frames …, question, answer. A frame is
encoded and prefilled when it arrives and never again. Question and answer are cropped before the next frame, unless
they are kept as a turn of their own.

What eviction means: the rows that stay had seen the frame that went, and keep their positions. They equal a full pass
with that frame masked out from then on; they do not equal a stream in which the frame never was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from mmspec_agent.core.errors import ContextOverflow, MemoryBudgetExceeded
from mmspec_agent.core.hf_target import HFSequence
from mmspec_agent.core.memory import kv_bytes_per_token
from mmspec_agent.core.visual.families import Family, PictureInput
from mmspec_agent.core.visual.features import PictureFeatures
from mmspec_agent.core.visual.placing import place, visual_inputs

from .rebase import KeyRotation

Kind = Literal["frame", "turn"]


@dataclass
class Segment:
    """Rows that live and die together: a frame with its start and end tokens, or a kept question with its answer.

    ``first`` … ``next``: the rotary positions it spans now. ``pristine``: its keys as first stored, which belong to
    position ``stored_at``; held only once it has been moved.
    """

    kind: Kind
    ids: tuple[int, ...]
    first: int
    next: int
    time_s: float = 0.0
    stored_at: int = 0
    pristine: list[torch.Tensor] = field(default_factory=list)

    @property
    def copied_bytes(self) -> int:
        """Bytes of the pristine keys."""
        return sum(keys.nbytes for keys in self.pristine)


@dataclass
class WindowCounts:
    """What happened to a window so far."""

    frames: int = 0
    prefilled_tokens: int = 0
    evicted: int = 0
    rebased: int = 0
    restarted: int = 0


class FrameWindow:
    """At most ``frames`` frames of one stream behind a prefix, on one sequence of the target.

    ``reserve``: rows kept free for question and answer. ``encode`` gives a picture's features. ``tokens`` are the ids
    of the cached rows, always exactly as many as there are.
    """

    def __init__(
        self,
        sequence: HFSequence,
        family: Family,
        encode: Callable[[PictureInput], PictureFeatures],
        prefix: Sequence[int],
        frames: int,
        reserve: int,
    ) -> None:
        self.sequence = sequence
        self.frames = frames
        self.reserve = reserve
        self.counts = WindowCounts()
        self.tokens: list[int] = list(prefix)
        self.segments: deque[Segment] = deque()
        self.family = family
        self._encode = encode
        self._sinks = len(prefix)
        self._rotation: KeyRotation | None = None
        self._rotation_known = False
        if prefix:
            sequence.prefill(self.tokens)

    @property
    def bytes(self) -> int:
        """Bytes of KV storage held, copies of first keys included."""
        return self.sequence.arena.bytes + sum(segment.copied_bytes for segment in self.segments)

    @property
    def held(self) -> int:
        """Frames in the window."""
        return sum(segment.kind == "frame" for segment in self.segments)

    @property
    def length(self) -> int:
        """Rows of prefix and segments; what lies behind is a question in hand."""
        return self._sinks + sum(len(segment.ids) for segment in self.segments)

    def append(self, ids: Sequence[int], picture: PictureInput, time_s: float = 0.0) -> None:
        """Take in a frame: its features into its placeholders among ``ids``, its rows into the cache.

        Older frames are evicted where there is no room. ContextOverflow if the frame does not fit even alone.
        """
        count = sum(token == self.family.image_token_id for token in ids)
        placed = place(ids, self.family.image_token_id, [replace(picture, count=picture.count or count)])
        self.crop()
        while self.held >= self.frames:
            self._evict()
        self._make_room(self._span(ids, picture))
        start = self.length
        first = self.sequence.positions.next_position(start)
        self.tokens += ids
        shifted = [one.shifted(start) for one in placed]
        try:
            visual = visual_inputs(
                self.family, self.tokens, shifted, start, len(self.tokens), self.sequence.positions, self._encode
            )
            self.sequence.prefill(ids, visual)
        except BaseException:
            del self.tokens[start:]
            self.sequence.truncate(start)
            raise
        self._add("frame", ids, first, time_s)
        self.counts.frames += 1
        self.counts.prefilled_tokens += len(ids)

    def ask(self, question: Sequence[int]) -> list[int]:
        """The ids to decode from: all that is cached, then the question. The list belongs to the caller."""
        self.crop()
        return [*self.tokens, *question]

    def ready(self, rows: int) -> None:
        """Have room for a question and answer of ``rows`` rows, more than ``reserve`` if need be."""
        self.crop()
        self.reserve = max(self.reserve, rows)
        self._make_room(0, keep=1)

    def crop(self) -> None:
        """Forget question and answer; the frames stay as they are."""
        if self.sequence.length > self.length:
            self.sequence.truncate(self.length)

    def keep(self, tokens: Sequence[int], closing: Sequence[int], time_s: float = 0.0) -> None:
        """Keep question and answer (``tokens`` as decoded from ``ask``) and what the template puts behind them."""
        base = self.length
        cached = self.sequence.length
        rest = [*tokens[cached:], *closing]
        first = self.sequence.positions.next_position(base)
        if rest:
            self.sequence.prefill(rest)
            self.counts.prefilled_tokens += len(rest)
        ids = [*tokens[base:], *closing]
        self.tokens += ids
        self._add("turn", ids, first, time_s)

    def clear(self) -> None:
        """Forget every frame and turn; the prefix stays."""
        self.crop()
        while self.segments:
            self._evict()

    def fits(self, ids: Sequence[int], picture: PictureInput) -> int:
        """How many frames like this one the model's range holds beside prefix and reserve; a large number if all."""
        limit = self.sequence.target.context_limit
        if limit is None:
            return 1 << 20
        free = limit - self._sink_end - self.reserve
        return max(0, free // max(1, self._span(ids, picture)))

    def bytes_needed(self, frame_tokens: int) -> int:
        """Bytes of a full window of such frames, with question and answer, and with a copy of every frame's keys
        where the model's range can run out."""
        per_token = kv_bytes_per_token(self.sequence.target)
        window = self.frames * frame_tokens
        copies = window * per_token // 2 if self.sequence.target.context_limit is not None and self.frames > 1 else 0
        return (self._sinks + window + self.reserve) * per_token + copies

    def check_budget(self, frame_tokens: int) -> None:
        """MemoryBudgetExceeded, before any picture is encoded, if a full window would not fit the budget."""
        needed, budget = self.bytes_needed(frame_tokens), self.sequence.target.max_bytes
        if budget is not None and needed > budget:
            raise MemoryBudgetExceeded(
                f"a window of {self.frames} frames of {frame_tokens} tokens needs about {needed:,} bytes of KV, the "
                f"budget is {budget:,}; lower window, make the frames smaller, or raise memory_budget"
            )

    @property
    def _sink_end(self) -> int:
        return self.sequence.positions.next_position(self._sinks)

    def _span(self, ids: Sequence[int], picture: PictureInput) -> int:
        """Rotary positions a frame takes: with M-RoPE a picture advances by its largest extent."""
        if self.sequence.positions.axes == 1 or picture.grid is None:
            return len(ids)
        slots = sum(token == self.family.image_token_id for token in ids)
        return len(ids) - slots + max(picture.grid)

    def _add(self, kind: Kind, ids: Sequence[int], first: int, time_s: float) -> None:
        following = self.sequence.positions.next_position(self.sequence.length)
        self.segments.append(Segment(kind, tuple(ids), first, following, time_s, stored_at=first))

    def _evict(self) -> None:
        """The oldest frame goes, and the turns that were about it."""
        self._drop_oldest()
        while self.segments and self.segments[0].kind == "turn":
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        segment = self.segments.popleft()
        end = self._sinks + len(segment.ids)
        self.sequence.drop(self._sinks, end)
        del self.tokens[self._sinks : end]
        self.counts.evicted += segment.kind == "frame"

    def _make_room(self, span: int, keep: int = 0) -> None:
        """Evict or move frames until ``span`` more positions and the reserve fit the model's range.

        The last ``keep`` frames are not evicted: they are being asked about.
        """
        limit = self.sequence.target.context_limit
        if limit is None:
            return
        needed = span + self.reserve
        while self.held > keep and self._sink_end + self._spanned + needed > limit:
            self._evict()
        if self._sink_end + self._spanned + needed > limit:
            raise ContextOverflow(
                f"a frame of {span + self._spanned} positions, the prefix of {self._sink_end} and {self.reserve} for "
                f"question and answer exceed the model's range of {limit}; lower max_new_tokens, or make the frames "
                "smaller"
            )
        if self.sequence.positions.next_position(self.length) + needed > limit:
            self.rebase()

    @property
    def _spanned(self) -> int:
        return self.segments[-1].next - self.segments[0].first if self.segments else 0

    @torch.inference_mode()
    def rebase(self) -> None:
        """Move the frames back to right behind the prefix, each turned once from its keys as first stored.

        Where the model's keys do not move by rotation, the frames are forgotten instead and counted as a restart.
        """
        rotation = self._known_rotation()
        if rotation is None:
            self.clear()
            self.counts.restarted += 1
            return
        self.crop()
        back = self.segments[0].first - self._sink_end if self.segments else 0
        if back <= 0:
            return
        row = self._sinks
        arena = self.sequence.arena
        for segment in self.segments:
            end = row + len(segment.ids)
            segment.pristine = segment.pristine or arena.read_keys(row, end)
            segment.first, segment.next = segment.first - back, segment.next - back
            arena.write_keys(row, rotation.turned(segment.pristine, segment.first - segment.stored_at))
            row = end
        self.sequence.positions.shift(self._sinks, self.length, -back)
        self.counts.rebased += 1

    def _known_rotation(self) -> KeyRotation | None:
        if not self._rotation_known:
            self._rotation = KeyRotation.of(self.sequence.target, self.tokens[0] if self.tokens else 1)
            self._rotation_known = True
        return self._rotation
