"""Building a count store: smoothed n-gram probabilities of a corpus, pruned to a size in bytes.

Smoothing is modified Kneser-Ney (Chen and Goodman, "An empirical study of smoothing techniques for
language modeling", Computer Speech and Language 1999, section 3): what was seen once or twice is
discounted by what such counts turn out to be worth, and shorter contexts count in how many longer
ones a token followed. Trees grow by these probabilities, so they have to be true: with Witten-Bell
smoothing a guess of 0.72 was right half of the time. Pruning keeps what changes the prediction most:
an entry's count times the gain in log probability over the shorter context (Seymore and Rosenfeld,
"Scalable backoff language models", ICSLP 1996).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..drafters.counts import BLOCK, FORMAT, MAX_ORDER, CountStore, quantised
from .dialogues import Dialogue

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

MAX_LISTED = 40
"""Continuations kept of one context, at most."""

CONTEXT_BYTES = 6 + 4 / BLOCK
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@dataclass(frozen=True)
class Corpus:
    """Tokens [n] of all dialogues end to end; ``answers`` [n] marks what is counted, ``begins`` [n]
    the index at which each token's own dialogue begins."""

    tokens: IntArray
    answers: BoolArray
    begins: IntArray

    @classmethod
    def of(cls, dialogues: Iterable[Dialogue]) -> Corpus:
        """The corpus of ``dialogues``; only answers are counted, prompts are context."""
        tokens: list[npt.NDArray[np.int64]] = []
        answers: list[BoolArray] = []
        begins: list[IntArray] = []
        total = 0
        for dialogue in dialogues:
            length = len(dialogue.prompt) + len(dialogue.answer)
            tokens.append(np.asarray((*dialogue.prompt, *dialogue.answer), np.int64))
            answers.append(np.arange(length) >= len(dialogue.prompt))
            begins.append(np.full(length, total, np.int64))
            total += length
        if not tokens:
            empty = np.empty(0, np.int64)
            return cls(empty, empty.astype(bool), empty)
        return cls(np.concatenate(tokens), np.concatenate(answers), np.concatenate(begins))


@dataclass
class _Order:
    """Counted pairs (context, next token) of one context length, sorted by context, then token."""

    contexts: UInt64Array
    tokens: IntArray
    counts: IntArray
    probs: FloatArray
    shorter: UInt64Array
    lower: FloatArray


def build_store(
    corpus: Corpus,
    max_bytes: int,
    about: Mapping[str, str],
    vocab_size: int,
    order: int = MAX_ORDER,
) -> CountStore:
    """The store of ``corpus`` in at most ``max_bytes``."""
    orders = _count(corpus, order, vocab_size)
    gains = np.concatenate([_gain(one) for one in orders])
    threshold = _threshold(orders, gains, max_bytes, 2 if vocab_size <= 1 << 16 else 4)
    kept = [_prune(one, threshold) for one in orders]
    return _pack(kept, {**about, "format": FORMAT, "tokens": str(int(corpus.answers.sum()))}, vocab_size)


def _count(corpus: Corpus, order: int, vocab_size: int) -> list[_Order]:
    """All pairs of every order with their smoothed probabilities, shortest contexts first."""
    places = np.flatnonzero(corpus.answers)
    keys = np.zeros(len(places), np.uint64)
    following = corpus.tokens[places]
    orders = []
    for length in range(1, order + 1):
        inside = places - length >= corpus.begins[places]
        places, keys, following = places[inside], keys[inside], following[inside]
        before = keys
        keys = _extended(keys, corpus.tokens[places - length])
        orders.append(_order(keys, following, before))
    for one, longer in itertools.pairwise(orders):
        _count_longer_contexts(one, longer)
    frequency = np.bincount(orders[0].tokens, minlength=vocab_size) + 0.5
    orders[0].lower = (frequency / frequency.sum())[orders[0].tokens]
    _smooth(orders[0])
    for one, shorter in zip(orders[1:], orders):
        pairs = _extended(shorter.contexts, shorter.tokens)
        by = np.argsort(pairs)
        wanted = _extended(one.shorter, one.tokens)
        one.lower = shorter.probs[by[np.searchsorted(pairs, wanted, sorter=by)]]
        _smooth(one)
    return orders


def _count_longer_contexts(one: _Order, longer: _Order) -> None:
    """Kneser and Ney's counts: in how many longer contexts a token followed, where there are any."""
    pairs = _extended(one.contexts, one.tokens)
    by = np.argsort(pairs)
    found = by[np.searchsorted(pairs, _extended(longer.shorter, longer.tokens), sorter=by)]
    # A text's first tokens have no longer context, but were seen.
    one.counts = np.maximum(np.bincount(found, minlength=len(pairs)), 1)


def _extended(keys: UInt64Array, tokens: IntArray) -> UInt64Array:
    """``counts.extend_hash`` over arrays."""
    with np.errstate(over="ignore"):
        value = (keys ^ (tokens.astype(np.uint64) + np.uint64(1))) * _MULTIPLIER
    return np.asarray(value ^ (value >> _SHIFT))


def _order(keys: UInt64Array, following: IntArray, before: UInt64Array) -> _Order:
    by = np.lexsort((following, keys))
    keys, following, before = keys[by], following[by], before[by]
    new = np.ones(len(keys), bool)
    new[1:] = (keys[1:] != keys[:-1]) | (following[1:] != following[:-1])
    first = np.flatnonzero(new)
    counts = np.diff(np.append(first, len(keys)))
    empty = np.empty(len(first))
    return _Order(keys[first], following[first], counts, empty, before[first], empty)


def _smooth(one: _Order) -> None:
    """Discounted probabilities, interpolated with those of the shorter context."""
    discounts = _discounts(one.counts)
    discount = discounts[np.minimum(one.counts, 3)]
    _, first, inverse = np.unique(one.contexts, return_index=True, return_inverse=True)
    total = np.add.reduceat(one.counts, first)[inverse]
    left = np.add.reduceat(discount, first)[inverse]
    one.probs = (one.counts - discount + left * one.lower) / total


def _discounts(counts: IntArray) -> FloatArray:
    """[4] discounts of counts 0, 1, 2 and above, from how many pairs were seen once, twice, …"""
    n1, n2, n3, n4 = (max(int((counts == k).sum()), 1) for k in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2)
    estimates = np.array([0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
    return np.asarray(np.clip(estimates, (0.0, 0.1, 0.1, 0.1), (0.0, 0.95, 1.9, 2.8)))


def _gain(one: _Order) -> FloatArray:
    gain = one.counts * (np.log(one.probs) - np.log(one.lower))
    return np.asarray(np.where(one.probs >= 0.004, gain, -np.inf))


def _threshold(orders: list[_Order], gains: FloatArray, max_bytes: int, token_bytes: int) -> float:
    """The least gain that an entry must have for all to fit: found by halving the range."""

    def size(threshold: float) -> float:
        total = 4.0  # the last block of ``starts`` is a whole number
        for one in orders:
            keep = _gain(one) > threshold
            total += keep.sum() * (token_bytes + 1)
            total += len(np.unique(one.contexts[keep])) * CONTEXT_BYTES
        return total

    if size(-np.inf) <= max_bytes:
        return -np.inf
    low, high = float(np.min(gains, where=gains > -np.inf, initial=0.0)), float(gains.max()) + 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if size(middle) <= max_bytes else (middle, high)
    return high


def _prune(one: _Order, threshold: float) -> _Order:
    keep = _gain(one) > threshold
    return _Order(
        one.contexts[keep],
        one.tokens[keep],
        one.counts[keep],
        one.probs[keep],
        one.shorter[keep],
        one.lower[keep],
    )


def _pack(orders: list[_Order], about: Mapping[str, str], vocab_size: int) -> CountStore:
    contexts = np.concatenate([one.contexts for one in orders])
    tokens = np.concatenate([one.tokens for one in orders])
    probs = np.concatenate([one.probs for one in orders])
    lower = np.concatenate([one.lower for one in orders])
    short = (contexts >> np.uint64(32)).astype(np.uint32)
    by = np.lexsort((-probs, contexts, short))
    short, contexts, tokens, probs, lower = short[by], contexts[by], tokens[by], probs[by], lower[by]
    keep = _first_context_of_each_key(short, contexts) & (_rank(short) < MAX_LISTED)
    short, tokens, probs, lower = short[keep], tokens[keep], probs[keep], lower[keep]
    keys, first = np.unique(short, return_index=True)
    sizes = np.diff(np.append(first, len(short)))
    left = (1 - np.add.reduceat(probs, first)) / (1 - np.add.reduceat(lower, first))
    return CountStore(
        keys,
        sizes.astype(np.uint8),
        first[::BLOCK].astype(np.uint32),
        quantised(np.clip(left, 1e-5, 1.0)),
        tokens.astype(np.uint16) if vocab_size <= 1 << 16 else tokens.astype(np.uint32),
        quantised(probs),
        about,
    )


def _first_context_of_each_key(short: npt.NDArray[np.uint32], contexts: UInt64Array) -> BoolArray:
    """Where two contexts share a short key, only the first stays."""
    new = np.ones(len(short), bool)
    new[1:] = short[1:] != short[:-1]
    leader = contexts[np.flatnonzero(new)][np.cumsum(new) - 1]
    return np.asarray(contexts == leader)


def _rank(short: npt.NDArray[np.uint32]) -> IntArray:
    new = np.ones(len(short), bool)
    new[1:] = short[1:] != short[:-1]
    return np.asarray(np.arange(len(short)) - np.flatnonzero(new)[np.cumsum(new) - 1])
