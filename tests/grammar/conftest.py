"""A small byte-level tokenizer, trained here and now on a fixed text: no files, no network."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mmspec_agent.grammar.vocabulary import Vocabulary

TEXT = [
    '{"name": "get_weather", "arguments": {"city": "San Francisco", "days": 3, "units": "celsius"}}',
    '{"name": "search", "arguments": {"query": "jazz in New York", "limit": 10, "exact": true}}',
    '{"route": "answer", "score": 4, "tags": ["a", "b", "c"], "nested": {"x": null, "y": false}}',
    "What is the weather in San Francisco for the next 3 days? Please find jazz concerts in New York.",
    '"], "}, "}}, "]}, {"a": [{"b": [[1, 2], [3]]}]} 0.25 -7 1e-6 2024-01-31 joe@example.com',
] * 3

CONTROLS = ["<|end|>", "<|im_start|>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>"]


def build_tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=CONTROLS, initial_alphabet=alphabet)
    core.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return build_tokenizer()


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Any) -> Vocabulary:
    return Vocabulary.of(tokenizer)
