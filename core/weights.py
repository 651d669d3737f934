"""What KV rows were computed with: weights, adapters, configuration.

Rows are valid for the very weights they came from. ``ModelWatch`` notices between two requests that a model is no
longer what it was, at a cost far below that of a forward; ``weights_digest`` identifies it for rows on disk.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedConfig, PreTrainedModel

_SAMPLE_BYTES = 8
"""Bytes in the middle of a tensor, and at its end, that are compared per request: edits through ``.data`` raise no
version counter."""

_CHUNK_BYTES = 1 << 26

_ADAPTER_STATE = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")
"""Plain attributes of PEFT's tuner layers that change what they compute."""

_VERSION = attrgetter("_version")
_IN_TRAINING = itemgetter("training")


class Change(NamedTuple):
    """What differs from the last look.

    ``structure``: modules or the configuration, so that the model computes in another way. ``weights``: anything else
    that its rows depend on.
    """

    structure: bool
    weights: bool

    def __bool__(self) -> bool:
        return self.structure or self.weights


class ModelWatch:
    """A cheap look at a model before each request: has anything changed that its KV rows depend on?

    Seen are: parameters and buffers replaced, moved, cast or written to in place (PyTorch's version counters; edits
    through ``.data`` if they touch the middle or the end), modules and hooks added, taken away or replaced, adapters
    switched, merged or rescaled, and changed values of the configuration. Not seen are edits through ``.data`` of a
    few elements, and plain attributes of modules (``layer.scale = 2``).
    """

    _tensors_before: tuple[list[Any], ...]
    _sizes_before: list[int]
    _details_before: tuple[list[Any], list[Any]]

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._look()

    def changed(self) -> Change:
        """What changed since the last call, or since the watch was made; the state as it is becomes the new base."""
        structure = self._structure_before != self._structure() or self._config_changed()
        weights = self._tensors_before != self._tensor_state() or self._adapters_before != self._adapters()
        if self._sizes_before != self._sizes():
            hooks, names = self._details_before
            now_hooks, now_names = self._details()
            structure, weights = structure or names != now_names, weights or hooks != now_hooks
            self._details_before, self._sizes_before = (now_hooks, now_names), self._sizes()
        if structure or weights:
            self._look()
        return Change(structure, weights)

    @property
    def training(self) -> bool:
        """Whether any part of the model is in training mode (dropout would act)."""
        return any(map(_IN_TRAINING, self._trained))

    def _look(self) -> None:
        modules = list(self._model.modules())
        self._scopes = [module.__dict__ for module in modules]
        self._trained = [module.__dict__ for module in modules[:1] + list(filter(minds_training, modules))]
        self._children = [module._modules for module in modules if module._modules]
        self._hooks = [module._forward_pre_hooks for module in modules]
        # What the whole model puts out is no row of its cache: a hook there (one that counts, say) voids none.
        self._hooks += [module._forward_hooks for module in modules[1:]]
        self._inside = [module._modules for module in modules]
        self._sized = [*self._scopes, *self._inside, *self._hooks]
        self._stores = [module._parameters for module in modules if module._parameters]
        self._stores += [module._buffers for module in modules if module._buffers and not moves_with_length(module)]
        self._tuned = [scope for scope in self._scopes if any(name in scope for name in _ADAPTER_STATE[:3])]
        configs = {id(scope["config"]): scope["config"] for scope in self._scopes if "config" in scope}
        self._configs = [
            (one.__dict__, copy.deepcopy(_own_values(one.__dict__)))
            for one in configs.values()
            if isinstance(one, PreTrainedConfig)
        ]
        samples = [_sampled(tensor) for tensor in self._tensors()]
        self._here = [piece for few in samples if isinstance(few, list) for piece in few]
        self._elsewhere = [few for few in samples if isinstance(few, torch.Tensor)]
        self._structure_before = self._structure()
        self._adapters_before = copy.deepcopy(self._adapters())
        self._sizes_before, self._details_before = self._sizes(), self._details()
        self._tensors_before = self._tensor_state()

    def _structure(self) -> list[int]:
        return list(map(id, chain.from_iterable(map(dict.values, self._children))))

    def _sizes(self) -> list[int]:
        """Sizes of what rarely changes: where one differs, ``_details`` tell whether it matters."""
        return list(map(len, self._sized))

    def _details(self) -> tuple[list[Any], list[Any]]:
        """Hooks other than transformers' own, which only collect outputs, and names that modules have by themselves."""
        hooks = [
            [hook for hook in found.values() if not str(getattr(hook, "__module__", "")).startswith("transformers.")]
            for found in self._hooks
        ]
        names = [[name for name in scope if not name.startswith("_")] for scope in self._scopes]
        return hooks, [*names, *map(list, self._inside)]

    def _adapters(self) -> list[Any]:
        return [[scope.get(name) for name in _ADAPTER_STATE] for scope in self._tuned]

    def _tensors(self) -> list[torch.Tensor]:
        return [t for t in chain.from_iterable(map(dict.values, self._stores)) if t is not None]

    def _tensor_state(self) -> tuple[list[Any], ...]:
        # All of it in loops that run in C: this is paid before every request.
        tensors = self._tensors()
        try:
            versions = list(map(_VERSION, tensors))
        except RuntimeError:  # tensors made in inference mode count no writes
            versions = [-1 if tensor.is_inference() else tensor._version for tensor in tensors]
        samples = list(map(np.ndarray.item, self._here))
        samples += [few.cpu().numpy().tobytes() for few in _gathered(self._elsewhere)]
        return list(map(id, tensors)), versions, list(map(torch.Tensor.data_ptr, tensors)), samples

    def _config_changed(self) -> bool:
        return any(_own_values(now) != before for now, before in self._configs)


def _own_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without the configurations of parts: layers hold those themselves, and some refuse to be compared."""
    return {name: value for name, value in values.items() if not isinstance(value, PreTrainedConfig)}


def minds_training(module: torch.nn.Module) -> bool:
    """Whether training mode may change what the module computes.

    Of torch's own layers only dropout and norms do; quantised ones, put in by hand, are often left in training mode.
    """
    dropout = any(isinstance(p, float) and p > 0 for name, p in vars(module).items() if name == "p" or "drop" in name)
    own = type(module).__module__.startswith("torch.")
    return dropout or "Norm" in type(module).__name__ or (bool(module._modules) and not own)


def moves_with_length(module: torch.nn.Module) -> bool:
    """Whether the module's buffers are rotary frequencies that a forward itself sets."""
    kinds = getattr(module, "rope_type", None)
    kinds = list(kinds.values()) if isinstance(kinds, dict) else [kinds]
    return any(isinstance(kind, str) and ("dynamic" in kind or kind == "longrope") for kind in kinds)


def weights_digest(model: PreTrainedModel) -> str:
    """Hash of every byte of parameters and buffers with names, dtypes and shapes, adapters' state, and configuration.

    Tensors are hashed side by side: SHA-256 of hundreds of megabytes takes a fraction of a second.
    """
    digest = hashlib.sha256(config_text(model.config).encode())
    names = sorted(_named_tensors(model).items())
    with ThreadPoolExecutor() as pool:
        for (name, tensor), content in zip(names, pool.map(_tensor_digest, (tensor for _, tensor in names))):
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode() + content)
    for name, module in model.named_modules():
        scope = module.__dict__
        if "_active_adapter" in scope or "merged_adapters" in scope:
            digest.update(repr((name, [scope.get(key) for key in _ADAPTER_STATE])).encode())
    return digest.hexdigest()


def config_text(config: PreTrainedConfig) -> str:
    """Every value of a configuration, as text that is the same for equal ones; where it was loaded from left out."""
    values = config.to_dict()
    for name in ("_name_or_path", "transformers_version", "architectures"):
        values.pop(name, None)
    return json.dumps(values, sort_keys=True, default=str)


def _named_tensors(model: PreTrainedModel) -> Mapping[str, torch.Tensor]:
    """Parameters and buffers by name; of rotary frequencies that move with length the first ones."""
    found: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    for prefix, module in model.named_modules():
        moving = moves_with_length(module)
        for name, buffer in module._buffers.items():
            if buffer is not None and not (moving and "inv_freq" in name and "original" not in name):
                found[f"{prefix}.{name}"] = buffer
    return found


def _tensor_digest(tensor: torch.Tensor) -> bytes:
    digest = hashlib.sha256()
    if tensor.device.type == "meta":
        return digest.digest()
    flat = tensor.detach().contiguous().reshape(-1)
    step = max(1, _CHUNK_BYTES // max(1, flat.element_size()))
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step].cpu()
        digest.update(piece.view(torch.uint8).numpy().data if piece.numel() else b"")
    return digest.digest()


def _sampled(tensor: torch.Tensor) -> list[npt.NDArray[Any]] | torch.Tensor:
    """A few elements from the middle and the end, as views that follow later writes.

    Empty where there is no plain storage to look at; a tensor where it does not lie in this machine's memory.
    """
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or not tensor.numel():
        return []
    try:
        flat = tensor.detach().view(-1)
        middle = flat.numel() // 2
        if tensor.device.type != "cpu":
            return flat[middle : middle + 2]
        octets = flat.view(torch.uint8).numpy()
        starts = (middle * flat.element_size(), max(0, len(octets) - _SAMPLE_BYTES))
        pieces = [octets[start : start + _SAMPLE_BYTES] for start in starts]
        # One item of raw bytes each: read about four times as fast as an array.
        return [piece.view(f"V{len(piece)}").reshape(()) for piece in pieces]
    except (RuntimeError, TypeError):  # not contiguous, or a tensor class of its own
        return []


def _gathered(samples: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Samples off the CPU, brought over in one piece a dtype."""
    by_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for few in samples:
        by_kind.setdefault((few.dtype, few.device), []).append(few)
    for pieces in by_kind.values():
        yield torch.cat(pieces).contiguous().view(torch.uint8)
