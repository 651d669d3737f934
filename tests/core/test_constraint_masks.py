"""Token masks: one bit a token."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec_agent.core.constraint import TokenMask


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 1000])
def test_a_mask_of_one_token_is_known_as_such(size: int) -> None:
    for token in {0, size // 2, size - 1}:
        mask = TokenMask.only(token, size)
        assert mask.tokens().tolist() == [token]
        assert np.array_equal(mask.words, TokenMask.of([token], size).words)
        assert mask.single() == token


@pytest.mark.parametrize("tokens", [[], [0, 1], [0, 31], [31, 32], [5, 99], list(range(100))])
def test_other_masks_have_no_single_token(tokens: list[int]) -> None:
    assert TokenMask.of(tokens, 100).single() is None
