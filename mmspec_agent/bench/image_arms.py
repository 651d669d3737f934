"""The arms of the image benchmark: transformers' ``generate`` from scratch each turn, and a session of ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from mmspec_agent.engine import Engine
from mmspec_agent.pictures import Picture
from mmspec_agent.reply import Done, Reply, StepPiece
from mmspec_agent.session import Session

from .first_token import FirstToken, placed

HF, OURS = "HF generate", "ours"
SHORT, LONG = "short", "long"


class Turn(NamedTuple):
    """One question: ``first`` about a picture not seen yet, or a follow-up; ``length``: short or long answer."""

    text: str
    length: str
    first: bool
    history: bool
    """Whether an earlier long answer about the same picture stands in the conversation."""

    @property
    def kind(self) -> str:
        """A name for tables."""
        start = "first question" if self.first else "follow-up"
        return f"{start}, {self.length} answer" + (", with history" if self.history else "")


class Answered(NamedTuple):
    """Tokens, seconds to the first of them and to the last, and what was computed for it."""

    tokens: list[int]
    first_token: float
    total: float
    vision_passes: int
    prefilled: int
    new_text: int
    tokens_per_step: float | None = None


@dataclass
class ImageArms:
    """Both arms on one model: same weights, threads, dtype, greedy."""

    engine: Engine

    @property
    def processor(self) -> Any:
        """transformers' own processor of the model."""
        return self.engine.processor

    def hf(self, messages: Sequence[Mapping[str, Any]], new_tokens: int) -> Answered:
        """What existing code does each turn: processor over the whole conversation, then generate."""
        started = time.perf_counter()
        shown, pictures = _for_processor(messages)
        text = self.processor.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)
        inputs = self.processor(text=text, images=pictures, return_tensors="pt")
        inputs = placed(inputs, self.engine.model)
        streamer = FirstToken()
        with torch.inference_mode():
            output = self.engine.model.generate(**inputs, do_sample=False, max_new_tokens=new_tokens, streamer=streamer)
        ended = time.perf_counter()
        length = inputs["input_ids"].shape[1]
        tokens: list[int] = output[0, length:].tolist()
        return Answered(tokens, streamer.at - started, ended - started, len(pictures), length, length)

    def ours(self, session: Session, message: Mapping[str, Any], new_tokens: int) -> Answered:
        """The next turn of a session; its reply enters the conversation."""
        held = session.cached_tokens
        started = time.perf_counter()
        first, reply = 0.0, None
        for event in session.stream(dict(message), max_new_tokens=new_tokens):
            if isinstance(event, StepPiece) and not first:
                first = time.perf_counter() - started
            elif isinstance(event, Done):
                reply = event.reply
        total = time.perf_counter() - started
        assert isinstance(reply, Reply)
        stats = reply.stats
        return Answered(
            reply.token_ids,
            first,
            total,
            stats.vision_passes,
            stats.prefilled_tokens,
            stats.prompt_tokens - held,
            stats.tokens_per_step,
        )

    def turn(
        self, session: Session, message: Mapping[str, Any], new_tokens: int, hf_first: bool
    ) -> dict[str, Answered]:
        """One turn by both arms, on the same conversation, in the order asked for."""
        history = [*session.messages, dict(message)]
        runs: dict[str, Callable[[], Answered]] = {
            HF: lambda: self.hf(history, new_tokens),
            OURS: lambda: self.ours(session, message, new_tokens),
        }
        order = (HF, OURS) if hf_first else (OURS, HF)
        return {name: runs[name]() for name in order}


def _for_processor(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Messages with pictures as bare parts, and the pictures."""
    shown: list[dict[str, Any]] = []
    pictures: list[Any] = []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        for part in parts:
            if part["type"] == "image":
                image = part["image"]
                pictures.append(image.image if isinstance(image, Picture) else image)
        shown.append({**message, "content": [{"type": "image"} if p["type"] == "image" else p for p in parts]})
    return shown, pictures
