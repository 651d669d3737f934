"""Draft trees: their forms, cuts and unions."""

from __future__ import annotations

import numpy as np
import pytest
from fake import Table, random_tree
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec_agent.core.tree import EMPTY, ROOT, DraftTree, TreeBuilder, Trial, merge

TABLE = Table.random(3, 7)
PROMPT = [1, 2]
trees = st.builds(
    lambda seed, n: random_tree(np.random.default_rng(seed), n, 7), st.integers(0, 9999), st.integers(0, 14)
)


def verdict(tree: DraftTree, answers: dict[int, int]) -> list[int]:
    """The accepted path when the target's token at each node is ``answers[node]``."""
    path: list[int] = []
    child = tree.child(ROOT, answers[ROOT])
    while child is not None:
        path.append(child)
        child = tree.child(child, answers[child])
    return path


@settings(max_examples=150, deadline=None, derandomize=True)
@given(tree=trees)
def test_flat_path_batched_and_varlen_forms_give_the_same_verdict(tree: DraftTree) -> None:
    first = len(PROMPT)
    flat = {ROOT: int(TABLE.row(PROMPT).argmax())}
    for node in range(len(tree)):
        seen = [tree.tokens[j] for j in np.flatnonzero(tree.ancestor_mask[node])]
        flat[node] = int(TABLE.row(PROMPT + seen).argmax())
        assert tree.positions(first)[node] == first + len(seen) - 1
    batch = tree.path_batched(pad_token=0, first=first)
    batched = {ROOT: flat[ROOT]}
    for node in range(len(tree)):
        real = batch.tree_attention_mask[node].sum()
        assert real == batch.verify_indices[node] + 1
        ids = batch.tree_input_ids[node, :real].tolist()
        assert batch.tree_position_ids[node, batch.verify_indices[node]] == tree.positions(first)[node]
        batched[node] = int(TABLE.row(PROMPT + ids).argmax())
    branches = tree.varlen()
    varlen = {ROOT: flat[ROOT]}
    for start, end in zip(branches.cu_seqlens, branches.cu_seqlens[1:]):
        for at in range(start, end):
            varlen[int(branches.nodes[at])] = int(TABLE.row(PROMPT + branches.tokens[start : at + 1].tolist()).argmax())
    assert flat == batched == varlen
    assert verdict(tree, flat) == verdict(tree, batched) == verdict(tree, varlen)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(tree=trees, budget=st.integers(-1, 16))
def test_trim_keeps_the_best_nodes_with_their_ancestors(tree: DraftTree, budget: int) -> None:
    cut = tree.trim(budget)
    assert len(cut) == min(len(tree), max(budget, 0))
    kept = {tuple(cut.path_tokens(node)) for node in range(len(cut))}
    assert all(path[:-1] in kept or len(path) == 1 for path in kept)
    assert sorted(cut.scores, reverse=True) == sorted(tree.scores, reverse=True)[: len(cut)]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(several=st.lists(trees, min_size=1, max_size=4), budget=st.integers(0, 40))
def test_merge_is_the_union_of_paths_without_duplicates(several: list[DraftTree], budget: int) -> None:
    union = {tuple(t.path_tokens(n)) for t in several for n in range(len(t))}
    whole = merge(several, 1000)
    assert {tuple(whole.path_tokens(n)) for n in range(len(whole))} == union
    assert len(whole) == len(union)
    assert all(whole.scores[n] <= (1.0 if p == ROOT else whole.scores[p]) for n, p in enumerate(whole.parents))
    assert len(merge(several, budget)) == min(budget, len(union))


def test_merge_keeps_the_first_source_and_the_higher_score() -> None:
    tree = merge([DraftTree.chain([1, 2], "a", [0.5, 0.2]), DraftTree.chain([1, 3], "b", [0.7, 0.6])], 9)
    assert tree.tokens == (1, 2, 3)
    assert tree.sources == ("a", "a", "b")
    assert tree.scores == (0.7, 0.2, 0.6)


def test_select_leaves_out_orphans() -> None:
    tree = DraftTree((1, 2, 3, 4), (ROOT, 0, 1, ROOT), ("t",) * 4, (1.0,) * 4)
    cut = tree.select([0, 2, 3])
    assert cut.tokens == (1, 4)
    assert cut.parents == (ROOT, ROOT)
    assert tree.select([]) == EMPTY


def _trial(token: int) -> Trial:
    return Trial(token, np.arange(4), np.full(4, 0.25))


def test_cuts_keep_every_draw_of_the_parents_that_stay() -> None:
    """A parent whose draws were dropped for what they were would no longer follow its proposal."""
    drawn = {ROOT: (_trial(1), _trial(3)), 0: (_trial(2),), 1: (_trial(0),)}
    tree = DraftTree((1, 3, 2, 0), (ROOT, ROOT, 0, 1), ("t",) * 4, (0.9, 0.3, 0.5, 0.1), drawn)
    cut = tree.trim(2)
    assert cut.tokens == (1, 2)
    assert [t.token for t in cut.trials[ROOT]] == [1, 3]
    assert [t.token for t in cut.trials[0]] == [2]
    assert set(cut.trials) == {ROOT, 0}
    assert [t.token for t in tree.trim(0).trials[ROOT]] == [1, 3]


def test_in_a_union_only_one_drafter_has_draws_at_a_parent() -> None:
    one = DraftTree((1, 2), (ROOT, 0), ("a",) * 2, (0.9, 0.5), {ROOT: (_trial(1),), 0: (_trial(2),)})
    two = DraftTree((1, 3), (ROOT, ROOT), ("b",) * 2, (0.8, 0.7), {ROOT: (_trial(1), _trial(3))})
    both = merge([one, two], 9)
    assert [t.token for t in both.trials[ROOT]] == [1]
    assert [t.token for t in both.trials[0]] == [2]
    behind = merge([DraftTree.chain([3], "plain"), two], 9)
    assert ROOT not in behind.trials


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="length"):
        DraftTree((1,), (), ("t",), (1.0,))
    with pytest.raises(ValueError, match="parent"):
        DraftTree((1, 2), (ROOT, 1), ("t",) * 2, (1.0,) * 2)


def test_small_facts() -> None:
    tree = DraftTree((1, 2, 3), (ROOT, 0, 0), ("t",) * 3, (0.9, 0.5, 0.4))
    assert not tree.is_chain
    assert DraftTree.chain([1, 2], "t").is_chain
    assert EMPTY.is_chain
    assert (tree.depth, tree.depths, tree.leaves, EMPTY.depth) == (2, (1, 2, 2), (1, 2), 0)
    assert tree.child(ROOT, 1) == 0
    assert tree.child(0, 9) is None
    builder = TreeBuilder()
    assert builder.add_chain(ROOT, [], "t", 1.0) == ROOT
    last = builder.add_chain(ROOT, [5, 6], "t", 1.0, decay=0.5)
    assert builder.score(last) == 0.5
    assert builder.score(ROOT) == 1.0
