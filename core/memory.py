"""Memory budget (SYSTEM.md C11): what a request needs is known, and refused, before work starts."""

from __future__ import annotations

import re

from .config_facts import number
from .errors import MemoryBudgetExceeded, OptionError
from .hf_target import HFTarget

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(value: int | str | None, zero: bool = False) -> int | None:
    """Bytes from a number or a text such as "512MiB" or "2 GB"; OptionError if it is neither.

    ``zero``: whether 0, which keeps nothing, is accepted.
    """
    least = 0 if zero else 1
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?|)b?\s*", str(value).lower())
    if not match or (float(match[1]) <= 0 and not zero):
        raise OptionError(
            f"memory budget {value!r}: accepted are a {'' if zero else 'positive '}number of bytes or a text like "
            "'512MiB'"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def kv_bytes_per_token(target: HFTarget) -> int:
    """Bytes of one token's keys and values over all layers, from the model's configuration."""
    config = target.text_config
    heads = number(config, "num_attention_heads", "n_head") or 1
    kv_heads = number(config, "num_key_value_heads") or heads
    hidden = number(config, "hidden_size", "n_embd") or heads
    width = number(config, "head_dim") or hidden // heads
    return 2 * len(target.layer_types) * kv_heads * width * target.dtype.itemsize


def scratch_bytes(target: HFTarget, rows: int, context: int) -> int:
    """Bytes of masks and logits of one forward over ``rows`` rows and ``context`` cached tokens."""
    return rows * (target.vocab_size + target.query_groups * (context + rows)) * target.dtype.itemsize


def check_request(target: HFTarget, budget: int | None, prompt: int, new_tokens: int, nodes: int) -> int:
    """Bytes a request needs for KV rows and scratch; MemoryBudgetExceeded if that is over ``budget``."""
    length = prompt + new_tokens + nodes
    needed = length * kv_bytes_per_token(target) + scratch_bytes(target, nodes + 1, length)
    if budget is not None and needed > budget:
        raise MemoryBudgetExceeded(
            f"this request needs about {needed:,} bytes ({prompt} prompt tokens, {new_tokens} new tokens, "
            f"{nodes} draft nodes), the budget is {budget:,}; lower max_new_tokens, shorten the prompt, "
            "lower max_nodes, or raise memory_budget"
        )
    return needed
