"""Repeated 8-grams: a small model that loops makes every drafter look good, so loops are left out of claims."""

from __future__ import annotations

from collections.abc import Sequence

SIZE = 8


def tokens_before_loop(tokens: Sequence[int], size: int = SIZE) -> int:
    """How many tokens come before the first ``size``-gram that already occurred earlier in ``tokens``."""
    seen: set[tuple[int, ...]] = set()
    for start in range(len(tokens) - size + 1):
        gram = tuple(tokens[start : start + size])
        if gram in seen:
            return start
        seen.add(gram)
    return len(tokens)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first token in which two answers differ; None if they are equal."""
    for index, (a, b) in enumerate(zip(left, right)):
        if a != b:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))
