"""The arena, positions and masks: what a row holds, where it stands, what it sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake import random_tree
from transformers import DynamicCache, MambaConfig

from mmspec_agent.core.cache import Arena, layer_types, user_cache_problem
from mmspec_agent.core.errors import MemoryBudgetExceeded, UnsupportedModel
from mmspec_agent.core.masks import Rows, additive, full_mask, sliding_mask
from mmspec_agent.core.positions import Positions
from mmspec_agent.core.tree import ROOT, DraftTree


def fill(arena: Arena, values: list[int]) -> None:
    """A forward: rows behind the committed ones, key = value, value = -value."""
    arena.reserve(len(values))
    rows = torch.tensor(values, dtype=torch.float32).reshape(1, 1, -1, 1).expand(1, 2, -1, 4)
    for layer in arena.layers:
        keys, _ = layer.update(rows, -rows)
        assert keys.shape[2] == arena.length + len(values)


def held(arena: Arena) -> list[int]:
    rows = arena.read(0, arena.length)
    for keys, values in rows.layers:
        assert (keys == -values).all()
        assert (keys == rows.layers[0][0]).all()
    return [int(x) for x in rows.layers[0][0][0, 0, :, 0]]


def test_commits_keep_the_path_in_place_and_growth_keeps_everything() -> None:
    rng = np.random.default_rng(0)
    arena, expected, at = Arena(3, 64), [], 0
    for _ in range(60):
        values = list(range(at, at + int(rng.integers(1, 12))))
        at += len(values)
        kept = sorted(rng.choice(len(values), size=int(rng.integers(0, len(values) + 1)), replace=False).tolist())
        fill(arena, values)
        arena.commit(kept)
        expected += [values[i] for i in kept]
        arena.check_integrity()
        assert held(arena) == expected
    assert arena.capacity > 64
    assert arena.capacity % 64 == 0


def test_rows_already_in_place_are_not_copied() -> None:
    arena = Arena(2)
    fill(arena, [1, 2, 3, 4, 5])
    arena.commit([0, 1, 3])
    assert arena.rows_moved == 1
    assert held(arena) == [1, 2, 4]


def test_scratch_rows_are_never_read_so_an_interruption_leaves_nothing_to_undo() -> None:
    arena = Arena(2)
    fill(arena, [1, 2])
    arena.commit([0, 1])
    fill(arena, [9, 9, 9])
    fill(arena, [3])
    arena.commit([0])
    assert held(arena) == [1, 2, 3]


def test_truncate_drop_read_append() -> None:
    arena = Arena(2)
    fill(arena, list(range(8)))
    arena.commit(range(8))
    arena.drop(2, 4)
    assert held(arena) == [0, 1, 4, 5, 6, 7]
    stored = arena.read(1, 4)
    assert stored.length == 3
    arena.truncate(2)
    arena.append(stored)
    assert held(arena) == [0, 1, 1, 4, 5]
    other = Arena(2)
    other.append(stored)
    assert held(other) == [1, 4, 5]
    with pytest.raises(ValueError, match="truncate"):
        arena.truncate(9)
    with pytest.raises(ValueError, match="drop"):
        arena.drop(4, 9)


def test_the_budget_is_enforced_before_anything_is_allocated() -> None:
    arena = Arena(2, 64)
    fill(arena, [0])
    arena.commit([0])
    arena.max_bytes = arena.bytes * 2
    fill(arena, list(range(100)))
    arena.commit(range(100))
    with pytest.raises(MemoryBudgetExceeded, match="lower max_new_tokens"):
        arena.reserve(100)
    assert arena.capacity == 128
    assert held(arena) == [0, *range(100)]


def test_layers_without_rows_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="own generate"):
        layer_types(MambaConfig(num_hidden_layers=2, hidden_size=16, vocab_size=20))


def test_user_caches() -> None:
    assert user_cache_problem(None) is None
    assert user_cache_problem(DynamicCache()) is None
    assert user_cache_problem(((torch.zeros(1), torch.zeros(1)),)) == "a tuple"


@pytest.mark.parametrize("axes", [1, 3])
def test_positions_follow_pictures_and_gaps(axes: int) -> None:
    positions = Positions(axes)
    assert positions.next_position(0) == 0
    positions.append(0, np.arange(4), np.array([1, 2, 3, 4]))
    positions.append(4, np.arange(4, 10), np.full(6, 7))
    assert positions.next_position(10) == 7
    assert positions.chain(10, 2).tolist() == [[7, 8]] * axes
    tree = DraftTree((1, 2, 3), (ROOT, 0, ROOT), ("t",) * 3, (1.0,) * 3)
    rows = Rows.tree(10, 2, tree)
    assert positions.of_rows(10, rows.order).tolist() == [[7, 8, 9, 10, 9]] * axes
    positions.drop(1, 3, 10)
    assert positions.order(8).tolist() == [0, 3, 4, 5, 6, 7, 8, 9]
    assert positions.next_position(8) == 7
    order, following = positions.snapshot(8)
    positions.append(0, np.arange(8), np.arange(8))
    assert order.tolist() == [0, 3, 4, 5, 6, 7, 8, 9]
    assert following.tolist()[-1] == 7
    positions.append(8, np.arange(8, 3000), np.arange(9, 3001))
    assert positions.next_position(3000) == 3000
    assert positions.order(8).tolist() == list(range(8))


@pytest.mark.parametrize("seed", range(6))
def test_masks_against_their_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cached, pending, window = int(rng.integers(0, 20)), int(rng.integers(1, 5)), int(rng.integers(1, 9))
    tree = random_tree(rng, int(rng.integers(0, 9)), 20)
    rows = Rows.tree(cached, pending, tree)
    full = full_mask(cached, rows)
    near = sliding_mask(np.arange(cached), rows, window)
    chunk = sliding_mask(np.arange(cached), rows, window, chunked=True)
    base = list(range(cached + pending))
    for row in range(pending + len(tree)):
        if row < pending:
            seen = base[: cached + row + 1]
        else:
            seen = base + [cached + pending + node for node in tree.path(row - pending)]
        order = {column: place for place, column in enumerate(seen)}
        last = len(seen) - 1
        assert np.flatnonzero(full[row]).tolist() == seen
        assert np.flatnonzero(near[row]).tolist() == [c for c in seen if order[c] > last - window]
        assert np.flatnonzero(chunk[row]).tolist() == [c for c in seen if order[c] // window == last // window]


def test_additive_masks_repeat_for_grouped_queries() -> None:
    mask = np.array([[True, False], [True, True]])
    rows = additive(mask, 3, torch.float32, torch.device("cpu"))
    assert rows.shape == (1, 1, 6, 2)
    assert (rows[0, 0, 2:4] == torch.tensor([[0.0, float("-inf")], [0.0, 0.0]])).all()
