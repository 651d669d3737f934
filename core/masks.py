"""Attention masks of a forward over a pending chain and a draft tree (SYSTEM.md C1, §3.2).

Rows attend by *order* (the index a token has in its sequence), not by rotary position: windows of sliding
layers and causality are defined on order, and M-RoPE positions of a picture repeat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from .tree import DraftTree

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """The new rows of a forward: their ``order`` [q], what they see of each other ``visible`` [q, q]."""

    order: IntArray
    visible: BoolArray

    @classmethod
    def chain(cls, first: int, length: int) -> Rows:
        """``length`` consecutive tokens."""
        return cls(np.arange(first, first + length, dtype=np.int64), np.tri(length, dtype=np.bool_))

    @classmethod
    def tree(cls, first: int, pending: int, tree: DraftTree) -> Rows:
        """``pending`` consecutive tokens and the draft tree behind the last of them."""
        n = len(tree)
        if tree.is_chain:
            return cls.chain(first, pending + n)
        visible = np.zeros((pending + n, pending + n), dtype=np.bool_)
        visible[:pending, :pending] = np.tri(pending, dtype=np.bool_)
        visible[pending:, :pending] = True
        visible[pending:, pending:] = tree.ancestor_mask
        order = np.concatenate(
            [np.arange(first, first + pending, dtype=np.int64), tree.positions(first + pending)],
        )
        return cls(order, visible)

    def with_unseen(self) -> Rows:
        """One more row, which sees what is cached and itself and is seen by none."""
        n = len(self.order)
        visible = np.zeros((n + 1, n + 1), dtype=np.bool_)
        visible[:n, :n] = self.visible
        visible[n, n] = True
        return Rows(np.append(self.order, self.order[-1] + 1), visible)

    def with_blocks(self, block_ids: IntArray) -> Rows:
        """The first rows, as many as ``block_ids``, see each other in both directions within a block (id >= 0).

        Within a window only: as in Gemma3, a sliding layer cuts what lies too far back in the block.
        """
        length = len(block_ids)
        same = (block_ids[:, None] == block_ids[None, :]) & (block_ids >= 0)[:, None]
        visible = self.visible.copy()
        visible[:length, :length] |= same
        return Rows(self.order, visible)


def full_mask(cached: int, rows: Rows) -> BoolArray:
    """[q, cached + q]: every committed row is seen, the new ones as their tree says."""
    q = len(rows.order)
    mask = np.ones((q, cached + q), dtype=np.bool_)
    mask[:, cached:] = rows.visible
    return mask


def sliding_mask(cached_order: IntArray, rows: Rows, window: int, chunked: bool = False) -> BoolArray:
    """``full_mask`` cut to a window of ``window`` tokens (or to the current chunk of that size)."""
    mask = full_mask(len(cached_order), rows)
    order = np.concatenate([cached_order, rows.order])
    if chunked:
        near = (order // window)[None, :] == (rows.order // window)[:, None]
    else:
        near = order[None, :] > (rows.order - window)[:, None]
    return np.asarray(mask & near)


def additive(mask: BoolArray, groups: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[1, 1, groups * q, k] additive mask: 0 where a row may attend, -inf elsewhere.

    ``groups`` copies lie one after another, as grouped queries do in ``attention.grouped_attention``; additive
    because eager attention adds whatever it is given, and SDPA takes both.
    """
    rows = torch.zeros(mask.shape, dtype=dtype)
    rows.masked_fill_(torch.from_numpy(~mask), float("-inf"))
    return rows.repeat(groups, 1)[None, None].to(device)
