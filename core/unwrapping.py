"""Finding the transformers model inside what a caller hands over: compiled modules, adapter wrappers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from .errors import ModelError, UnsupportedModel


def unwrapped(model: Any) -> PreTrainedModel:
    """The transformers model to decode with.

    ``torch.compile(model)`` stands for the model it wraps: a draft tree has another size each step, for which a
    compiled graph would be made anew. A PEFT model stands for its base model, in which the adapter's layers sit.
    ModelError for what is no model, UnsupportedModel for adapters that are no layers (prompt and prefix tuning).
    """
    inner: Any = model
    while True:
        modules = dict(inner.named_children()) if isinstance(inner, torch.nn.Module) else {}
        if "_orig_mod" in modules:
            inner = modules["_orig_mod"]
        elif modules and hasattr(inner, "get_base_model") and hasattr(inner, "peft_config"):
            kinds = [config for config in inner.peft_config.values() if config.is_prompt_learning]
            if kinds:
                raise UnsupportedModel(
                    f"{type(model).__name__} with {kinds[0].peft_type}: virtual tokens stand before every prompt, "
                    "which this engine does not add; accepted are adapters inside the layers (LoRA and its kin)"
                )
            inner = inner.get_base_model()
        else:
            break
    if isinstance(inner, PreTrainedModel):
        return inner
    what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
    raise ModelError(
        f"Engine got {what} as model; accepted is a causal language model of transformers, for example from "
        "AutoModelForCausalLM.from_pretrained(…). Engine.from_pretrained(name) loads one by name"
    )
