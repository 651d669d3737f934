"""Hours of stream on a tiny model: bytes and time per frame must stay flat (SYSTEM.md V7)."""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any, NamedTuple

import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration, PreTrainedModel

from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.tree import ROOT
from mmspec_agent.core.visual.families import Family
from mmspec_agent.core.visual.features import Encoder
from mmspec_agent.core.visual.memory import ByteStore
from mmspec_agent.models.progress import Progress
from mmspec_agent.video.window import FrameWindow

WINDOW = 8
RANGE = 512
_VOCAB = 97
_PICTURES = 16


class Hours(NamedTuple):
    """Of a run: KV bytes at most in the first and in the last fifth after the window filled, growth of resident
    memory since then, processor time per frame of the last thousand (or fifth) over that of the first."""

    frames: int
    kv_bytes_first: int
    kv_bytes_last: int
    resident_growth: int
    time_ratio: float
    rebased: int


def tiny_llava() -> PreTrainedModel:
    """Random weights, four visual tokens a picture, a range of 512 positions, so that it runs out often."""
    torch.manual_seed(0)
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "projection_dim": 16,
    }
    text = {
        "model_type": "llama",
        "vocab_size": _VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": RANGE,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=_VOCAB - 1)
    return LlavaForConditionalGeneration(config).eval()


def hours(frames: int, progress: Progress) -> Hours:
    """A frame, a question and its first token, ``frames`` times."""
    window = _open()
    pictures = _pictures(window)
    question = [21, 22, 23]
    ids = [30, *[_VOCAB - 1] * 4, 31]
    seconds, sizes = [], []
    resident = 0
    settled = max(4 * WINDOW, frames // 10)
    progress.stage(f"{frames} frames through a window of {WINDOW}, tiny model", float(frames))
    for turn in range(frames):
        started = time.process_time()
        window.append(ids, pictures[turn % _PICTURES], float(turn))
        tokens = window.ask(question)
        window.sequence.verify(tokens[window.sequence.length :]).argmax(ROOT)
        seconds.append(time.process_time() - started)
        sizes.append(window.bytes)
        if turn == settled:
            resident = _resident()
        if turn % 100 == 99:
            progress.advance_to(float(turn + 1))
    part = min(1000, (frames - settled) // 5)
    first, last = seconds[settled : settled + part], seconds[-part:]
    return Hours(
        frames,
        max(sizes[settled : settled + max(part, RANGE // 6)]),
        max(sizes[-part:]),
        _resident() - resident,
        statistics.median(last) / statistics.median(first),
        window.counts.rebased,
    )


def _open() -> FrameWindow:
    model = tiny_llava()
    family = Family.of(model)
    assert family is not None
    encoder = Encoder(model, family, ByteStore(1 << 12))
    sequence = HFTarget(model).open(128)
    return FrameWindow(sequence, family, encoder.encode, [11, 12, 13], WINDOW, reserve=16)


def _pictures(window: FrameWindow) -> list[Any]:
    pixels = torch.randn(_PICTURES, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    return window.family.split({"pixel_values": pixels})


def _resident() -> int:
    """Bytes of resident memory now, or the most so far where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
