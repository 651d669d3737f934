"""One picture as a model's vision tower takes it, and the hash it is known by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..masks import IntArray


@dataclass(frozen=True)
class PictureInput:
    """One picture as ``get_image_features`` takes it.

    ``key``: hash of the preprocessed pixels and all settings that change the features. ``load`` gives the tower's
    arguments when they are needed, or features that were computed already. ``grid``: (time, height, width) in
    visual tokens, for M-RoPE. ``count``: its placeholder tokens, None if not known before encoding.
    """

    key: str
    load: Callable[[], Any]
    grid: tuple[int, int, int] | None = None
    count: int | None = None
    coordinates: IntArray | None = None
    """[3, count] places of the tokens where they do not fill the grid (a compressed picture)."""
    lossy: str | None = None
    """The option that made its features other than the tower's, as ``stats.lossy`` names it."""


def digest(arguments: Mapping[str, Any]) -> str:
    """Hash of tensors and settings by name, shape, dtype and bytes."""
    state = hashlib.blake2b(digest_size=16)
    for name in sorted(arguments):
        value = arguments[name]
        state.update(name.encode())
        if isinstance(value, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in value):
            state.update(digest({str(index): one for index, one in enumerate(value)}).encode())
        elif isinstance(value, torch.Tensor):
            plain = value.detach().cpu().contiguous()
            state.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
            state.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            state.update(repr(value).encode())
    return state.hexdigest()
