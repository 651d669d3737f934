"""Draft trees and their static forms (SYSTEM.md C3).

A draft tree hangs from the last pending token (the *root*, written ``ROOT``); its nodes are guesses of what
follows. Nodes are kept in topological order, siblings carry different tokens, so every common prefix is held,
and later computed, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

ROOT = -1
"""Parent of the first nodes: the last pending token."""

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


class Trial(NamedTuple):
    """One draw of the rejection mode: ``token`` was drawn from the distribution (``ids``, ``weights``).

    ``weights`` [k] sum to one over the first draw's support; later draws at the same parent exclude the tokens
    drawn before them, which the acceptance rule accounts for (EXACTNESS.md, "Rejection mode").
    """

    token: int
    ids: IntArray
    weights: npt.NDArray[np.float64]


@dataclass(frozen=True)
class DraftTree:
    """A frozen tree of n guesses.

    ``tokens[i]``, ``parents[i]`` (an earlier node or ``ROOT``), ``sources[i]`` (who guessed) and ``scores[i]``
    (estimated chance that the whole path to i is accepted, so non-increasing along a path).
    ``trials[parent]`` is the ordered list of draws at that parent, for the rejection mode only.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    trials: Mapping[int, tuple[Trial, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {len(self.tokens), len(self.parents), len(self.sources), len(self.scores)}
        if len(sizes) != 1:
            raise ValueError(f"tokens, parents, sources and scores differ in length: {sorted(sizes)}")
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; accepted are {ROOT} (root) to {node - 1}")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int], source: str, scores: Sequence[float] | None = None) -> DraftTree:
        """A tree of one branch."""
        n = len(tokens)
        return cls(
            tuple(tokens),
            tuple(range(-1, n - 1)),
            (source,) * n,
            tuple(scores) if scores is not None else (1.0,) * n,
        )

    @cached_property
    def _children(self) -> dict[tuple[int, int], int]:
        return {(parent, token): node for node, (parent, token) in enumerate(zip(self.parents, self.tokens))}

    def child(self, node: int, token: int) -> int | None:
        """The child of ``node`` (or of ``ROOT``) that carries ``token``, if there is one."""
        return self._children.get((node, token))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """The longest path, in nodes."""
        return max(self.depths, default=0)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children, in order."""
        inner = set(self.parents)
        return tuple(node for node in range(len(self)) if node not in inner)

    @cached_property
    def is_chain(self) -> bool:
        """Whether the tree has one branch, laid out in order."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child to ``node``, both included."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def path_tokens(self, node: int) -> list[int]:
        """Tokens along ``path(node)``."""
        return [self.tokens[i] for i in self.path(node)]

    @cached_property
    def ancestor_mask(self) -> BoolArray:
        """[n, n], True where column j is an ancestor of row i or i itself: what node i may attend to."""
        n = len(self)
        mask = np.zeros((n, n), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                mask[node] = mask[parent]
            mask[node, node] = True
        mask.flags.writeable = False  # computed once; drafters see the tree too
        return mask

    def trim(self, budget: int) -> DraftTree:
        """At most ``budget`` nodes, those of the highest score, together with their ancestors.

        Scores do not increase along a path, so the best nodes already form a tree.
        """
        if len(self) <= budget:
            return self
        order = sorted(range(len(self)), key=lambda node: (-self.scores[node], node))
        return self.select(sorted(order[: max(budget, 0)]))

    def select(self, keep: Sequence[int]) -> DraftTree:
        """The tree of the nodes in ``keep`` (ascending); nodes whose ancestors are missing are left out.

        A parent keeps all its trials, also those whose nodes are cut: which nodes are cut depends on what was
        drawn, so leaving out a draw, or a parent's draws for the loss of one, would change the proposal. A draw
        that is accepted without a node ends the walk with its token.
        """
        new_index = {ROOT: ROOT}
        kept: list[int] = []
        for node in keep:
            if self.parents[node] in new_index:
                new_index[node] = len(kept)
                kept.append(node)
        trials = {new_index[parent]: drawn for parent, drawn in self.trials.items() if parent in new_index}
        return DraftTree(
            tuple(self.tokens[i] for i in kept),
            tuple(new_index[self.parents[i]] for i in kept),
            tuple(self.sources[i] for i in kept),
            tuple(self.scores[i] for i in kept),
            trials,
        )

    def positions(self, first: int) -> IntArray:
        """[n] positions of the nodes when the first token after the root has position ``first``."""
        return np.asarray(self.depths, dtype=np.int64) + (first - 1)

    def path_batched(self, pad_token: int, first: int) -> PathBatch:
        """The tree as rows of whole paths, for engines without dynamic shapes (§3.2, §9.1)."""
        return PathBatch.of(self, pad_token, first)

    def varlen(self) -> VarlenBranches:
        """The branches laid end to end, for attention kernels that take cumulative lengths."""
        paths = [self.path(leaf) for leaf in self.leaves]
        lengths = np.cumsum([0, *map(len, paths)], dtype=np.int64)
        nodes = np.asarray([node for path in paths for node in path], dtype=np.int64)
        return VarlenBranches(nodes, np.asarray(self.tokens, dtype=np.int64)[nodes], lengths)


@dataclass(frozen=True)
class PathBatch:
    """Path-batched form: row i is the path to node i, padded on the right to the tree's depth.

    ``tree_input_ids`` [nodes, depth], ``tree_attention_mask`` [nodes, depth] (1 = real),
    ``tree_position_ids`` [nodes, depth] and ``verify_indices`` [nodes]: the column of each row's own node.
    """

    tree_input_ids: IntArray
    tree_attention_mask: IntArray
    tree_position_ids: IntArray
    verify_indices: IntArray

    @classmethod
    def of(cls, tree: DraftTree, pad_token: int, first: int) -> PathBatch:
        n, depth = len(tree), tree.depth
        ids = np.full((n, depth), pad_token, dtype=np.int64)
        mask = np.zeros((n, depth), dtype=np.int64)
        for node in range(n):
            tokens = tree.path_tokens(node)
            ids[node, : len(tokens)] = tokens
            mask[node, : len(tokens)] = 1
        positions = np.broadcast_to(np.arange(first, first + depth, dtype=np.int64), (n, depth)).copy()
        return cls(ids, mask, positions, np.asarray(tree.depths, dtype=np.int64) - 1)


class VarlenBranches(NamedTuple):
    """Branches end to end: ``nodes`` and ``tokens`` [sum of lengths], ``cu_seqlens`` [branches + 1]."""

    nodes: IntArray
    tokens: IntArray
    cu_seqlens: IntArray


class TreeBuilder:
    """Collects nodes; merges equal siblings, keeping the higher score and the first source."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._sources: list[str] = []
        self._scores: list[float] = []
        self._children: dict[tuple[int, int], int] = {}
        self._trials: dict[int, tuple[Trial, ...]] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, parent: int, token: int, source: str, score: float) -> int:
        """The node of ``token`` under ``parent``, made if new; its score is capped by its parent's."""
        if parent != ROOT:
            score = min(score, self._scores[parent])
        node = self._children.get((parent, token))
        if node is None:
            node = len(self._tokens)
            self._tokens.append(token)
            self._parents.append(parent)
            self._sources.append(source)
            self._scores.append(score)
            self._children[parent, token] = node
        elif score > self._scores[node]:
            self._scores[node] = score
        return node

    def add_chain(self, parent: int, tokens: Iterable[int], source: str, score: float, decay: float = 1.0) -> int:
        """A run of tokens below ``parent``; returns its last node (``parent`` when empty)."""
        for token in tokens:
            parent = self.add(parent, token, source, score)
            score *= decay
        return parent

    def add_tree(self, tree: DraftTree) -> None:
        """Every node of ``tree``; its trials are kept where this builder has none at that parent yet."""
        mapped = {ROOT: ROOT}
        fresh = {ROOT: len(self) == 0}
        for node in range(len(tree)):
            parent = mapped[tree.parents[node]]
            before = len(self)
            mapped[node] = self.add(parent, tree.tokens[node], tree.sources[node], tree.scores[node])
            fresh[node] = len(self) > before
        for parent, drawn in tree.trials.items():
            if fresh[parent]:
                self._trials[mapped[parent]] = drawn

    def set_trials(self, parent: int, trials: tuple[Trial, ...]) -> None:
        """The ordered draws at ``parent`` (rejection mode)."""
        self._trials[parent] = trials

    def score(self, node: int) -> float:
        """Score of ``node``; the root's is one."""
        return 1.0 if node == ROOT else self._scores[node]

    def build(self) -> DraftTree:
        """The frozen tree."""
        return DraftTree(
            tuple(self._tokens),
            tuple(self._parents),
            tuple(self._sources),
            tuple(self._scores),
            dict(self._trials),
        )


def merge(trees: Iterable[DraftTree], budget: int) -> DraftTree:
    """The union of several drafters' trees, trimmed to ``budget`` nodes by score.

    Trials survive only where exactly one tree speaks below that parent: children added by another drafter
    would not have been drawn from the recorded distribution, though they do no harm under the coupled rule.
    """
    builder = TreeBuilder()
    for tree in trees:
        builder.add_tree(tree)
    return builder.build().trim(budget)


EMPTY = DraftTree()
"""The tree of no guesses: a plain step."""
