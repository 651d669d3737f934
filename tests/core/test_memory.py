"""Memory budgets are read from texts, and a request that cannot fit is refused before it starts."""

from __future__ import annotations

import pytest
import torch
from tiny import ARCHITECTURES, tiny_model

from mmspec_agent import Engine
from mmspec_agent.core.errors import MemoryBudgetExceeded, OptionError
from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.memory import check_request, kv_bytes_per_token, parse_bytes


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, None), (512, 512), ("512MiB", 512 * 2**20), ("2 GB", 2 * 10**9), ("1.5k", 1500), ("7b", 7), ("9", 9)],
)
def test_budgets_are_read(given: int | str | None, expected: int | None) -> None:
    assert parse_bytes(given) == expected


@pytest.mark.parametrize("given", [0, -1, "-5MB", "much", "", "0", "5 parsecs", 1.5j])
def test_other_budgets_are_refused(given: int | str) -> None:
    with pytest.raises(OptionError, match="memory budget"):
        parse_bytes(given)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bytes_per_token_equal_what_the_arena_holds(name: str) -> None:
    target = HFTarget(tiny_model(name))
    sequence = target.open(64)
    sequence.prefill([5, 6, 7])
    assert kv_bytes_per_token(target) == sequence.arena.bytes_per_token


def test_a_request_over_budget_is_refused_before_work_starts() -> None:
    model = tiny_model("llama")
    target = HFTarget(model)
    needed = check_request(target, None, 100, 50, 16)
    assert check_request(target, needed, 100, 50, 16) == needed
    with pytest.raises(MemoryBudgetExceeded, match=f"{needed:,} bytes.*100 prompt tokens.*lower max_new_tokens"):
        check_request(target, needed - 1, 100, 50, 16)
    engine = Engine(model, memory_budget=needed, max_nodes=16)
    forwards = 0

    def count(*_: object) -> None:
        nonlocal forwards
        forwards += 1

    handle = model.register_forward_hook(count)
    with pytest.raises(MemoryBudgetExceeded):
        engine.generate(torch.full((1, 100), 5), max_new_tokens=60)
    assert forwards == 0
    handle.remove()
    assert engine.generate(torch.full((1, 50), 5), max_new_tokens=5, do_sample=False).shape == (1, 55)
