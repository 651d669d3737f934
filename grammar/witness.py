"""Concrete short completions as tokens, verified against the masks they have to pass."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import numpy as np

from mmspec_agent.core.constraint import TokenMask

from .shape import Node
from .vocabulary import Vocabulary

MaskOf = Callable[[Any], TokenMask]
"""The legal tokens at a matcher, control ids taken out."""

_LIKELY_ENDS: Final = (b'"}', b'"]', b'"', b"}", b"]", b"0", b"a", b",", b":", b" ", b"1", b")", b".", b"\n", b";")
_MOST_EXPANSIONS: Final = 300
_LONGEST: Final = 4096


def completion(
    vocabulary: Vocabulary, shape: Node | None, text: bytes, matcher: Any, mask_of: MaskOf, limit: int = _LONGEST
) -> tuple[int, ...] | None:
    """Tokens that finish ``text`` legally, short but not proven shortest; None if none of ``limit`` was found."""
    if shape is not None:
        found = _spell(vocabulary, shape, text, matcher, mask_of, limit)
        if found is not None:
            return found
    return _search(vocabulary, matcher, mask_of, limit)


def _spell(
    vocabulary: Vocabulary, shape: Node, text: bytes, matcher: Any, mask_of: MaskOf, limit: int
) -> tuple[int, ...] | None:
    """Write the shape's suffix token by token, as the masks allow."""
    rest = shape.read(text, 0).tail
    matcher = matcher.deep_copy()
    tokens: list[int] = []
    planned: list[int] = []
    while rest is not None and len(tokens) <= limit:
        if rest == b"" and matcher.is_accepting():
            return tuple(tokens)
        forced = matcher.compute_ff_tokens()
        if not forced:
            choice = _choose(vocabulary, rest, planned, matcher, mask_of)
            if choice is None:
                return None
            forced = [choice]
        for token in forced:
            if not matcher.consume_token(token):
                return None
            spelled = vocabulary.spelling[token]
            text += spelled
            tokens.append(token)
            planned = planned[1:] if planned and planned[0] == token else []
            rest = rest[len(spelled) :] if rest is not None and rest.startswith(spelled) else shape.read(text, 0).tail
    return None


def _choose(vocabulary: Vocabulary, rest: bytes, planned: list[int], matcher: Any, mask_of: MaskOf) -> int | None:
    """The canonical next token of ``rest``, else the longest legal one that spells its beginning."""
    if not planned:
        planned.extend(vocabulary.tokenize(rest))
    # Where nothing is forced, what the grammar accepts is what its mask holds; asking for one token is far quicker.
    if planned and matcher.validate_tokens(planned[:1]) == 1:
        return planned[0]
    mask = mask_of(matcher)
    planned.clear()
    for control in vocabulary.controls:
        if rest.startswith(vocabulary.spelling[control]) and mask.allows(control):
            return control
    for end in range(min(len(rest), vocabulary.longest), 0, -1):
        token = vocabulary.id_of(rest[:end])
        if token is not None and mask.allows(token):
            return token
    return mask.single()


def _search(vocabulary: Vocabulary, matcher: Any, mask_of: MaskOf, limit: int) -> tuple[int, ...] | None:
    """Best-first search over legal tokens, closing ones first: for grammars without a shape."""
    order = count()
    queue: list[tuple[int, int, Any, tuple[int, ...]]] = [(0, next(order), matcher.deep_copy(), ())]
    for _ in range(_MOST_EXPANSIONS):
        if not queue:
            return None
        _, _, here, tokens = heapq.heappop(queue)
        forced = here.compute_ff_tokens()
        if forced:
            here.consume_tokens(forced)
            tokens = (*tokens, *forced)
        if here.is_accepting():
            return tokens
        if len(tokens) >= limit or here.is_error():
            continue
        for rank, token in enumerate(_likely(vocabulary, mask_of(here))):
            after = here.deep_copy()
            if after.consume_token(token):
                heapq.heappush(queue, (len(tokens) + 1 + rank, next(order), after, (*tokens, token)))
    return None


def _likely(vocabulary: Vocabulary, mask: TokenMask) -> list[int]:
    ids = [vocabulary.id_of(text) for text in _LIKELY_ENDS]
    picked = [i for i in ids if i is not None and mask.allows(i)]
    if len(picked) < 6:
        some = mask.tokens()
        spread = some[np.linspace(0, len(some) - 1, num=min(6, len(some)), dtype=np.int64)] if len(some) else some
        picked += [int(i) for i in spread if int(i) not in picked and int(i) not in vocabulary.eos_ids]
    return picked
