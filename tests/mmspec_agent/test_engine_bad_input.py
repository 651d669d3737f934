"""Whatever is wrong with the model or the request: a clear error, and an engine that goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from texts import byte_tokenizer, chat_model
from tiny import tiny_model
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from usable import NEW, TOKENIZER, check_usable, fresh, two_turns

from mmspec_agent import Engine
from mmspec_agent.core.errors import (
    ContextOverflow,
    MMSpecError,
    ModelError,
    NumericalError,
    OptionError,
    PromptError,
    TokenizerMismatch,
    UnsupportedModel,
    UnsupportedOption,
)


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return two_turns()


BAD_CHATS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ([], {}, PromptError, "no messages"),
    ("", {"max_new_tokens": 0}, OptionError, "max_new_tokens=0"),
    ("x" * 3000, {}, ContextOverflow, "2048"),
    ("x", {"max_new_tokens": -1}, OptionError, "positive"),
    ("x", {"max_new_tokens": 2.5}, OptionError, "positive integer"),
    ("x", {"temperature": -0.1}, OptionError, "temperature=-0.1"),
    ("x", {"temperature": float("nan")}, OptionError, "temperature=nan"),
    ("x", {"temperature": "hot"}, OptionError, "temperature"),
    ("x", {"temprature": 1.0}, OptionError, "did you mean 'temperature'"),
    ("x", {"foo_bar_baz": 1}, OptionError, "unknown option 'foo_bar_baz'"),
    ("x", {"seed": "a"}, OptionError, "seed"),
    ("x", {"mode": "magic"}, OptionError, "coupled"),
    ("x", {"beta": 0.0}, OptionError, "beta"),
    ("x", {"gamma": 1.5}, OptionError, "lossy_gamma"),
    ("x", {"lossy_gamma": -1.0}, OptionError, "lossy_gamma"),
    ("x", {"num_beams": 4}, UnsupportedOption, "num_beams"),
    ("x", {"guidance_scale": 2.0}, UnsupportedOption, "guidance_scale"),
    ("x", {"penalty_alpha": 0.5}, UnsupportedOption, "penalty_alpha"),
    ("x", {"num_return_sequences": 2}, UnsupportedOption, "engine.generate"),
    ("x", {"top_p": "wide", "temperature": 1.0}, OptionError, "top_p"),
    ("x", {"repetition_penalty": -2.0}, OptionError, "repetition_penalty|penalty"),
    ([{"role": "user"}], {}, PromptError, "message 0 has no content"),
    ([{"role": "robot", "content": "x"}], {}, PromptError, "robot"),
    (["x"], {}, PromptError, "message 0 is a str"),
    ([{"role": "user", "content": [{"type": "hologram"}]}], {}, PromptError, "hologram"),
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return fresh()


@pytest.mark.parametrize(("messages", "options", "error", "text"), BAD_CHATS)
def test_bad_chats(engine: Engine, messages: Any, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        engine.chat(messages, **options)
    assert isinstance(caught.value, MMSpecError)


def test_the_engine_of_the_bad_chats_still_answers(engine: Engine, expected: list[str]) -> None:
    assert engine.chat("one", max_new_tokens=NEW).text == expected[0]


@pytest.mark.parametrize(
    "options", [{"max_nodes": -1}, {"max_nodes": 1.5}, {"memory_budget": -5}, {"memory_budget": "much"}, {"busy": "no"}]
)
def test_bad_engines(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        fresh(**options)


def test_no_tokenizer_or_no_template() -> None:
    with pytest.raises(PromptError, match="tokenizer"):
        Engine(chat_model()).chat("x")
    bare = byte_tokenizer()
    bare.chat_template = None
    with pytest.raises(PromptError, match="chat template"):
        Engine(chat_model(), bare).chat("x")


def test_a_tokenizer_that_does_not_fit() -> None:
    with pytest.raises(TokenizerMismatch, match=r"259.*97"):
        Engine(tiny_model("llama"), TOKENIZER)


def test_nan_weights() -> None:
    model = chat_model()
    with torch.no_grad():
        model.lm_head.weight[3, 3] = float("nan")
    with pytest.raises(NumericalError, match="NaN"):
        Engine(model, TOKENIZER)


def test_weights_that_turn_nan_later(expected: list[str]) -> None:
    engine = fresh()
    session = engine.session(max_new_tokens=NEW)
    weight = engine.model.lm_head.weight
    kept = float(weight.detach()[3, 3])
    with torch.no_grad():
        weight[3, 3] = float("nan")
    for options in ({}, {"temperature": 1.0}):
        with pytest.raises(NumericalError, match="NaN"):
            session.send("one", **options)
    with torch.no_grad():
        weight[3, 3] = kept
    check_usable(engine, session, expected)


def test_a_model_in_training_mode() -> None:
    with pytest.raises(ModelError, match="eval"):
        Engine(chat_model().train(), TOKENIZER)


def test_encoder_decoders_are_refused() -> None:
    config = T5Config(vocab_size=300, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        Engine(T5ForConditionalGeneration(config).eval())


def test_recurrent_models_are_refused_with_the_reason() -> None:
    config = MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=2, state_size=4)
    with pytest.raises(UnsupportedModel, match="rolled back"):
        Engine(MambaForCausalLM(config).eval())


def test_dynamically_quantised_layers_are_refused_by_the_probe() -> None:
    """Their activations are scaled over all rows of a forward, so rows of a tree change each other."""
    model = chat_model()
    quantise: Any = torch.ao.quantization.quantize_dynamic
    quantised = quantise(model, {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(UnsupportedModel, match="quantis"):
        Engine(quantised)


def test_models_over_several_devices_are_refused_by_name() -> None:
    model = chat_model()
    model.hf_device_map = {"model": "cpu", "lm_head": "disk"}
    with pytest.raises(UnsupportedModel, match="one device"):
        Engine(model, TOKENIZER)
