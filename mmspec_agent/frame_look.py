"""Frames of a family that no test covers: compared with the model's own call while they are watched."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from PIL import Image, ImageOps

from .frame_prompt import FramePrompt
from .pictures import Picture
from .vision import Vision


class _Held(NamedTuple):
    """What a frame of the window may change about the model's rule: its size and its time stamp."""

    size: tuple[int, int]
    stamp: str


class FrameLook:
    """A look at a window of frames whenever its shape is new; nothing for a family that tests cover.

    ``several``: whether frames are preprocessed as some of many. ``answered``: whether questions and answers stand
    between them. The window's pixels are gone by then, so copies of the newest frame stand for them.
    """

    def __init__(self, vision: Vision, prompt: FramePrompt, several: bool, answered: bool) -> None:
        self._vision = vision
        self._prompt = prompt
        self._several = several and vision.resizes_several
        self._answered = answered
        self._held: deque[_Held] = deque()
        self._passed: set[Any] = set()

    def at(self, image: Image.Image, stamp: str, held: int) -> None:
        """``image`` is the newest of ``held`` frames. UnsupportedModel where our logits are not the model's own."""
        if self._vision.family.proven:
            return
        self._held.append(_Held(image.size, stamp))
        while len(self._held) > held:
            self._held.popleft()
        shown = [*self._held]
        if self._several and len(shown) == 1:
            shown *= 2  # alone, the processor would resize it otherwise than the watch does
        shape = (self._vision.settings, tuple(one.size for one in shown))
        if shape in self._passed:
            return
        self._vision.look(
            self._prompt.whole([one.stamp for one in shown], self._answered),
            [_copy(image, one.size, index) for index, one in enumerate(shown)],
        )
        self._passed.add(shape)


def _copy(image: Image.Image, size: tuple[int, int], index: int) -> Picture:
    """The image in another size, every other one mirrored: no two neighbours are the same picture."""
    sized = image if image.size == size else image.resize(size)
    return Picture.of(ImageOps.mirror(sized) if index % 2 else sized)
