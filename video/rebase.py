"""Moving stored keys to other positions by one rotation.

A rotary key at position p is the unrotated key turned by angles p·f. Turning it by d·f more makes it the key at p + d,
on all axes of M-RoPE alike. Rounding adds up when that is done again and again in place (in bf16: 3e-3 after one turn,
2.1 after a thousand), so the window turns a copy of the keys as they were first stored, once, by the whole way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mmspec_agent.core.hf_target import HFTarget, Visual

Layout = Literal["halves", "pairs"]
_PROBE_DISTANCES = (7, 1000)
_TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-6}


@dataclass(frozen=True)
class LayerRotation:
    """How one layer turns its keys: ``frequencies`` [r] for the first 2 r entries of a head, and which entries pair
    up: the two halves (Llama) or neighbours (GPT-J)."""

    frequencies: torch.Tensor
    layout: Layout = "halves"

    def turned(self, keys: torch.Tensor, distance: int) -> torch.Tensor:
        """Keys [..., head_dim] moved by ``distance`` positions; computed in fp32, rounded once."""
        width = 2 * self.frequencies.numel()
        angles = self.frequencies.to(keys.device, torch.float64) * distance
        cos, sin = angles.cos().float(), angles.sin().float()
        part = keys[..., :width].float()
        if self.layout == "halves":
            first, second = part[..., : width // 2], part[..., width // 2 :]
            moved = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        else:
            first, second = part[..., 0::2], part[..., 1::2]
            moved = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
        return torch.cat([moved.to(keys.dtype), keys[..., width:]], dim=-1)


@dataclass(frozen=True)
class KeyRotation:
    """The rotations of all layers of a model."""

    layers: tuple[LayerRotation, ...]

    @classmethod
    def of(cls, target: HFTarget, token: int = 1) -> KeyRotation | None:
        """The model's rotations, proven on the model itself; None if its keys do not move by rotation.

        One token alone attends to itself only, so its keys at two positions differ by the rotation and nothing else:
        a candidate that explains the keys of every layer is right. Learned positions and frequencies that depend on
        the length fail the test.
        """
        limit = target.context_limit or _PROBE_DISTANCES[-1] + 1
        distances = sorted({min(distance, limit - 1) for distance in _PROBE_DISTANCES})
        origin = _keys_at(target, token, 0)
        moved = {distance: _keys_at(target, token, distance) for distance in distances}
        candidates = _candidates(target, max(keys.shape[-1] for keys in origin))
        chosen = []
        for layer, keys in enumerate(origin):
            pairs = [(distance, moved[distance][layer]) for distance in distances]
            fitting = next((c for c in candidates if _explains(c, keys, pairs)), None)
            if fitting is None:
                return None
            chosen.append(fitting)
        return cls(tuple(chosen))

    def turned(self, keys: Sequence[torch.Tensor], distance: int) -> list[torch.Tensor]:
        """Keys of all layers moved by ``distance`` positions."""
        return [rotation.turned(layer, distance) for rotation, layer in zip(self.layers, keys, strict=True)]


def _keys_at(target: HFTarget, token: int, position: int) -> list[torch.Tensor]:
    sequence = target.open(1)
    place = np.full((target.rope_axes, 1), position, dtype=np.int64)
    sequence.prefill([token], Visual(positions=place))
    return sequence.arena.read_keys(0, 1)


def _candidates(target: HFTarget, head_width: int) -> list[LayerRotation]:
    """Every table of inverse frequencies in the model that fits a head, in both layouts."""
    found: list[LayerRotation] = []
    for name, buffer in target.model.named_buffers():
        is_table = name.endswith("inv_freq") and "original" not in name and buffer.dim() == 1
        if is_table and 0 < 2 * buffer.numel() <= head_width:
            found += [LayerRotation(buffer.detach().float(), layout) for layout in ("halves", "pairs")]
    return found


def _explains(rotation: LayerRotation, keys: torch.Tensor, pairs: Sequence[tuple[int, torch.Tensor]]) -> bool:
    tolerance = _TOLERANCE.get(keys.dtype, 3e-2)
    scale = float(keys.float().abs().max()) or 1.0
    return all(
        float((rotation.turned(keys, distance).float() - moved.float()).abs().max()) <= tolerance * scale
        for distance, moved in pairs
    )
