"""Rotary frequencies that depend on the length: the tokens of ``generate`` on both sides of the border and across."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake import FakeDrafter
from texts import byte_tokenizer
from tiny import TEXT, VOCAB
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Phi4MultimodalConfig,
    PhimoeConfig,
    PhimoeForCausalLM,
    PreTrainedModel,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mmspec_agent import Engine
from mmspec_agent.bench.architectures import build as build_type
from mmspec_agent.core.controller import Controller
from mmspec_agent.core.drafters.base import DraftView
from mmspec_agent.core.errors import ContextOverflow
from mmspec_agent.core.rotary import LengthRule
from mmspec_agent.core.tree import ROOT, DraftTree

BORDER = 32
FACTORS = {"short_factor": [1.0, 1.3, 1.1, 1.7], "long_factor": [3.0, 9.0, 5.0, 2.0]}
RULES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": BORDER},
    "longrope": {**FACTORS, "original_max_position_embeddings": BORDER},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": BORDER,
    },
    "proportional": {"factor": 2.0},
}


def _model(kind: str, build: Callable[[dict[str, Any]], PreTrainedModel], seed: int = 0) -> PreTrainedModel:
    rules = {"rope_type": kind, "rope_theta": 10000.0, **RULES[kind]}
    values = {**TEXT, "eos_token_id": None, "pad_token_id": None, "rope_parameters": rules}
    if kind == "dynamic":
        values["max_position_embeddings"] = BORDER
    torch.manual_seed(seed)
    return build(values).eval()


def _llama(values: dict[str, Any]) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**values))


def _phi3(values: dict[str, Any]) -> PreTrainedModel:
    return Phi3ForCausalLM(Phi3Config(**values, original_max_position_embeddings=BORDER))


def _phimoe(values: dict[str, Any]) -> PreTrainedModel:
    values["rope_parameters"] |= {"short_mscale": 1.1, "long_mscale": 1.4}
    return PhimoeForCausalLM(PhimoeConfig(**values, num_local_experts=4, num_experts_per_tok=2))


class Oracle:
    """Guesses what plain decoding says, with a wrong sibling at every node."""

    def __init__(self) -> None:
        self.truth: list[int] = []

    def __call__(self, view: DraftView, budget: int) -> DraftTree:
        here = len(view.tokens)
        right = self.truth[here : here + budget // 2]
        tokens, parents, before = [], [], ROOT
        for token in right:
            tokens += [(token + 7) % VOCAB, token]
            parents += [before, before]
            before = len(tokens) - 1
        return DraftTree(tuple(tokens), tuple(parents), ("oracle",) * len(tokens), (1.0,) * len(tokens))


class Eager(Controller):
    """Takes every guess."""

    def budget(self, pending: int = 1) -> int:
        return 16

    def choose(self, tree: DraftTree, pending: int, room: int) -> DraftTree:
        return tree.trim(min(16, room))


class OracleOfRows(Oracle):
    """An oracle for each row of a batch: the truth that begins as the row's text does."""

    def __init__(self, rows: list[list[int]]) -> None:
        super().__init__()
        self.rows = rows

    def __call__(self, view: DraftView, budget: int) -> DraftTree:
        self.truth = next((row for row in self.rows if row[: len(view.tokens)] == list(view.tokens)), [])
        return super().__call__(view, budget)


def _engine(model: PreTrainedModel, oracle: Oracle, tokenizer: Any = None) -> Engine:
    engine = Engine(model, tokenizer, drafters=[FakeDrafter(oracle)])
    engine.controller = Eager()
    return engine


def _plain(kind: str, build: Callable[[dict[str, Any]], PreTrainedModel], ids: torch.Tensor, new: int) -> list[int]:
    """From a model that has seen nothing else: dynamic NTK remembers its longest forward."""
    tokens: list[int] = _model(kind, build).generate(ids, max_new_tokens=new, do_sample=False)[0].tolist()
    return tokens


CASES = [(kind, _llama) for kind in RULES] + [("longrope", _phi3), ("longrope", _phimoe)]


@pytest.mark.parametrize(("kind", "build"), CASES, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_tokens_are_those_of_generate_at_and_beyond_every_border(kind: str, build: Any) -> None:
    rng = np.random.default_rng(1)
    oracle = Oracle()
    engine = _engine(_model(kind, build), oracle)
    for prompt in (20, BORDER - 1, BORDER, BORDER + 1, 45, 9):
        ids = torch.from_numpy(rng.integers(3, VOCAB, (1, prompt)))
        expected = _plain(kind, build, ids, 30)
        for truth in (expected, []):
            oracle.truth = truth
            assert engine.generate(ids, max_new_tokens=30, do_sample=False)[0].tolist() == expected, (kind, prompt)
        # A text that begins alike, so that rows could be reused, on another side of the border.
        for longer in (expected[: prompt + 6], expected[: prompt + 25], expected[: prompt - 3]):
            more = torch.tensor([longer])
            oracle.truth = _plain(kind, build, more, 12)
            assert engine.generate(more, max_new_tokens=12, do_sample=False)[0].tolist() == oracle.truth


@pytest.mark.parametrize(("kind", "build"), [("longrope", _phi3), ("longrope", _llama), ("dynamic", _llama)])
def test_a_prompt_of_several_prefill_forwards(kind: str, build: Any) -> None:
    ids = torch.from_numpy(np.random.default_rng(2).integers(3, VOCAB, (1, 700)))

    def wide(values: dict[str, Any]) -> PreTrainedModel:
        more = 600 if kind == "longrope" else BORDER
        if kind == "longrope":
            values["rope_parameters"]["original_max_position_embeddings"] = more
        values["max_position_embeddings"] = 2048 if kind == "longrope" else BORDER
        config = Phi3Config(**values, original_max_position_embeddings=more) if build is _phi3 else None
        return _llama(values) if config is None else Phi3ForCausalLM(config)

    oracle = Oracle()
    engine = _engine(_model(kind, wide), oracle)
    for length in (700, 590):
        oracle.truth = _plain(kind, wide, ids[:, :length], 24)
        assert engine.generate(ids[:, :length], max_new_tokens=24, do_sample=False)[0].tolist() == oracle.truth


@pytest.mark.parametrize(("kind", "build"), [("longrope", _phi3), ("longrope", _llama), ("dynamic", _llama)])
def test_a_saved_session_knows_which_side_its_rows_are_from(kind: str, build: Any, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()

    def big(values: dict[str, Any]) -> PreTrainedModel:
        return build({**values, "vocab_size": 259})

    session = _engine(_model(kind, big), Oracle(), tokenizer).session(max_new_tokens=16)
    session.send("a")
    session.save(tmp_path)
    again = _engine(_model(kind, big), Oracle(), tokenizer).resume(tmp_path)
    reply = again.send("b", max_new_tokens=16)
    ids = again._conversation.tokens[: -len(reply.token_ids)]
    expected = _plain(kind, big, torch.tensor([ids]), 16)[len(ids) :]
    assert reply.token_ids == expected == session.send("b").token_ids


def _padded(lengths: tuple[int, ...], extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of random rows with padding at the left; ``extra`` columns of it in every row."""
    rng = np.random.default_rng(5)
    width = max(lengths) + extra
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, width - length :] = torch.from_numpy(rng.integers(3, VOCAB, length))
        mask[row, width - length :] = 1
    return ids, mask


BATCHES = (((20, 30), 0), ((20, 30), 3), ((31, 12, 28), 0), ((32, 33), 0), ((40, 20), 3), ((9, 12), 0))


@pytest.mark.parametrize(
    ("kind", "build"), [("longrope", _llama), ("longrope", _phi3), ("longrope", _phimoe), ("dynamic", _llama)]
)
def test_rows_of_a_batch_follow_the_length_of_its_longest_row(kind: str, build: Any) -> None:
    alone = 0
    for lengths, extra in BATCHES:
        ids, mask = _padded(lengths, extra)
        options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 16, "do_sample": False}
        expected = _model(kind, build).generate(ids, pad_token_id=0, **options)
        rows = [row[len(row) - 16 - length :].tolist() for row, length in zip(expected, lengths)]
        engine = _engine(_model(kind, build), OracleOfRows(rows))
        if extra and build is not _llama and max(lengths) <= BORDER < max(lengths) + 15:
            with pytest.raises(ContextOverflow, match="padding in every row"):
                engine.generate(ids, pad_token_id=0, **options)
            continue
        assert torch.equal(engine.generate(ids, pad_token_id=0, **options), expected), (lengths, extra)
        short = rows[int(np.argmin(lengths))]
        alone += _plain(kind, build, torch.tensor([short[:-16]]), 16) != short
    assert alone > 0  # it does matter


def test_a_border_behind_which_generate_loses_the_text_is_not_crossed() -> None:
    model = build_type("phi4_multimodal")
    assert isinstance(model.config, Phi4MultimodalConfig)
    border = model.config.original_max_position_embeddings
    assert LengthRule.of(model) == LengthRule(border, False, True, loses=True)
    rng = np.random.default_rng(2)
    engine = Engine(model)
    for prompt in (1, border - 3, border, border + 1, border + 20):
        ids = torch.from_numpy(rng.integers(3, 90, (1, prompt)))
        most = border - prompt + 1 if prompt <= border else 20
        expected = model.generate(ids, max_new_tokens=most, do_sample=False)
        assert torch.equal(engine.generate(ids, max_new_tokens=most, do_sample=False), expected)
        if prompt <= border:
            with pytest.raises(ContextOverflow, match=f"at most {most} new tokens"):
                engine.generate(ids, max_new_tokens=most + 1)


def test_a_chat_that_may_cross_such_a_border_is_refused_before_it_begins() -> None:
    engine = Engine(_model("default", lambda values: _llama({**values, "vocab_size": 259})), byte_tokenizer())
    length = engine.chat("a", max_new_tokens=1).stats.prompt_tokens
    engine.target.length_rule = LengthRule(length + 9, False, True, loses=True)
    assert len(engine.chat("a", max_new_tokens=10).token_ids) == 10
    session = engine.session()
    with pytest.raises(ContextOverflow, match="at most 10 new tokens"):
        session.send("a", max_new_tokens=11)
    assert session.messages == []


def test_every_rope_type_of_transformers_is_covered() -> None:
    assert set(ROPE_INIT_FUNCTIONS) <= set(RULES)
    ruled = {kind for kind in RULES if LengthRule.of(_model(kind, _llama)) is not None}
    assert ruled == {"dynamic", "longrope"}
    assert LengthRule.of(_model("longrope", _llama)) == LengthRule(BORDER, False, False)
    assert LengthRule.of(_model("longrope", _phi3)) == LengthRule(BORDER, False, True)


def test_what_a_model_remembers_of_lengths_stays_as_it_was() -> None:
    model = _model("dynamic", _llama)
    rotary = model.model.rotary_emb
    before = (rotary.max_seq_len_cached, rotary.inv_freq.clone())
    Engine(model).generate(torch.full((1, 50), 7), max_new_tokens=8)
    assert rotary.max_seq_len_cached == before[0]
    assert torch.equal(rotary.inv_freq, before[1])
