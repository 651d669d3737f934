"""Rotary frequencies that depend on how long a forward is: LongRoPE and dynamic NTK.

transformers chooses the frequencies of a forward by its largest position: LongRoPE (Ding et al. 2024) has one set up to
the length the model was first trained for and another beyond, dynamic NTK a set of its own for every length beyond.
Rows that are cached keep the frequencies of the forward that computed them. So what plain decoding gives depends on
which rows were computed together, and an engine has to compute the same ones together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from .errors import ContextOverflow, UnsupportedModel


@dataclass(frozen=True)
class LengthRule:
    """Frequencies up to ``border`` tokens, and other ones beyond: one set, or with ``grows`` one for each length.

    ``recomputes``: at the border ``generate`` throws its cache away and reads the whole text again, as the Phi models
    do; otherwise rows from before the border stay as they are. ``loses``: it throws the cache away and does not read
    the text again, so that its answer goes on from the last token alone.
    """

    border: int
    grows: bool
    recomputes: bool
    loses: bool = False

    @classmethod
    def of(cls, model: PreTrainedModel) -> LengthRule | None:
        """The rule of a model; UnsupportedModel where layers follow different ones."""
        found = {rule for module in model.modules() for rule in _rules(module)}
        own = getattr(model.config, "original_max_position_embeddings", None)
        loses = False
        if isinstance(own, int) and _loses(model, own):
            loses = True
            found.add((own, False))
        if not found:
            return None
        if len(found) > 1:
            raise UnsupportedModel(
                f"{type(model).__name__} has layers whose rotary frequencies change at different lengths "
                f"({', '.join(str(border) for border, _ in sorted(found))}), which is not supported; use the model's "
                "own generate"
            )
        border, grows = next(iter(found))
        return cls(border, grows, _recomputes(model, border), loses)

    def regime(self, length: int) -> int:
        """Names the frequencies of a forward whose largest position is ``length`` - 1; a length that has them."""
        if length <= self.border:
            return 0
        return length if self.grows else self.border + 1

    def check(self, name: str, prompts: Sequence[int], width: int, new: int) -> None:
        """Refuse what ``generate`` itself computes in a way that no single text has; nothing has been computed yet.

        ``prompts``: lengths of the rows of a batch. ``width``: that of the batch, padding included. ``new``: tokens
        that may follow. ContextOverflow.
        """
        longest = max(prompts)
        if self.loses and width <= self.border < width + new - 1:
            raise ContextOverflow(
                f"{width} tokens and {new} new ones go across {self.border}, where {name} in transformers drops its "
                "cache and goes on from the last token alone: the text before is lost. Accepted is a text that stays "
                f"on one side: at most {max(1, self.border - width + 1)} new tokens here, or a longer prompt"
            )
        if self.recomputes and width > longest and longest <= self.border < longest + new - 1:
            raise ContextOverflow(
                f"every row of the batch has padding, and the rows go across {self.border} tokens, where {name} "
                "changes its positions by the length of the rows but reads them again by the width of the batch; "
                "cut off the columns that are padding in every row"
            )


def _rules(module: Any) -> Iterator[tuple[int, bool]]:
    kinds = getattr(module, "rope_type", None)
    for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
        if not isinstance(kind, str):
            continue
        if kind == "longrope":
            rules: Any = module.config.rope_parameters
            yield int((rules[layer_type] if layer_type else rules)["original_max_position_embeddings"]), False
        elif "dynamic" in kind:
            yield int(module.original_max_seq_len), True


class _Full:
    """Stands for a cache of a given length, to see whether ``generate`` would keep it."""

    is_compileable = False

    def __init__(self, length: int) -> None:
        self.length = length

    def get_seq_length(self) -> int:
        return self.length


def _recomputes(model: PreTrainedModel, border: int) -> bool:
    inputs = _inputs_beyond(model, border)
    if inputs is None:
        return hasattr(model.config, "original_max_position_embeddings")
    return inputs.get("cache") is None


def _loses(model: PreTrainedModel, border: int) -> bool:
    inputs = _inputs_beyond(model, border)
    if inputs is None or inputs.get("cache") is not None or inputs.get("input_ids") is None:
        return False
    return bool(inputs["input_ids"].shape[1] <= border)


def _inputs_beyond(model: PreTrainedModel, border: int) -> Mapping[str, Any] | None:
    """What ``generate`` hands to the first forward beyond a border; None where that cannot be asked."""
    ids = torch.zeros((1, border + 1), dtype=torch.long)
    try:
        inputs: Mapping[str, Any] = model.prepare_inputs_for_generation(
            ids, cache=_Full(border), attention_mask=torch.ones_like(ids), next_sequence_length=1
        )
    except Exception:  # the class prepares its inputs in a way of its own
        return None
    return inputs


@contextmanager
def fresh_frequencies(model: PreTrainedModel) -> Iterator[None]:
    """Run a forward as if it were the model's first: dynamic NTK remembers the longest one it has seen.

    What the model remembered is put back afterwards.
    """
    saved: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for module in model.modules():
        if not any(grows for _, grows in _rules(module)):
            continue
        for store in (module.__dict__, module._buffers):
            names = [name for name in store if "inv_freq" in name or name.endswith("max_seq_len_cached")]
            saved.append((store, {name: store[name] for name in (*names, *_scalings(store))}))
        for name, buffer in list(module._buffers.items()):
            if name.endswith("original_inv_freq"):
                module._buffers[name.replace("original_inv_freq", "inv_freq")] = buffer
        for name in [name for name in module.__dict__ if name.endswith("max_seq_len_cached")]:
            module.__dict__[name] = module.original_max_seq_len
    try:
        yield
    finally:
        for store, values in saved:
            store.update(values)


def _scalings(store: dict[str, Any]) -> list[str]:
    return [name for name in store if name.endswith("attention_scaling")]
