"""Where pictures lie in a sequence, and what a forward over part of it needs (SYSTEM.md C1, V5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import PictureInputError
from ..hf_target import Visual
from ..masks import IntArray
from ..positions import Positions
from .families import Family, PictureInput
from .features import PictureFeatures, as_model_output


@dataclass(frozen=True)
class Placed:
    """A picture in a sequence: its placeholders lie among the tokens start … end-1."""

    start: int
    end: int
    picture: PictureInput

    def shifted(self, offset: int) -> Placed:
        """The same picture ``offset`` tokens further on."""
        return Placed(self.start + offset, self.end + offset, self.picture)


def place(ids: Sequence[int], image_token_id: int, pictures: Sequence[PictureInput]) -> tuple[Placed, ...]:
    """Give each picture the next ``count`` placeholders among ``ids``.

    PictureInputError if there are more or fewer placeholders than the pictures need.
    """
    slots = np.flatnonzero(np.asarray(ids, dtype=np.int64) == image_token_id)
    needed = sum(picture.count or 0 for picture in pictures)
    if len(slots) != needed:
        raise PictureInputError(
            f"the prompt has {len(slots)} placeholder tokens, its {len(pictures)} pictures need {needed}; pass ids "
            "and pixel values as the processor returned them, and no placeholder in the text itself"
        )
    placed, at = [], 0
    for picture in pictures:
        count = picture.count or 0
        if not count:
            raise PictureInputError("a picture has no placeholder tokens; pass its inputs as the processor gave them")
        placed.append(Placed(int(slots[at]), int(slots[at + count - 1]) + 1, picture))
        at += count
    return tuple(placed)


def cut_at_borders(length: int, placed: Sequence[Placed]) -> int:
    """The largest cut <= ``length`` that splits no picture."""
    for one in placed:
        if one.start < length < one.end:
            return one.start
    return length


def common_prefix(
    old: Sequence[int], old_pictures: Sequence[Placed], new: Sequence[int], new_pictures: Sequence[Placed]
) -> int:
    """Tokens that two sequences share from the start: same ids, same pictures, no picture cut in two."""
    limit = min(len(old), len(new))
    a, b = np.asarray(old[:limit], dtype=np.int64), np.asarray(new[:limit], dtype=np.int64)
    different = np.flatnonzero(a != b)
    common = int(different[0]) if len(different) else limit
    for one, other in zip(old_pictures, new_pictures):
        if (one.start, one.end, one.picture.key) != (other.start, other.end, other.picture.key):
            common = min(common, one.start, other.start)
            break
    shorter, longer = sorted((len(old_pictures), len(new_pictures)))
    if shorter != longer:
        more = old_pictures if len(old_pictures) > len(new_pictures) else new_pictures
        common = min(common, more[shorter].start)
    return cut_at_borders(cut_at_borders(common, old_pictures), new_pictures)


def visual_inputs(
    family: Family,
    ids: Sequence[int],
    placed: Sequence[Placed],
    start: int,
    end: int,
    positions: Positions,
    encode: Callable[[PictureInput], PictureFeatures],
) -> Visual:
    """What ``HFSequence.prefill`` needs for the tokens start … end-1 of ``ids``.

    A picture may be cut by the range where the family reads causally: its feature rows are cut alike.
    """
    tokens = np.asarray(ids[start:end], dtype=np.int64)
    is_slot = tokens == family.image_token_id
    touched = [one for one in placed if one.start < end and one.end > start]
    parts = []
    for one in touched:
        features = encode(one.picture)
        before = _slots(family, ids, one.start, max(start, one.start))
        count = _slots(family, ids, max(start, one.start), min(end, one.end))
        parts.append(features.cut(before, before + count))
    inputs = {"mm_encoder_outputs": {"image": as_model_output(parts)}} if parts else {}
    blocks = _blocks(is_slot) if family.bidirectional and parts else None
    rotary = _rotary(family, touched, start, end, positions) if positions.axes > 1 and parts else None
    return Visual(inputs, rotary, blocks)


def _slots(family: Family, ids: Sequence[int], start: int, end: int) -> int:
    return int(np.count_nonzero(np.asarray(ids[start:end], dtype=np.int64) == family.image_token_id))


def _blocks(is_slot: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> IntArray:
    """Index of the run of placeholders each token lies in, -1 for text."""
    starts = is_slot & ~np.concatenate([[False], is_slot[:-1]])
    return np.where(is_slot, np.cumsum(starts) - 1, -1)


def _rotary(family: Family, touched: Sequence[Placed], start: int, end: int, positions: Positions) -> IntArray:
    """[3, n] M-RoPE positions relative to the position that follows token ``start`` - 1.

    Text goes on by one on all axes, a picture spans (time, height, width) from where it starts, and what follows
    goes on behind its largest extent (Qwen2-VL, §2.1 of its report).
    """
    origin = positions.next_position(start)
    result = np.empty((3, end - start), dtype=np.int64)
    at, following = start, origin
    for one in touched:
        if one.start < start:
            base = positions.next_position(one.start)
        else:
            result[:, at - start : one.start - start] = following + np.arange(one.start - at)
            base = following + one.start - at
        first, last = max(one.start, start), min(one.end, end)
        result[:, first - start : last - start] = base + _grid(one)[:, first - one.start : last - one.start]
        at, following = last, base + max(one.picture.grid or (1,))
    result[:, at - start :] = following + np.arange(end - at)
    return result - origin


def _grid(one: Placed) -> IntArray:
    """[3, n] time, height and width index of each visual token of a picture."""
    grid, coordinates = one.picture.grid, one.picture.coordinates
    if coordinates is not None and coordinates.shape[1] == one.end - one.start:
        return coordinates
    if grid is None or grid[0] * grid[1] * grid[2] != one.end - one.start:
        raise PictureInputError(
            f"a picture of grid {grid} has {one.end - one.start} consecutive placeholders; models with M-RoPE need "
            "image_grid_thw as the processor returned it"
        )
    return np.indices(grid, dtype=np.int64).reshape(3, -1)
