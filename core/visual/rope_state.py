"""The M-RoPE offset that some models keep on themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel


@contextmanager
def rope_state_kept(model: PreTrainedModel) -> Iterator[None]:
    """Leave the M-RoPE offset that Qwen-VL models keep on themselves as it was; ``generate`` writes it."""
    core = getattr(model, "model", None)
    before = core.__dict__.get("rope_deltas") if core is not None else None
    try:
        yield
    finally:
        if core is not None and "rope_deltas" in core.__dict__:
            core.rope_deltas = before
