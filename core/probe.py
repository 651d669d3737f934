"""A look before the first request: does this model's attention follow a tree mask, row by row, however long the text?

Architectures differ in what they do with 4-D masks, explicit positions and foreign caches, quantised layers may let
rows of one forward influence each other, and windows, chunks and rules of positions begin to act after some number of
tokens. So the model itself is tried on a few tokens, a small one on a few hundred; and where its configuration names
a border further on, a small copy of it is tried beyond all borders.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from transformers import PreTrainedModel

from .errors import MMSpecError, ModelError, ModelWarning, NumericalError, UnsupportedModel
from .hf_target import HFSequence, HFTarget
from .small import borders, small_config, small_model
from .tree import EMPTY, ROOT, DraftTree
from .weights import minds_training

_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3}
_LOW_PRECISION_TOLERANCE = 0.25
"""Largest difference of logits, in units of their standard deviation."""

_SMALL_WEIGHTS = 3_000_000
"""A model of at most this many weights is tried itself at every length."""

_DOUBLED_WEIGHTS = 70_000_000
"""A model of at most this many weights is copied in float64 where it has to be settled what is rounding."""

_FAR_WORK = 3_000_000_000
"""Weights times tokens up to which a model without a small copy is tried itself beyond a border: about a second."""

_BEYOND = 32
"""Tokens behind a border at which a model itself is tried."""

_SUSPICION, _MAYBE_ROUNDING = 1e-4, 0.05
"""Differences in float32 between these, in standard deviations, may be rounding in a model of large weights."""

_COPIED_WEIGHTS = 400_000_000
"""A model of at most this many weights in low precision is tried in float32 where the difference may be rounding."""

_USUAL_ROUNDING, _COARSE_ROUNDING = 0.35, 0.75
"""Differences in low precision, in standard deviations, that are rounding, and those that may be: over tens of
thousands of logits behind dozens of layers the largest is several times the usual one."""

_SHORT = (8,)
_LONG = (8, 30, 70, 300)
"""Tokens before the trees of a look."""

_TREE = (ROOT, ROOT, 0, 0, 1, 3, 3)
"""Parents: siblings at the root and behind them, three tokens deep."""

_ROOM = 12
"""Tokens of the context that trees, accepted paths and bonus tokens behind a length take."""

_CHUNK = 19
"""Rows of one prefill forward of a look."""

_PATH = (0, 3, 6)
"""The accepted nodes, each behind a sibling that is not accepted."""


class Finding(NamedTuple):
    """Where node logits differ from plain ones: by how many standard deviations, behind how many tokens."""

    gap: float
    position: int
    held_until: int
    """Tokens up to which everything agreed."""


def check_target(target: HFTarget) -> None:
    """Raise if the model cannot serve as a target; choose the attention that forwards use.

    ModelError in training mode, NumericalError for NaN weights, UnsupportedModel where node logits differ from
    those of a plain forward over the node's path, with our attention and with transformers' eager one.
    """
    model = target.model
    name = type(model).__name__
    if model.training or any(module.training and minds_training(module) for module in model.modules()):
        refuse_training(model)
    devices = set(map(str, (getattr(model, "hf_device_map", None) or {}).values()))
    if len(devices) > 1:
        raise UnsupportedModel(f"{name} is spread over {', '.join(sorted(devices))}; accepted is one device")
    problem: UnsupportedModel | None = None
    for attention in target.attention_choices:
        target.attention = attention
        problem = _problem(target)
        if problem is None:
            return
    assert problem is not None
    raise problem


def refuse_training(model: PreTrainedModel) -> NoReturn:
    """The error of a model that is, in whole or in part, in training mode."""
    part = next((name for name, module in model.named_modules() if module.training and minds_training(module)), "")
    raise ModelError(
        f"{type(model).__name__} is in training mode{f' (in {part})' if part else ''}, where dropout makes answers "
        "random; call model.eval() first"
    )


def tolerance(dtype: torch.dtype) -> float:
    """Largest difference of logits, in standard deviations, that two ways of computing them may have."""
    return _TOLERANCE.get(dtype, _LOW_PRECISION_TOLERANCE)


def _problem(target: HFTarget) -> UnsupportedModel | None:
    """Why the model cannot be served with its present attention; None if it can."""
    is_small = _is_small(target)
    found = _tried(target, _LONG if is_small else _SHORT, "")
    far = {name: at for name, at in borders(target.text_config).items() if at > 4}
    if found is not None or not far or (is_small and max(far.values()) <= _LONG[-1]):
        return found
    copied = _copy(target)
    if copied is None:
        return _tried_itself(target, far)
    return _tried(copied, (8, 30, 70), " in a small copy of its configuration")


def _tried_itself(target: HFTarget, far: Mapping[str, int]) -> UnsupportedModel | None:
    """A look beyond the borders at the model itself; ModelWarning for those that are too far off for it.

    A border at which rotary frequencies change is looked at from both sides, others are grown through.
    """
    limit = target.context_limit or max(far.values()) + _BEYOND + _ROOM
    reachable = {name: at for name, at in far.items() if at + _ROOM < limit}
    longest = _FAR_WORK // max(1, _weights(target))
    near = sorted({at + _BEYOND for at in reachable.values() if at + _BEYOND <= longest and at > _SHORT[-1]})
    near = [min(at, limit - _ROOM) for at in near]
    unseen = [f"{name}={at}" for name, at in reachable.items() if at + _BEYOND > longest]
    found = _tried(target, (*_SHORT, *near), "") if near else None
    if unseen and found is None:
        warnings.warn(
            f"{type(target.model).__name__}: its configuration names {', '.join(unseen)}, which may be where attention "
            "begins to work otherwise, and no small copy of the model can be built to look beyond. Up to there it was "
            "checked; for longer texts compare once with the model's own generate",
            ModelWarning,
            stacklevel=2,
        )
    return found


def _decided(target: HFTarget, lengths: Sequence[int]) -> Finding | None:
    """``_look``; whether a small difference is rounding is settled in a wider dtype, where that is gone."""
    if target.dtype not in _TOLERANCE:
        return _decided_in_low_precision(target, lengths)
    if target.dtype != torch.float32 or _weights(target) > _DOUBLED_WEIGHTS:
        return _look(target, lengths, tolerance(target.dtype))
    found = _look(target, lengths, _SUSPICION if _is_small(target) else tolerance(target.dtype))
    if found is None or found.gap > _MAYBE_ROUNDING:
        return found
    try:
        double = HFTarget(copy.deepcopy(target.model).double())
        double.attention = target.attention
        return _look(double, lengths, tolerance(torch.float64))
    except Exception:  # the class insists on float32 somewhere
        return found if found.gap > tolerance(torch.float32) else None


def _decided_in_low_precision(target: HFTarget, lengths: Sequence[int]) -> Finding | None:
    """``_look`` in float16 or bfloat16; in a float32 copy where a difference may be rounding and memory allows."""
    found = _look(target, lengths, _USUAL_ROUNDING)
    if found is None or found.gap > _COARSE_ROUNDING:
        return found
    if _weights(target) > _COPIED_WEIGHTS:
        return _look(target, lengths, _COARSE_ROUNDING)
    try:
        single = HFTarget(copy.deepcopy(target.model).float())
        single.attention = target.attention
        return _look(single, lengths, _MAYBE_ROUNDING)
    except Exception:  # quantised layers, say, have no float32
        return found


def _is_small(target: HFTarget) -> bool:
    return _weights(target) <= _SMALL_WEIGHTS


def _weights(target: HFTarget) -> int:
    return sum(parameter.numel() for parameter in target.model.parameters())


def _copy(target: HFTarget) -> HFTarget | None:
    """A small copy of a text model, with near borders; None where the class does not build one."""
    config = target.model.config
    for wanted in (config, target.text_config):
        try:
            model = small_model(type(target.model), small_config(wanted))
            model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
            copied = HFTarget(model)
        except Exception:  # any class may ask for more than its configuration says
            continue
        copied.attention = target.attention
        return copied
    return None


def _tried(target: HFTarget, lengths: Sequence[int], what: str) -> UnsupportedModel | None:
    name = type(target.model).__name__
    try:
        found = _decided(target, lengths)
    except MMSpecError as error:
        if isinstance(error, UnsupportedModel):
            return error
        raise
    except Exception as error:  # whatever a model's own code raises
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        return UnsupportedModel(
            f"{name} does not run with an explicit mask, positions and a cache of our own ({text}); use the model's "
            "own generate"
        )
    if found is None:
        return None
    between = [
        f"{field}={at}"
        for field, at in borders(target.text_config).items()
        if found.held_until <= at + 1 and at <= found.position and found.held_until
    ]
    beyond = f", beyond {' and '.join(between)}" if between else ""
    why = _quantised(target.model)
    return UnsupportedModel(
        f"{name}: the logits of draft nodes{what} differ from those of a plain forward by {found.gap:.3g} standard "
        f"deviations at position {found.position}{beyond}, so drafts would change its answers{why}; use "
        "the model's own generate"
    )


def _quantised(model: PreTrainedModel) -> str:
    names = {type(module).__name__ for module in model.modules() if ".quantized.dynamic" in type(module).__module__}
    if not names:
        return ""
    return (
        f" (its dynamically quantised layers, {', '.join(sorted(names))}, scale activations over all rows of a forward)"
    )


def _look(target: HFTarget, lengths: Sequence[int], allowed: float) -> Finding | None:
    """Trees behind more and more tokens; the first difference beyond rounding."""
    usable = [t for t in range(3, min(target.vocab_size, 400)) if t not in target.placeholder_ids]
    rng = np.random.default_rng(0)
    limit, held = target.context_limit, 0
    if limit is not None:  # where the context is very short, as much as it holds
        lengths = [one for one in lengths if one + _ROOM <= limit] or [max(1, limit - _ROOM)]
    for group in _groups(target, lengths):
        sequence, tokens = target.open(64), list[int]()
        sequence.arena.max_bytes = None  # a budget is for requests
        for length in group:
            if limit is not None and length + _ROOM > limit and length != lengths[0]:
                break
            tokens += rng.choice(usable, size=length - len(tokens)).tolist()
            if length == group[0]:
                sequence.begin(length)
            for turn in range(2 if len(group) > 1 or target.length_rule is None else 1):
                tree = _tree(rng.choice(usable, size=len(_TREE), replace=False).tolist())
                finding = _compare(target, sequence, tokens, tree, turn == 0, allowed)
                if finding is not None:
                    return finding._replace(held_until=held)
                held = max(held, len(tokens) - 1)
                tokens += [*tree.path_tokens(_PATH[-1]), int(rng.choice(usable))]
    return None


def _groups(target: HFTarget, lengths: Sequence[int]) -> list[list[int]]:
    """Lengths that one sequence can grow through: each side of a border of rotary frequencies for itself."""
    rule = target.length_rule
    if rule is None:
        return [list(lengths)]
    short = [length for length in lengths if length + 12 <= rule.border]
    long = [rule.border + 2, rule.border + 40] if rule.border <= lengths[-1] else []
    return [[one] for one in (*short, *long)] if rule.grows else [part for part in (short, long) if part]


def _tree(tokens: Sequence[int]) -> DraftTree:
    return DraftTree(tuple(tokens), _TREE, ("probe",) * len(_TREE), (1.0,) * len(_TREE))


def _compare(
    target: HFTarget, sequence: HFSequence, tokens: list[int], tree: DraftTree, first: bool, allowed: float
) -> Finding | None:
    """Verify ``tree`` behind ``tokens`` and commit ``_PATH``; where a node's logits are not those of its path.

    Every leaf is looked at the ``first`` time, the accepted one after its rows were moved into place.
    """
    while (rest := len(tokens) - sequence.length) > (together := min(_CHUNK, sequence.span(rest))):
        sequence.prefill(tokens[sequence.length : sequence.length + together])
    pending = tokens[sequence.length :]
    if sequence.draft_room(len(pending)) < tree.depth:
        tree = EMPTY
    result = sequence.verify(pending, tree)
    if not any(layer.is_initialized for layer in sequence.arena.layers):
        raise UnsupportedModel(
            f"{type(target.model).__name__} writes no keys and values into the cache it is given (it keeps a recurrent "
            "state, or reads the whole text each time), so nothing can be rolled back; use the model's own generate"
        )
    sequence.commit(len(pending), _PATH if len(tree) else ())
    for leaf in (tree.leaves if first else ()) or (_PATH[-1] if len(tree) else ROOT,):
        path = [] if leaf == ROOT else tree.path(leaf)
        plain = target.plain([*tokens, *(tree.tokens[node] for node in path)]).float()
        if not bool(torch.isfinite(plain[-1]).all()):
            raise NumericalError(
                "the model's logits are NaN or infinite on a plain forward; its weights are damaged or overflow "
                "in this dtype (float16 does in some models: try bfloat16 or float32)"
            )
        for depth, node in enumerate((ROOT, *path)):
            expected = plain[len(tokens) - 1 + depth]
            gap = (result.row(node)[0] - expected).abs().max() / expected.std().clamp_min(1e-6)
            if not float(gap) <= allowed:
                return Finding(float(gap), len(tokens) - 1 + depth, 0)
    return None
