"""Making a drafter's tree legal: cut what may not follow, add what has to (order of a step: cut, then extend)."""

from __future__ import annotations

import math
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from .constraint import Constraint
from .errors import ConstraintError
from .tree import ROOT, DraftTree, TreeBuilder, Trial

FORCED = "forced"
FORCED_LIMIT = 32


def checked(tree: Any, vocab_size: int) -> DraftTree:
    """A copy of what a drafter returned, if it is a tree of ids below ``vocab_size`` with finite scores.

    A copy, so that nothing the drafter keeps hold of can change what is verified. TypeError or ValueError otherwise:
    drafters may be anybody's code, and a wrong id would fail in the target's embedding, not in the drafter.
    """
    if not isinstance(tree, DraftTree):
        raise TypeError(f"propose returned a {type(tree).__name__}; accepted is a DraftTree")
    for token in tree.tokens:
        # The usual type first: a look at a protocol takes longer than all else here.
        if not (type(token) is int or isinstance(token, SupportsIndex)) or not 0 <= int(token) < vocab_size:
            raise ValueError(f"propose returned the token {token!r}; accepted are ids from 0 to {vocab_size - 1}")
    for score in tree.scores:
        if math.isnan(score):
            raise ValueError("propose returned a score that is NaN; accepted are probabilities")
    trials = {
        node: tuple(Trial(int(one.token), _fixed(one.ids), _fixed(one.weights)) for one in draws)
        for node, draws in tree.trials.items()
    }
    return DraftTree(
        tuple(map(int, tree.tokens)),
        tuple(map(int, tree.parents)),
        tuple(map(str, tree.sources)),
        tuple(map(float, tree.scores)),
        trials,
    )


def _fixed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy that cannot be written to."""
    copied = np.array(values)
    copied.flags.writeable = False
    return copied


def cut_tokens(tree: DraftTree, banned: frozenset[int]) -> DraftTree:
    """Without nodes that carry a banned id (picture placeholders), and what hangs from them."""
    if not banned or banned.isdisjoint(tree.tokens):
        return tree
    return tree.select([node for node in range(len(tree)) if tree.tokens[node] not in banned])


def cut_illegal(tree: DraftTree, constraint: Constraint) -> DraftTree:
    """Without nodes the constraint's mask forbids at their place; the mask decides, not ``advance``."""
    cursors: dict[int, Constraint] = {ROOT: constraint}
    masks = {ROOT: constraint.mask()}
    keep = []
    inner = set(tree.parents)
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens)):
        if parent not in masks:
            continue
        mask = masks[parent]
        if mask is not None and not mask.allows(token):
            continue
        if cursors[parent].veto(token) is not None:
            continue
        keep.append(node)
        if node in inner:
            cursor = cursors[parent].fork()
            try:
                cursor.advance(token)
            except ConstraintError:  # nothing follows an end of sequence
                continue
            cursors[node] = cursor
            masks[node] = cursor.mask()
    return tree.select(keep)


def extend_forced(tree: DraftTree, constraint: Constraint, budget: int) -> DraftTree:
    """With the forced run behind every leaf, best leaves first, within ``budget`` nodes."""
    builder = TreeBuilder()
    builder.add_tree(tree)
    for leaf in sorted(tree.leaves, key=lambda node: -tree.scores[node]):
        room = budget - len(builder)
        if room <= 0:
            break
        cursor = constraint.fork()
        try:
            for token in tree.path_tokens(leaf):
                cursor.advance(token)
        except ConstraintError:
            continue
        run = cursor.forced_run(min(room, FORCED_LIMIT))
        builder.add_chain(leaf, run, FORCED, tree.scores[leaf])
    return builder.build()
