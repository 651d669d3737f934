"""A KV cache of independent slots, so that many texts are written in one batch and none waits for another."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

ROUND_TO = 64
"""The part of the cache that a step reads grows in steps of this many rows."""


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's rows [slots, heads, length, head_dim]; every slot writes at a row of its own."""

    is_compileable = False
    is_croppable = True
    is_sliding = False

    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self._slots = slots

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        count, length = len(self._slots.lengths), self._slots.capacity
        self.keys = key_states.new_zeros((count, key_states.shape[1], length, key_states.shape[3]))
        self.values = value_states.new_zeros((count, value_states.shape[1], length, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one row [slots, heads, 1, head_dim] per slot; return views of the rows in use."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        slots, rows, visible = self._slots.indices, self._slots.lengths, self._slots.visible
        self.keys[slots, :, rows] = key_states[:, :, 0]
        self.values[slots, :, rows] = value_states[:, :, 0]
        return self.keys[:, :, :visible], self.values[:, :, :visible]

    def get_seq_length(self) -> int:
        return self._slots.visible - 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._slots.visible, 0

    def get_max_length(self) -> int:
        return self._slots.capacity


class Slots:
    """``count`` texts of up to ``capacity`` tokens; ``lengths`` [count] rows of each are written."""

    def __init__(self, num_layers: int, count: int, capacity: int) -> None:
        self.capacity = capacity
        self.lengths = torch.zeros(count, dtype=torch.long)
        self.indices = torch.arange(count)
        self.layers = [SlotLayer(self) for _ in range(num_layers)]
        self.cache = Cache(layers=self.layers)

    @property
    def visible(self) -> int:
        """Rows that a step has to read: those of the longest text, rounded up."""
        longest = int(self.lengths.max()) + 1
        return min(self.capacity, -(-longest // ROUND_TO) * ROUND_TO)

    def mask(self, window: int | None = None) -> torch.Tensor:
        """[count, 1, 1, visible] bool: what the next row of each slot attends to, itself included."""
        columns = torch.arange(self.visible)[None]
        seen = columns <= self.lengths[:, None]
        if window is not None:
            seen &= columns > self.lengths[:, None] - window
        return seen[:, None, None]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Begin the text of slot ``target`` with the first ``length`` rows of slot ``source``."""
        for layer in self.layers:
            layer.keys[target, :, :length] = layer.keys[source, :, :length]
            layer.values[target, :, :length] = layer.values[source, :, :length]
        self.lengths[target] = length
