"""Penalties and biases of the OpenAI API as processors: what was said already, and tokens the caller names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SaidPenalty:
    """score[j] -= count[j] * ``frequency`` + (count[j] > 0) * ``presence``, over the tokens said so far.

    ``prompt_length``: what is said begins behind so many ids. Source: OpenAI API reference, "Parameter details".
    """

    frequency: float
    presence: float
    prompt_length: int

    keeps_support = True
    """Finite, so that the only legal token stays it."""

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        said = ids[0, self.prompt_length :]
        counts = torch.bincount(said, minlength=scores.shape[-1]).to(scores.device, scores.dtype)
        return scores - (counts * self.frequency + (counts > 0) * self.presence)


class LogitBias:
    """score[j] += ``biases``[j]; finite, so that the only legal token stays it."""

    keeps_support = True

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._ids = torch.tensor(list(biases), dtype=torch.long)
        self._values = torch.tensor(list(biases.values()))

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        values = self._values.to(scores.device, scores.dtype)
        return scores.index_add(1, self._ids.to(scores.device), values[None].expand(len(scores), -1))
