"""When transformers' generate gives its first token, and inputs as its models want them."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import PreTrainedModel


class FirstToken:
    """A streamer that notes when the first new token comes; the first call brings the prompt."""

    def __init__(self) -> None:
        self.calls = 0
        self.at = time.perf_counter()

    def put(self, value: torch.Tensor) -> None:
        """One more piece of the sequence."""
        self.calls += 1
        if self.calls == 2:
            self.at = time.perf_counter()

    def end(self) -> None:
        """Nothing to flush."""


def placed(inputs: Any, model: PreTrainedModel) -> dict[str, Any]:
    """A processor's output on the model's device, pixels in its dtype."""
    return {name: _placed(value, model) for name, value in inputs.items()}


def _placed(value: Any, model: PreTrainedModel) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.to(model.device)
    return value.to(model.dtype) if value.is_floating_point() else value
