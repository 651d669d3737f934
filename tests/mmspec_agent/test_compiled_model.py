"""Models that were compiled by torch, whole or in part, before an engine or behind its back: the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from texts import chat_model
from transformers import PreTrainedModel
from usable import NEW, TOKENIZER

from mmspec_agent import Engine

Compile = Callable[[Any, Any], Any]
"""Compiles a model, or a part of it, with a backend; returns what a caller would go on with."""

IDS = torch.tensor([TOKENIZER.encode("one and one and one", add_special_tokens=False)])
OPTIONS: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}


class Graphs:
    """A backend that runs what it is given as it is, and counts it."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, graph: Any, _inputs: Any) -> Any:
        self.made += 1
        return graph.forward


@pytest.fixture(autouse=True)
def no_graphs_kept() -> Iterator[None]:
    """Graphs of one test are not those of the next."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _wrapped(model: PreTrainedModel, backend: Any) -> Any:
    return torch.compile(model, backend=backend)


def _in_place(model: PreTrainedModel, backend: Any) -> Any:
    model.compile(backend=backend)
    return model


def _forward(model: PreTrainedModel, backend: Any) -> Any:
    model.forward = torch.compile(model.forward, backend=backend)
    return model


def _decoder(model: PreTrainedModel, backend: Any) -> Any:
    model.model = torch.compile(model.model, backend=backend)
    return model


def _a_layer(model: PreTrainedModel, backend: Any) -> Any:
    model.model.layers[1].compile(backend=backend)
    return model


WAYS = [_wrapped, _in_place, *(pytest.param(way, marks=pytest.mark.slow) for way in (_forward, _decoder, _a_layer))]


def _expected() -> torch.Tensor:
    tokens: torch.Tensor = chat_model(eos=None).generate(IDS, **OPTIONS)
    return tokens


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_a_compiled_model_is_served_with_the_same_tokens(way: Compile) -> None:
    graphs = Graphs()
    compiled = way(chat_model(eos=None), graphs)
    engine = Engine(compiled, TOKENIZER)
    expected = _expected()
    assert torch.equal(engine.generate(IDS, **OPTIONS), expected)
    ours = compiled.generate(IDS, **OPTIONS, custom_generate=engine.custom_generate)
    assert torch.equal(ours, expected)
    plain = Engine(chat_model(eos=None), TOKENIZER).chat("one", max_new_tokens=NEW)
    assert engine.chat("one", max_new_tokens=NEW).token_ids == plain.token_ids
    if way in (_wrapped, _in_place):
        assert graphs.made == 0  # a tree of every size would be a graph of its own


@pytest.mark.parametrize("way", [_in_place, _a_layer], ids=lambda way: way.__name__.strip("_"))
def test_a_model_that_is_compiled_behind_an_engine_is_served_with_the_same_tokens(way: Compile) -> None:
    engine = Engine(chat_model(eos=None), TOKENIZER)
    expected = _expected()
    before = engine.chat("one", max_new_tokens=NEW).token_ids
    way(engine.model, "eager")
    assert torch.equal(engine.generate(IDS, **OPTIONS), expected)
    assert engine.chat("one", max_new_tokens=NEW).token_ids == before
