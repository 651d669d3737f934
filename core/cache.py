"""KV cache arena (SYSTEM.md C2). The only module that knows Hugging Face's Cache classes.

Keys and values of all layers lie preallocated; a forward writes its rows behind the committed ones, and a
commit moves the accepted path into place. Rows behind ``length`` are scratch and never read by a later forward,
so an interrupted step leaves nothing to undo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin

from .errors import MemoryBudgetExceeded, UnsupportedModel

GROWTH = 1.5
"""Factor by which a full arena grows: amortised, so no step pays for a copy of the whole cache."""

ROUND_TO = 64
"""Capacities are multiples of this many slots."""

_KNOWN_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}


class ArenaLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's rows, [1, heads, capacity, head_dim]; written in place, handed out as views."""

    is_compileable = False
    is_croppable = True
    is_sliding = False

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        capacity = self._arena.capacity
        batch, heads, _, key_width = key_states.shape
        value_heads, value_width = value_states.shape[1], value_states.shape[3]
        self.keys = key_states.new_empty((batch, heads, capacity, key_width))
        self.values = value_states.new_empty((batch, value_heads, capacity, value_width))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [1, heads, rows, head_dim] behind the committed rows; return views of all rows so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self._arena.length
        end = start + key_states.shape[2]
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self._arena.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._arena.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def resize(self, capacity: int) -> None:
        """Move the committed rows into storage of another capacity."""
        if not self.is_initialized:
            return
        length = self._arena.length
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty((*old.shape[:2], capacity, old.shape[3]))
            new[:, :, :length] = old[:, :, :length]
            setattr(self, name, new)

    def gather(self, slots: torch.Tensor, destination: int) -> None:
        """Copy rows ``slots`` [k] to ``destination`` …; rows are read before any is written."""
        if not self.is_initialized:  # reads another layer's rows, has none of its own
            return
        end = destination + slots.numel()
        self.keys[:, :, destination:end] = self.keys.index_select(2, slots.to(self.keys.device))
        self.values[:, :, destination:end] = self.values.index_select(2, slots.to(self.values.device))

    def rows(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the keys and values start … end-1; of no heads where the layer reads another's rows."""
        if not self.is_initialized:
            nothing = torch.empty((1, 0, end - start, 1))
            return nothing, nothing
        return self.keys[:, :, start:end], self.values[:, :, start:end]

    @property
    def bytes(self) -> int:
        """Bytes of storage held."""
        if not self.is_initialized:
            return 0
        return self.keys.nbytes + self.values.nbytes


class ArenaCache(Cache):  # type: ignore[misc]
    """The arena as the model sees it."""

    @property
    def max_batch_size(self) -> int:
        return 1


@dataclass(frozen=True)
class KVRows:
    """Rows taken out of an arena: per layer keys and values [1, heads, rows, head_dim].

    A layer that reads another layer's rows has none of its own: its tensors have no heads.
    """

    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    @property
    def length(self) -> int:
        """Number of rows."""
        return int(self.layers[0][0].shape[2]) if self.layers else 0

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return sum(k.nbytes + v.nbytes for k, v in self.layers)


class Arena:
    """The KV rows of one sequence: ``length`` committed ones, scratch behind them up to ``capacity``."""

    def __init__(self, num_layers: int, capacity: int = 256, max_bytes: int | None = None) -> None:
        self.length = 0
        self.capacity = _round_up(capacity)
        self.max_bytes = max_bytes
        self.layers = [ArenaLayer(self) for _ in range(num_layers)]
        self.cache = ArenaCache(layers=self.layers)
        self.rows_moved = 0
        """Rows copied by commits so far: the accepted path only, which tests assert."""

    @property
    def bytes(self) -> int:
        """Bytes of storage held."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one row over all layers; 0 before the first forward."""
        return self.bytes // self.capacity if self.capacity else 0

    def reserve(self, rows: int) -> None:
        """Room for ``rows`` more rows. MemoryBudgetExceeded if the budget does not allow it."""
        needed = self.length + rows
        if needed <= self.capacity:
            return
        capacity = _round_up(max(needed, int(self.capacity * GROWTH)))
        limit = self._capacity_limit()
        if limit is not None and capacity > limit:
            capacity = _round_up(needed)
            if capacity > limit:
                raise MemoryBudgetExceeded(
                    f"the KV cache needs {capacity * self.bytes_per_token:,} bytes for {needed} tokens, the budget is "
                    f"{self.max_bytes:,}; lower max_new_tokens or shorten the prompt, or raise the budget"
                )
        for layer in self.layers:
            layer.resize(capacity)
        self.capacity = capacity

    def _capacity_limit(self) -> int | None:
        if self.max_bytes is None or not self.bytes_per_token:
            return None
        return self.max_bytes // self.bytes_per_token

    def commit(self, kept: Sequence[int]) -> None:
        """Keep the scratch rows ``kept`` (offsets behind ``length``, ascending) and drop the others.

        Rows already in place are not copied. The new length takes effect last, so an interruption in between
        leaves the arena as it was.
        """
        in_place = 0
        while in_place < len(kept) and kept[in_place] == in_place:
            in_place += 1
        moved = kept[in_place:]
        if moved:
            slots = torch.tensor(moved) + self.length
            for layer in self.layers:
                layer.gather(slots, self.length + in_place)
            self.rows_moved += len(moved)
        self.length += len(kept)

    def truncate(self, length: int) -> None:
        """Forget the rows behind ``length``."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} rows to {length}")
        self.length = length

    def drop(self, start: int, end: int) -> None:
        """Remove the rows start … end-1 and close the gap; the rows behind keep the positions they were
        computed with (SYSTEM.md V7)."""
        if not 0 <= start <= end <= self.length:
            raise ValueError(f"cannot drop rows {start} to {end} of {self.length}")
        tail = torch.arange(end, self.length)
        if tail.numel():
            for layer in self.layers:
                layer.gather(tail, start)
        self.length -= end - start

    def read(self, start: int, end: int) -> KVRows:
        """A copy of the rows start … end-1."""
        pairs = (layer.rows(start, end) for layer in self.layers)
        return KVRows(tuple((keys.clone(), values.clone()) for keys, values in pairs))

    def read_keys(self, start: int, end: int) -> list[torch.Tensor]:
        """Copies of the keys of rows start … end-1, one tensor [1, heads, rows, head_dim] a layer."""
        return [layer.rows(start, end)[0].clone() for layer in self.layers]

    def write_keys(self, start: int, keys: Sequence[torch.Tensor]) -> None:
        """Replace the keys of committed rows from ``start`` on, as ``read_keys`` gives them (SYSTEM.md V7)."""
        for layer, new in zip(self.layers, keys, strict=True):
            if layer.is_initialized:
                layer.keys[:, :, start : start + new.shape[2]] = new

    def append(self, rows: KVRows) -> None:
        """Copy stored rows behind the committed ones and commit them."""
        self.reserve(rows.length)
        end = self.length + rows.length
        for layer, (keys, values) in zip(self.layers, rows.layers, strict=True):
            if not keys.shape[1]:
                continue
            if not layer.is_initialized:
                layer.lazy_initialization(keys, values)
            layer.keys[:, :, self.length : end] = keys
            layer.values[:, :, self.length : end] = values
        self.length = end

    def check_integrity(self) -> None:
        """Every layer has the same capacity and holds at least ``length`` rows (AssertionError otherwise)."""
        assert 0 <= self.length <= self.capacity
        for layer in self.layers:
            assert not layer.is_initialized or layer.keys.shape[2] == layer.values.shape[2] == self.capacity


def layer_types(config: PreTrainedConfig) -> list[str]:
    """Attention type of each decoder layer of a text config; UnsupportedModel for layers without KV rows.

    Recurrent and linear-attention layers keep a state that cannot be rolled back to a verified path.
    """
    count = _first_attribute(config, ("num_hidden_layers", "n_layer"))
    if count is None:
        raise UnsupportedModel(f"{type(config).__name__} does not say how many layers it has; a decoder is needed")
    types = getattr(config, "layer_types", None)
    if types is None:
        window = getattr(config, "sliding_window", None)
        types = ["sliding_attention" if window else "full_attention"] * count
    strange = sorted(set(types) - _KNOWN_LAYER_TYPES)
    if strange or getattr(config, "layers_block_type", None) or hasattr(config, "ssm_cfg"):
        raise UnsupportedModel(
            f"{type(config).__name__} has layers of type {', '.join(strange) or 'recurrent'}, whose state cannot be "
            "rolled back to a verified path; use the model's own generate, or a model with attention layers only"
        )
    return list(types)


def user_cache_problem(cache: object) -> str | None:
    """Why a cache handed to generate cannot be used; None if there is none or it is still empty."""
    if cache is None:
        return None
    if isinstance(cache, Cache):
        try:
            return None if cache.get_seq_length() == 0 else f"a {type(cache).__name__} that already holds tokens"
        except (AttributeError, ValueError):
            return f"a {type(cache).__name__}"
    return f"a {type(cache).__name__}"


def _first_attribute(config: PreTrainedConfig, names: Sequence[str]) -> int | None:
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return int(value)
    return None


def _round_up(slots: int) -> int:
    return -(-slots // ROUND_TO) * ROUND_TO
