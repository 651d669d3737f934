"""A look before the first picture of a family that no test covers: do our logits equal the model's own?

Families differ in masks, positions and places of their pictures. One forward of the model over its own pixel inputs
and one of ours tell, so that an unknown family either works or is refused by name, never silently wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import UnsupportedModel
from ..hf_target import HFTarget
from ..probe import tolerance
from ..tree import ROOT
from .families import KIND_ARGUMENTS, Family, PictureInput
from .features import PictureFeatures, as_model_output
from .placing import Placed, visual_inputs

TEXT_BEHIND = 8
"""Tokens behind the last picture that take part."""


@torch.inference_mode()
def prove(
    target: HFTarget,
    family: Family,
    ids: Sequence[int],
    placed: Sequence[Placed],
    encode: Callable[[PictureInput], PictureFeatures],
) -> None:
    """UnsupportedModel if the model's own logits behind these pictures differ from ours, or cannot be had."""
    tokens = list(ids[: placed[-1].end + TEXT_BEHIND])
    try:
        ours = _ours(target, family, tokens, placed, encode)
        theirs = _theirs(target, family, tokens, [one.picture for one in placed])
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
        raise UnsupportedModel(
            f"pictures with {family.model_type} do not run with features, positions and masks of our own "
            f"({type(error).__name__}: {error}); text-only requests work, for pictures use the model's own generate"
        ) from error
    difference = float((ours - theirs).abs().max() / theirs.std().clamp_min(1e-6))
    if not difference <= tolerance(target.dtype):
        raise UnsupportedModel(
            f"pictures with {family.model_type} give other logits than the model itself (by {difference:.3g} standard "
            "deviations): its positions or masks follow a rule of their own. Text-only requests work; for pictures "
            "use the model's own generate"
        )


def _ours(
    target: HFTarget,
    family: Family,
    tokens: Sequence[int],
    placed: Sequence[Placed],
    encode: Callable[[PictureInput], PictureFeatures],
) -> torch.Tensor:
    sequence, last = target.open(len(tokens)), len(tokens) - 1
    sequence.prefill(tokens[:last], visual_inputs(family, tokens, placed, 0, last, sequence.positions, encode))
    return sequence.verify(tokens[last:]).row(ROOT)[0]


def _theirs(target: HFTarget, family: Family, tokens: Sequence[int], pictures: Sequence[PictureInput]) -> torch.Tensor:
    model = target.model
    known = inspect.signature(model.forward).parameters
    ids = torch.tensor([list(tokens)], device=target.device)
    inputs = _joined([picture.load() for picture in pictures])
    inputs |= {name: (ids == family.image_token_id).long() for name in KIND_ARGUMENTS if name in known}
    moved = {name: _moved(value, target) for name, value in inputs.items()}
    core = getattr(model, "model", None)
    before = getattr(core, "rope_deltas", None)
    try:
        logits = model(input_ids=ids, use_cache=False, return_dict=True, **moved).logits
    finally:
        if core is not None and hasattr(core, "rope_deltas"):
            core.rope_deltas = before
    row: torch.Tensor = logits[0, -1].float()
    return row


def _joined(parts: Sequence[Any]) -> dict[str, Any]:
    """Inputs of single pictures as one batch; features that transformers computed go in as they are."""
    features = [part for part in parts if isinstance(part, PictureFeatures)]
    if features:
        return {"mm_encoder_outputs": {"image": as_model_output(features)}}
    first = parts[0]
    return {
        name: torch.cat([part[name] for part in parts]) if isinstance(value, torch.Tensor) else value
        for name, value in first.items()
    }


def _moved(value: Any, target: HFTarget) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.to(target.device)
    return value.to(target.dtype) if value.is_floating_point() else value
