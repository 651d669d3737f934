"""INT8 storage of KV rows, per channel of head_dim, asymmetric (SYSTEM.md C2, §9.2). Lossy: opt-in by name.

Keys have channels of very different size that hardly change along the sequence; a scale and an offset per channel
keep them apart where one scale per row would not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..cache import KVRows

LEVELS = 255


@dataclass(frozen=True)
class Int8Tensor:
    """``codes`` [1, heads, rows, head_dim] uint8; ``scale`` and ``offset`` [1, heads, 1, head_dim] in ``dtype``."""

    codes: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, values: torch.Tensor) -> Int8Tensor:
        """Nearest of 256 levels between each channel's extremes."""
        exact = values.float()
        low, high = exact.amin(dim=2, keepdim=True), exact.amax(dim=2, keepdim=True)
        scale = ((high - low) / LEVELS).clamp_min(1e-12)
        codes = ((exact - low) / scale).round().clamp(0, LEVELS).to(torch.uint8)
        return cls(codes, scale, low, values.dtype)

    def restore(self) -> torch.Tensor:
        """The values in their former dtype."""
        return (self.codes.float() * self.scale + self.offset).to(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.codes.nbytes + self.scale.nbytes + self.offset.nbytes


@dataclass(frozen=True)
class Int8Rows:
    """``KVRows`` in INT8: per layer keys and values."""

    layers: tuple[tuple[Int8Tensor, Int8Tensor], ...]

    @classmethod
    def of(cls, rows: KVRows) -> Int8Rows:
        """Quantise rows taken from an arena."""
        return cls(tuple((Int8Tensor.of(keys), Int8Tensor.of(values)) for keys, values in rows.layers))

    def restore(self) -> KVRows:
        """Rows for an arena."""
        return KVRows(tuple((keys.restore(), values.restore()) for keys, values in self.layers))

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)
