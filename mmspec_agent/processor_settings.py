"""What a processor does to a picture, as a hash of its settings: they may be changed between two requests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_DEPTH = 4
_NOT_ABOUT_PICTURES = ("tokenizer", "chat_template", "video_processor", "feature_extractor", "audio_tokenizer")


def settings_digest(processor: Any) -> str:
    """Hash of every attribute of a processor and of its parts, as they are now; the tokenizer is left out."""
    state = hashlib.blake2b(digest_size=12)
    _add(state, {k: v for k, v in vars(processor).items() if k not in _NOT_ABOUT_PICTURES}, _DEPTH)
    return state.hexdigest()


def _add(state: Any, value: Any, depth: int) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().float().numpy()
    if isinstance(value, np.ndarray):
        state.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key, held in value.items():
            state.update(f"{key}:".encode())
            _add(state, held, depth)
    elif isinstance(value, (list, tuple)):
        state.update(b"[")
        for held in value:
            _add(state, held, depth)
    elif depth and hasattr(value, "__dict__") and (not callable(value) or hasattr(value, "preprocess")):
        _add_object(state, value, depth)
    else:
        state.update(repr(value).encode())


def _add_object(state: Any, value: Any, depth: int) -> None:
    """Image processors are callable, and their settings are plain attributes."""
    state.update(type(value).__qualname__.encode())
    _add(state, vars(value), depth - 1)
