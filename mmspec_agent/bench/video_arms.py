"""The arms of the video benchmark: transformers' ``generate`` used in two ways, our watch plain and with drafts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from PIL import Image
from transformers import PreTrainedModel

from mmspec_agent.engine import Engine
from mmspec_agent.options import ChatOptions
from mmspec_agent.video.clock import RealClock
from mmspec_agent.video.frame import Frame
from mmspec_agent.video.gate import Gate
from mmspec_agent.video.watch import DEFAULT_GATE
from mmspec_agent.watching import FrameViewer, SeeingOptions

from .first_token import FirstToken, placed
from .forward_clock import ForwardClock
from .video_scenes import Shot

STATELESS, HISTORY, PLAIN, OURS = "HF stateless", "HF with history", "ours without drafts", "ours"
NAMES = (STATELESS, HISTORY, PLAIN, OURS)


class Answered(NamedTuple):
    """One answer about one frame.

    ``frame_s``: encoding and prefilling before the first token can be asked for (for transformers: all up to the
    first token, which it cannot do earlier); ``answer_s``: the rest.
    """

    text: str
    tokens: list[int]
    frame_s: float
    answer_s: float
    vision_passes: int
    prefilled: int
    forwards: int
    hit: bool = False
    drafted_by: Mapping[str, int] | None = None

    @property
    def total_s(self) -> float:
        """Seconds from the frame's arrival to the whole answer."""
        return self.frame_s + self.answer_s


class Arm(Protocol):
    """Answers one frame after the other, with its own memory."""

    def answer(self, shot: Shot, question: str) -> Answered:
        """About the newest frame."""
        ...


class VisionClock:
    """Counts runs of a model's vision tower inside a ``with`` block."""

    def __init__(self, model: PreTrainedModel) -> None:
        core = getattr(model, "model", model)
        names = ("vision_tower", "visual", "vision_model")
        self._tower = next((getattr(core, name) for name in names if hasattr(core, name)), None)
        self._handle: Any = None
        self.passes = 0

    def __enter__(self) -> VisionClock:
        if self._tower is not None:
            self._handle = self._tower.register_forward_hook(self._after)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _after(self, *_: Any) -> None:
        self.passes += 1


@dataclass
class Transformers:
    """What webcam demos do: a fresh request for every frame; with ``history``, all frames and answers before in it."""

    model: PreTrainedModel
    processor: Any
    new_tokens: int
    history: bool = False
    _messages: list[dict[str, Any]] = field(default_factory=list)
    _pictures: list[Image.Image] = field(default_factory=list)

    def answer(self, shot: Shot, question: str) -> Answered:
        """Everything from the start, every time."""
        started = time.perf_counter()
        if not self.history:
            self._messages, self._pictures = [], []
        parts = [{"type": "image"}, {"type": "text", "text": question}]
        self._messages.append({"role": "user", "content": parts})
        self._pictures.append(Image.fromarray(shot.image))
        text = self.processor.apply_chat_template(self._messages, tokenize=False, add_generation_prompt=True)
        inputs = self.processor(text=text, images=list(self._pictures), return_tensors="pt")
        inputs = placed(inputs, self.model)
        first = FirstToken()
        with ForwardClock(self.model) as forwards, VisionClock(self.model) as vision, torch.inference_mode():
            out = self.model.generate(**inputs, do_sample=False, max_new_tokens=self.new_tokens, streamer=first)
        ended = time.perf_counter()
        length = inputs["input_ids"].shape[1]
        tokens: list[int] = out[0, length:].tolist()
        said = self.processor.decode(tokens, skip_special_tokens=True)
        self._messages.append({"role": "assistant", "content": [{"type": "text", "text": said}]})
        return Answered(said, tokens, first.at - started, ended - first.at, vision.passes, length, forwards.forwards)


class Watching:
    """Our watch, frame by frame, so that arms can take turns on the same frames."""

    def __init__(self, engine: Engine, new_tokens: int, speculate: bool, window: int | None) -> None:
        options = ChatOptions.of(max_new_tokens=new_tokens, speculate=speculate)
        self._viewer = FrameViewer(engine, options, SeeingOptions(window=window), RealClock())
        self._gate = Gate(DEFAULT_GATE)
        self._frame: Frame | None = None
        self._asked: set[str] = set()

    def answer(self, shot: Shot, question: str) -> Answered:
        """The frame is seen when it comes; a second question on it is asked of what is cached."""
        frame_s, seen = 0.0, None
        if self._frame is None or self._frame.rgb is not shot.image:
            started = time.perf_counter()
            if self._frame is not None:
                self._gate.answered(self._frame)
            self._frame = Frame(shot.image, shot.time_s, shot.time_s, 0)
            self._decision = self._gate.decide(self._frame)
            seen = self._viewer.see(self._frame)
            frame_s = time.perf_counter() - started
        said = self._viewer.ask(question, self._frame, self._decision)
        stats = said.stats
        return Answered(
            said.text,
            list(said.token_ids),
            frame_s,
            said.seconds,
            seen.vision_passes if seen else 0,
            stats.prefilled_tokens + (seen.tokens if seen else 0),
            stats.forwards,
            self._decision.hit,
            dict(stats.sources),
        )

    def close(self) -> None:
        """Free the rows."""
        self._viewer.close()


@dataclass
class VideoArms:
    """Opens arms on one model: same weights, threads, dtype, greedy."""

    model: PreTrainedModel
    processor: Any
    new_tokens: int
    window: int | None = None

    def __post_init__(self) -> None:
        self._ours = Engine(self.model, self.processor)
        self._plain = Engine(self.model, self.processor, drafters=[], max_nodes=0)

    def open(self, name: str) -> Arm:
        """A fresh arm; engines (and what they learned about costs) are kept."""
        made: dict[str, Callable[[], Arm]] = {
            STATELESS: lambda: Transformers(self.model, self.processor, self.new_tokens),
            HISTORY: lambda: Transformers(self.model, self.processor, self.new_tokens, history=True),
            PLAIN: lambda: Watching(self._plain, self.new_tokens, False, self.window),
            OURS: lambda: Watching(self._ours, self.new_tokens, True, self.window),
        }
        return made[name]()
