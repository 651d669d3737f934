"""The quick argmax agrees with torch's for every format, ties and infinities included."""

from __future__ import annotations

import pytest
import torch

from mmspec_agent.core.target import best_tokens

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [-50.0, 0.0, 50.0])
def test_first_of_the_best(dtype: torch.dtype, shift: float) -> None:
    generator = torch.Generator().manual_seed(0)
    # Coarse steps make ties, the first of which plain decoding takes.
    logits = ((torch.randn(64, 300, generator=generator) * 4).round() + shift).to(dtype)
    assert best_tokens(logits) == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf")])
def test_rows_that_cannot_be_drawn_from(dtype: torch.dtype, bad: float) -> None:
    logits = torch.zeros(3, 40, dtype=dtype)
    logits[1, 7] = bad
    assert best_tokens(logits) == [0, -1, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_entries_are_no_fault_unless_all_are(dtype: torch.dtype) -> None:
    logits = torch.full((2, 40), float("-inf"), dtype=dtype)
    logits[0, 3] = -2.0
    assert best_tokens(logits) == [3, -1]
