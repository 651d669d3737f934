"""Random walks over legal tokens, by choosers that try to leave a reply open."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import jsonschema
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mmspec_agent.core.constraint import Constraint
from mmspec_agent.grammar.vocabulary import Vocabulary

Tastes = dict[str, npt.NDArray[np.float64]]
SPARE = (0, 0, 1, 2, 3, 5, 8, 16, 40, 90)
"""Tokens of a budget beyond the least."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token a byte."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=258, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator([], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")


def tastes(vocabulary: Vocabulary) -> Tastes:
    """Per chooser what it likes of each token: nothing, open brackets, long text, more members, short documents."""

    def scores(like: Any) -> npt.NDArray[np.float64]:
        return np.array([like(spelled) for spelled in vocabulary.spelling], dtype=np.float64)

    return {
        "uniform": scores(lambda s: 0.0),
        "opening": scores(lambda s: 6.0 * (s.count(b"{") + s.count(b"["))),
        "long": scores(lambda s: 2.0 * len(s) * (not set(s) & set(b'"{}[]'))),
        "members": scores(lambda s: 9.0 * s.count(b",") + 3.0 * s.isalpha() + 3.0 * s.count(b"{")),
        "brief": scores(lambda s: 4.0 * (s.count(b"}") + s.count(b"]")) + 3.0 * s.count(b"{") + 2.0 * s.count(b'"')),
    }


def walk(cursor: Constraint, taste: npt.NDArray[np.float64], budget: int, seed: int) -> Constraint:
    """A reply of random legal tokens; no mask may be empty."""
    rng = np.random.default_rng(seed)
    for _ in range(budget):
        mask = cursor.mask()
        legal = np.arange(len(taste)) if mask is None else mask.tokens()
        assert len(legal), f"nothing may follow {getattr(cursor, 'text', b'')[-80:]!r}"
        cursor.advance(int(legal[np.argmax(rng.gumbel(size=len(legal)) + taste[legal])]))
        if getattr(cursor, "done", False):
            break
    return cursor


def check(schema: Any, text: bytes) -> None:
    """The document holds against the schema; unions that refer to themselves are beyond the checker."""
    value = json.loads(text)
    with contextlib.suppress(RecursionError):
        jsonschema.Draft202012Validator(schema).validate(value)


def drawn(draw: random.Random, names: Tastes) -> tuple[str, int, int]:
    """A chooser, tokens beyond the least, a seed."""
    return draw.choice(list(names)), draw.choice(SPARE), draw.getrandbits(31)
