"""A chat template cut into what stands before the frames, around each frame, and behind them.

The template is rendered with one, two and three pictures and cut at their placeholders, so that a frame can be appended
to what is cached already: prefix, (head, picture, tail) …, question and the assistant's header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmspec_agent.core.errors import PromptError

from .vision import Vision

_PROBE = "What do you see?"
_SAID = "Nothing."


@dataclass(frozen=True)
class Cut:
    """Texts of the pieces; a frame is ``head``, its placeholders, ``tail``."""

    prefix: str
    head: str
    tail: str


class FramePrompt:
    """Ids of all pieces for one model and system prompt. PromptError if the template cannot be cut."""

    def __init__(self, vision: Vision, tokenizer: Any, system: str | None = None) -> None:
        self._vision = vision
        self._tokenizer = tokenizer
        self._system = system
        self._token = vision.image_token
        self.cut = cut_template(lambda count: self._render(count, _PROBE), self._token, self._encode)

    @property
    def prefix_ids(self) -> list[int]:
        """The system prompt and the user's header, with the tokenizer's own first token where it wants one."""
        text = self.cut.prefix
        ids = self._encode(text)
        if not self._vision.starts_with_special(text):
            return ids
        marked = [int(i) for i in self._tokenizer.encode(text, add_special_tokens=True)]
        for at in range(len(marked) - len(ids) + 1):
            if marked[at : at + len(ids)] == ids:
                return marked[: at + len(ids)]
        return ids

    def frame_ids(self, placeholders: str, stamp: str = "") -> list[int]:
        """A frame's segment; ``placeholders``: what the processor writes for the picture."""
        return self._encode(f"{stamp}{self.cut.head}{placeholders}{self.cut.tail}")

    def question_ids(self, question: str) -> list[int]:
        """What stands behind the frames: the question and the assistant's header."""
        if self._token in question:
            raise PromptError(f"the question holds {self._token!r}, which stands for pictures; leave it out")
        text = self._render(1, question)
        return self._encode(text.rpartition(self._token)[2].removeprefix(self.cut.tail))

    def whole(self, stamps: Sequence[str], answered: bool) -> str:
        """The text of a whole prompt of as many frames, each behind its stamp, for the model's own processor.

        ``answered``: whether a question and an answer stand behind each frame but the last, as where they are kept.
        """
        if answered:
            asked, said = self._shown(1, _PROBE)[-1], {"role": "assistant", "content": _SAID}
            turns = [turn for _ in stamps[1:] for turn in (asked, said)]
            text = self._vision.template([*self._shown(1, _PROBE)[:-1], *turns, asked])
        else:
            text = self._render(len(stamps), _PROBE)
        *before, rest = text.split(self._token)
        head = self.cut.head
        frames = (f"{one.removesuffix(head)}{stamp}{head}{self._token}" for one, stamp in zip(before, stamps))
        return "".join(frames) + rest

    def closing_ids(self, answer: Sequence[int]) -> list[int]:
        """What the template puts between a kept ``answer`` and the next frame."""
        again = [*self._shown(1, _PROBE), {"role": "assistant", "content": _SAID}, self._shown(1, _PROBE)[-1]]
        text = self._vision.template(again).rpartition(self._token)[0]
        between = text.rpartition(_SAID)[2].removesuffix(self.cut.head)
        ids = self._encode(between)
        # The model's own end of turn is the template's: it is not written twice.
        if answer and ids and ids[0] == answer[-1]:
            return ids[1:]
        return ids

    def _shown(self, count: int, question: str) -> list[dict[str, Any]]:
        parts = [*({"type": "image"} for _ in range(count)), {"type": "text", "text": question}]
        system = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, {"role": "user", "content": parts}]

    def _render(self, count: int, question: str) -> str:
        return self._vision.template(self._shown(count, question))

    def _encode(self, text: str) -> list[int]:
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=False)] if text else []


def cut_template(render: Callable[[int], str], token: str, encode: Callable[[str], list[int]]) -> Cut:
    """Where a template can be cut; ``render`` gives its text with a number of pictures, each shown as ``token``.

    What stands between two pictures belongs to the first one's end or to the second one's start. Of the cuts that
    repeat rightly, one that does not change how the text falls into tokens is taken.
    """
    one, two, three = (render(count).split(token) for count in (1, 2, 3))
    if [len(one), len(two), len(three)] != [2, 3, 4]:
        raise PromptError(f"the chat template does not write {token!r} once for each picture; it cannot take frames")
    between = two[1]
    same = one[0] == two[0] == three[0] and one[1] == two[2] == three[3] and three[1:3] == [between] * 2
    cuts = [
        Cut(one[0].removesuffix(between[at:]), between[at:], between[:at])
        for at in range(len(between), -1, -1)
        if one[0].endswith(between[at:]) and one[1].startswith(between[:at])
    ]
    if not same or not cuts:
        raise PromptError(
            "the chat template numbers its pictures or writes them differently one by one, so frames cannot be "
            "appended to it; use a template that writes every picture alike"
        )
    whole = encode(token.join(two))
    for cut in cuts:
        frame = f"{cut.head}{token}{cut.tail}"
        pieces = [cut.prefix, frame, frame, one[1].removeprefix(cut.tail)]
        if [token_id for piece in pieces for token_id in (encode(piece) if piece else [])] == whole:
            return cut
    return cuts[0]
