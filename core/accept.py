"""Acceptance: which token follows a node, and whether the tree goes on there (SYSTEM.md C5).

Two rules. *Coupled* (default): the target draws its own token with noise that depends on the position alone,
and a child is accepted iff it carries that token (EXACTNESS.md, "Coupled acceptance"). *Rejection*: the
source's ratio test on recorded draws, §3.3, with the true proposal weights and, for γ < 1, its own residual.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .noise import Purpose, ReplyNoise
from .sampling import draw_from
from .tree import DraftTree, Trial

FloatArray = npt.NDArray[np.float64]

LOG_RATIO_LIMIT = 20.0
"""Clamp of log r − log w (§10.2), applied after the zero test."""


class Choice(NamedTuple):
    """The token at a node, and the child to go on with (None: the walk ends with this token)."""

    token: int
    child: int | None


def coupled(tree: DraftTree, node: int, token: int) -> Choice:
    """Accept the child that carries the target's own ``token``, if there is one."""
    return Choice(token, tree.child(node, token))


def rejection(
    tree: DraftTree, node: int, target_probs: FloatArray, noise: ReplyNoise, index: int, gamma: float = 1.0
) -> Choice:
    """Try the recorded draws at ``node`` in order; after the last rejection draw from the residual.

    ``target_probs`` [V] is the target's processed distribution. The i-th draw x is accepted with probability
    min(1, γ · r_i(x) / w_i(x)); a rejection leaves r ← norm(r − min(w, γ r)) and takes x out of w. γ <= 1 keeps
    the law; γ > 1 does not (``lossy_gamma``): mass above the target's is then clipped from the residual. A
    recovered token that another guess at ``node`` carries goes on there: its subtree was drawn independently.
    """
    residual = target_probs
    excluded: list[int] = []
    for rank, trial in enumerate(tree.trials[node]):
        weights = _without(trial, excluded, len(target_probs))
        if weights is None:
            break
        if _accepts(residual[trial.token], weights[trial.token], gamma, noise, index, rank):
            return Choice(trial.token, tree.child(node, trial.token))
        left = np.maximum(residual - np.minimum(weights, gamma * residual), 0.0)
        if left.sum() > 0:
            residual = left / left.sum()
        excluded.append(trial.token)
    token = draw_from(residual, noise, index, Purpose.RESIDUAL)
    return Choice(token, tree.child(node, token))


def _accepts(target_prob: float, draft_prob: float, gamma: float, noise: ReplyNoise, index: int, rank: int) -> bool:
    if target_prob <= 0.0:
        return False
    log_ratio = np.log(gamma) + np.log(target_prob) - np.log(draft_prob)
    ratio = np.exp(np.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    uniform = noise.uniform(index, Purpose.ACCEPTANCE, np.zeros(1, dtype=np.int64), rank)[0]
    return bool(uniform < min(1.0, ratio))


def _without(trial: Trial, excluded: list[int], size: int) -> FloatArray | None:
    """The proposal of a draw as [size] probabilities, tokens drawn before it taken out; None if none is left."""
    weights = np.zeros(size)
    weights[trial.ids] = trial.weights
    weights[excluded] = 0.0
    total = weights.sum()
    return weights / total if total > 0 and weights[trial.token] > 0 else None
