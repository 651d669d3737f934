"""A look before pictures of a family that no test covers: do our logits equal those of the model's own full call?

Families differ in masks, positions and places of their pictures, and in what they make of several of them. The model
is called as transformers would call it, with every input there is; our call over the same tokens has to give the same
logits at every position. Both run in fp32, where a wrong mask cannot hide in rounding, if memory has room for a copy.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import PictureInputError, UnsupportedModel
from ..hf_target import HFTarget
from .families import KIND_ARGUMENTS, Family
from .features import PICTURE_FAULTS, Encoder, PictureFeatures, as_model_output
from .memory import ByteStore
from .picture_input import PictureInput
from .placing import Placed, visual_inputs
from .rope_state import rope_state_kept

MAX_DIFFERENCE = 2e-3
"""Largest difference of logits in fp32, in standard deviations of a row of logits, at any position."""

MAX_HALF_PRECISION_ERROR = (0.03, 0.15)
"""Bounds of the error allowed in half precision: root mean square over a row, in standard deviations, at nine of ten
positions. Between them it is four times what the model's own calls differ by among themselves."""

_COPY_ROOM = 1.3
_EXACT = (torch.float32, torch.float64)


@dataclass(frozen=True)
class OwnCall:
    """The model's own call: keyword arguments [rows, n] of its forward, every input of its pictures among them."""

    inputs: Mapping[str, Any]

    @property
    def ids(self) -> torch.Tensor:
        """[rows, n], with the padding."""
        ids: torch.Tensor = self.inputs["input_ids"]
        return ids


@dataclass(frozen=True)
class LookedRow:
    """A row of that call as we see it: its ids without padding, and where its pictures lie."""

    ids: Sequence[int]
    placed: Sequence[Placed]


def prove(
    target: HFTarget,
    family: Family,
    ids: Sequence[int],
    placed: Sequence[Placed],
    encode: Callable[[PictureInput], PictureFeatures],
) -> None:
    """``prove_call`` for one row whose pictures were preprocessed one by one."""
    known = inspect.signature(target.model.forward).parameters
    tokens = torch.tensor([list(ids)], device=target.device)
    inputs = {"input_ids": tokens, **_joined([one.picture.load() for one in placed])}
    inputs |= {name: (tokens == family.image_token_id).long() for name in KIND_ARGUMENTS if name in known}
    prove_call(target, family, [LookedRow(ids, placed)], OwnCall(inputs))


@torch.inference_mode()
def prove_call(target: HFTarget, family: Family, rows: Sequence[LookedRow], own: OwnCall) -> None:
    """UnsupportedModel if the model's own logits differ from ours anywhere in these rows, or cannot be had."""
    exact = _exact_copy(target.model)
    looked = target if exact is target.model or exact is None else HFTarget(exact)
    try:
        theirs = _theirs(looked, own.inputs)
        ours = [_ours(looked, family, row) for row in rows]
        noise = 0.0 if exact is not None else _noise(looked, own.inputs, theirs)
    except torch.OutOfMemoryError:
        raise
    except (*PICTURE_FAULTS, PictureInputError, UnsupportedModel) as error:
        raise UnsupportedModel(
            f"pictures with {family.model_type} do not run with features, positions and masks of our own "
            f"({type(error).__name__}: {error}); text-only requests work, for pictures use the model's own generate"
        ) from error
    for row, logits in enumerate(ours):
        _compare(family, logits, theirs[row, theirs.shape[1] - len(logits) :], None if exact is not None else noise)


def _compare(family: Family, ours: torch.Tensor, theirs: torch.Tensor, noise: float | None) -> None:
    """[n, V] logits of one row; ``noise``: of half precision, None in fp32."""
    scale = theirs.std(dim=-1).clamp_min(1e-6)
    if noise is None:
        difference, allowed = float(((ours - theirs).abs().amax(dim=-1) / scale).max()), MAX_DIFFERENCE
    else:
        least, most = MAX_HALF_PRECISION_ERROR
        difference, allowed = _error(ours, theirs), min(max(4 * noise, least), most)
    if not difference <= allowed:
        raise UnsupportedModel(
            f"pictures with {family.model_type} give other logits than the model itself (by {difference:.3g} standard "
            "deviations): its positions or masks follow a rule of their own, or it reads an input that it is not "
            "served with. Text-only requests work; for pictures use the model's own generate"
        )


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    each = (ours - theirs).square().mean(dim=-1).sqrt() / theirs.std(dim=-1).clamp_min(1e-6)
    return float(each.quantile(0.9))


def _exact_copy(model: PreTrainedModel) -> PreTrainedModel | None:
    """The model itself if it is exact, else a copy in fp32; None if there is no room, or it cannot be copied."""
    if model.dtype in _EXACT:
        return model
    parameters = list(model.parameters())
    if any(one.is_meta or not one.is_floating_point() for one in parameters):
        return None
    if 4 * _COPY_ROOM * sum(one.numel() for one in parameters) > _free_bytes(model.device):
        return None
    try:
        return copy.deepcopy(model).float()
    except (RuntimeError, TypeError, NotImplementedError, AttributeError, ValueError):
        return None


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 1 << 30


def _ours(target: HFTarget, family: Family, row: LookedRow) -> torch.Tensor:
    """[n, V] logits of our call over the whole row."""
    encoder = Encoder(target.model, family, ByteStore(0))
    sequence, count = target.open(len(row.ids)), len(row.ids)

    def encode(picture: PictureInput) -> PictureFeatures:
        return encoder.encode(_in(target, picture))

    visual = visual_inputs(family, row.ids, row.placed, 0, count, sequence.positions, encode)
    return sequence.prefill_logits(row.ids, visual, count).float()


def _in(target: HFTarget, picture: PictureInput) -> PictureInput:
    """A picture whose features, if transformers computed them, are in the dtype of the call."""
    return PictureInput(picture.key, lambda: _moved(picture.load(), target), picture.grid, picture.count)


def _theirs(target: HFTarget, inputs: Mapping[str, Any]) -> torch.Tensor:
    """[rows, n, V] logits of the model's own call."""
    with rope_state_kept(target.model):
        moved = {name: _moved(value, target) for name, value in inputs.items()}
        logits: torch.Tensor = target.model(**moved, use_cache=False, return_dict=True).logits
    return logits.float()


def _noise(target: HFTarget, inputs: Mapping[str, Any], theirs: torch.Tensor) -> float:
    """How far rounding alone takes the model's own logits: the same rows beside a copy of themselves."""
    ids = inputs["input_ids"]
    if len(ids) > 1:
        return MAX_HALF_PRECISION_ERROR[1] / 4
    longer = {**inputs, "input_ids": torch.cat([ids, ids[:, -1:].expand(-1, 3)], dim=1)}
    for name in (*KIND_ARGUMENTS, "attention_mask"):
        if isinstance(longer.get(name), torch.Tensor):
            fill = torch.full_like(longer[name][:, -1:], int(name == "attention_mask")).expand(-1, 3)
            longer[name] = torch.cat([longer[name], fill], dim=1)
    longer.pop("position_ids", None)
    again = _theirs(target, longer)[:, : ids.shape[1]]
    return _error(again[0], theirs[0])


def _joined(parts: Sequence[Any]) -> dict[str, Any]:
    """Inputs of single pictures as one batch; features that transformers computed go in as they are."""
    features = [part for part in parts if isinstance(part, PictureFeatures)]
    if features:
        return {"mm_encoder_outputs": {"image": as_model_output(features)}}
    if not parts:
        return {}
    return {
        name: torch.cat([part[name] for part in parts]) if isinstance(value, torch.Tensor) and value.ndim else value
        for name, value in parts[0].items()
    }


def _moved(value: Any, target: HFTarget) -> Any:
    """Tensors, also inside features and outputs, on the device and in the dtype of the call."""
    if isinstance(value, torch.Tensor):
        value = value.to(target.device)
        return value.to(target.dtype) if value.is_floating_point() else value
    if isinstance(value, PictureFeatures):
        deep = tuple(_moved(one, target) for one in value.deep)
        return PictureFeatures(_moved(value.rows, target), deep, value.stacked, value.deepstack)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(one, target) for one in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(one, target) for one in value)
    if isinstance(value, Mapping):
        return _moved_mapping(value, target)
    return value


def _moved_mapping(value: Mapping[str, Any], target: HFTarget) -> Any:
    moved = {name: _moved(one, target) for name, one in value.items()}
    if type(value) is dict:
        return moved
    again = copy.copy(value)  # an output class of transformers: a mapping with attributes
    for name, one in moved.items():
        setattr(again, name, one)
    return again
