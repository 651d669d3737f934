"""Proof 1: logits of every node equal those of a plain forward over its path."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import ARCHITECTURES, VOCAB, tiny_model

from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.tree import ROOT, DraftTree


def random_tree(rng: np.random.Generator, nodes: int) -> DraftTree:
    parents: list[int] = []
    tokens: list[int] = []
    used: set[tuple[int, int]] = set()
    while len(tokens) < nodes:
        parent = int(rng.integers(-1, len(tokens)))
        token = int(rng.integers(3, VOCAB - 4))
        if (parent, token) not in used:
            used.add((parent, token))
            parents.append(parent)
            tokens.append(token)
    return DraftTree(tuple(tokens), tuple(parents), ("test",) * nodes, (1.0,) * nodes)


def plain_logits(target: HFTarget, tokens: list[int]) -> torch.Tensor:
    """The last row of a plain forward of transformers, without cache or mask of ours."""
    with torch.inference_mode():
        logits: torch.Tensor = target.model(input_ids=torch.tensor([tokens]), use_cache=False).logits
    return logits[0, -1]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(3))
def test_node_logits_equal_plain_forwards_also_after_compaction(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = HFTarget(tiny_model(name, seed))
    sequence = target.open(64)
    committed = rng.integers(3, VOCAB - 4, size=41).tolist()
    sequence.prefill(committed[:20])
    sequence.prefill(committed[20:38])
    pending = committed[38:]
    for _ in range(3):
        tree = random_tree(rng, 9)
        result = sequence.verify(pending, tree)
        for node in (ROOT, *range(len(tree))):
            path = [] if node == ROOT else tree.path_tokens(node)
            expected = plain_logits(target, [*committed, *path])
            torch.testing.assert_close(result.row(node)[0], expected, atol=1e-4, rtol=1e-4)
        leaf = tree.leaves[int(rng.integers(len(tree.leaves)))]
        sequence.commit(len(pending), tree.path(leaf))
        sequence.arena.check_integrity()
        committed += tree.path_tokens(leaf)
        pending = rng.integers(3, VOCAB - 4, size=int(rng.integers(1, 4))).tolist()
        committed += pending


def test_compaction_moves_the_accepted_path_only() -> None:
    target = HFTarget(tiny_model("llama"))
    sequence = target.open(64)
    sequence.prefill([5, 6, 7])
    tree = DraftTree((10, 11, 12, 13), (ROOT, 0, ROOT, 2), ("t",) * 4, (1.0,) * 4)
    sequence.verify([8], tree)
    sequence.commit(1, [0, 1])
    assert sequence.arena.rows_moved == 0
    sequence.verify([9], tree)
    sequence.commit(1, [2, 3])
    assert sequence.arena.rows_moved == 2


def test_nothing_stays_on_the_model() -> None:
    model = tiny_model("llama")
    before = (model.config._attn_implementation, set(model.__dict__), len(model._forward_hooks))
    sequence = HFTarget(model).open(16)
    sequence.verify([4, 5], DraftTree.chain([6, 7], "t"))
    assert (model.config._attn_implementation, set(model.__dict__), len(model._forward_hooks)) == before
