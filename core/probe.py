"""A look before the first request: does this model's attention follow a tree mask, row by row?

Architectures differ in what they do with 4-D masks, explicit positions and foreign caches, and quantised layers
may let rows of one forward influence each other. Two tiny forwards tell, for any model, known or not.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import torch
from transformers import PreTrainedModel

from .errors import ModelError, NumericalError, UnsupportedModel
from .hf_target import HFTarget
from .tree import ROOT, DraftTree

_PREFIX = 6
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3}
_LOW_PRECISION_TOLERANCE = 0.25
"""Largest difference of logits, in units of their standard deviation."""


def check_target(target: HFTarget) -> None:
    """Raise if the model cannot serve as a target.

    ModelError in training mode, NumericalError for NaN weights, UnsupportedModel where node logits differ from
    those of a plain forward over the node's path.
    """
    model = target.model
    name = type(model).__name__
    if any(module.training for module in model.modules()):
        refuse_training(model)
    devices = set(map(str, (getattr(model, "hf_device_map", None) or {}).values()))
    if len(devices) > 1:
        raise UnsupportedModel(f"{name} is spread over {', '.join(sorted(devices))}; accepted is one device")
    prefix, tree = _example(target)
    try:
        difference = _difference(target, prefix, tree)
    except (NumericalError, ModelError):
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        raise UnsupportedModel(
            f"{name} does not run with an explicit mask, positions and a cache of our own "
            f"({type(error).__name__}: {error}); use the model's own generate"
        ) from error
    if difference > tolerance(target.dtype):
        raise UnsupportedModel(
            f"{name} gives other logits for a draft tree than for its paths (by {difference:.3g} standard "
            "deviations): its attention ignores the tree's mask, or its layers mix the rows of a forward "
            "(dynamic activation quantisation does); use the model's own generate"
        )


def refuse_training(model: PreTrainedModel) -> NoReturn:
    """The error of a model that is, in whole or in part, in training mode."""
    part = next((name for name, module in model.named_modules() if module.training), "")
    raise ModelError(
        f"{type(model).__name__} is in training mode{f' (in {part})' if part else ''}, where dropout makes answers "
        "random; call model.eval() first"
    )


def tolerance(dtype: torch.dtype) -> float:
    """Largest difference of logits, in standard deviations, that two ways of computing them may have."""
    return _TOLERANCE.get(dtype, _LOW_PRECISION_TOLERANCE)


def _example(target: HFTarget) -> tuple[list[int], DraftTree]:
    usable = [t for t in range(3, min(target.vocab_size, 400)) if t not in target.placeholder_ids]
    ids = np.random.default_rng(0).choice(usable, size=_PREFIX + 4, replace=True).tolist()
    a, b, c, d = ids[_PREFIX:]
    tree = DraftTree((a, b + (b == a), c, d), (ROOT, ROOT, 0, 1), ("probe",) * 4, (1.0,) * 4)
    return ids[:_PREFIX], tree


@torch.inference_mode()
def _difference(target: HFTarget, prefix: list[int], tree: DraftTree) -> float:
    sequence = target.open(64)
    sequence.prefill(prefix[:-2])
    result = sequence.verify(prefix[-2:], tree)
    worst = 0.0
    for node in tree.leaves:
        ids = torch.tensor([[*prefix, *tree.path_tokens(node)]], device=target.device)
        plain = target.model(input_ids=ids, use_cache=False, return_dict=True).logits[0, -1].float()
        if not bool(torch.isfinite(plain).all()):
            raise NumericalError(
                "the model's logits are NaN or infinite on a plain forward; its weights are damaged or overflow "
                "in this dtype (float16 does in some models: try bfloat16 or float32)"
            )
        gap = (result.row(node)[0] - plain).abs().max() / plain.std().clamp_min(1e-6)
        worst = max(worst, float(gap))
    return worst
