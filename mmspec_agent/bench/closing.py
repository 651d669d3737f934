"""Whatever the model wants: random schemas, a target of random weights, random budgets, whole engine (SYSTEM.md G5)."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from mmspec_agent.core.errors import MMSpecError
from mmspec_agent.engine import Engine
from mmspec_agent.grammar.plans import json_plan
from mmspec_agent.grammar.vocabulary import Vocabulary
from mmspec_agent.models.progress import Progress

from .random_schemas import random_schema

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = (
    '{"name": "get_weather", "arguments": {"city": "San Francisco", "days": 3, "units": "celsius"}}',
    '{"route": "answer", "score": 4, "tags": ["a", "b", "c"], "nested": {"x": null, "y": false}}',
    '"], "}, "}}, "]}, {"a": [{"b": [[1, 2], [3]]}]} 0.25 -7 1e-6 2024-01-31 joe@example.com',
    "What is the weather in San Francisco for the next 3 days?",
)
_SLACK = (0, 0, 1, 2, 3, 5, 8, 16, 40, 120)
_TEMPERATURES = (0.0, 1.0, 3.0)


@dataclass
class Closing:
    """Counts over generations. ``failures`` holds the first few, with all that is needed to see them again."""

    generations: int = 0
    schemas: int = 0
    invalid: int = 0
    unclosed: int = 0
    endless: int = 0
    refused: int = 0
    tokens: int = 0
    forwards: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def note(self, kind: str, **facts: Any) -> None:
        """Count one failure."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.failures) < 10:
            self.failures.append({"kind": kind, **facts})


def run_closing(generations: int, schemas: int, progress: Progress, seed: int = 0) -> Closing:
    """``generations`` replies over ``schemas`` schemas, budgets from the schema's minimum upwards."""
    draw = random.Random(seed)
    engine = random_engine(seed)
    vocabulary = Vocabulary.of(engine.tokenizer, [engine.model.generation_config.eos_token_id])
    result = Closing()
    progress.stage(f"{generations} replies of a model of random weights over {schemas} schemas", float(generations))
    for index in range(schemas):
        schema = random_schema(draw)
        minimum = json_plan(vocabulary, schema).minimum_tokens
        result.schemas += 1
        for _ in range(generations // schemas + (index < generations % schemas)):
            one_reply(engine, schema, minimum, draw, result)
            progress.advance_to(float(result.generations))
    return result


def one_reply(engine: Engine, schema: Mapping[str, Any], minimum: int, draw: random.Random, result: Closing) -> None:
    """One generation, checked."""
    budget = minimum + draw.choice(_SLACK)
    options = {"max_new_tokens": budget, "temperature": draw.choice(_TEMPERATURES), "seed": draw.getrandbits(31)}
    question = "".join(draw.choice('abc 012"{}[]:,') for _ in range(draw.randrange(1, 12)))
    facts = {"schema": schema, "question": question, **options}
    result.generations += 1
    try:
        reply = engine.chat(question, response_format={"type": "json_schema", "schema": schema}, **options)
    except MMSpecError as error:
        result.note("refused", error=str(error), **facts)
        return
    result.tokens += len(reply.token_ids)
    result.forwards += reply.stats.forwards
    if len(reply.token_ids) > budget:
        result.note("endless", text=reply.text, **facts)
    try:
        jsonschema.validate(json.loads(reply.text), schema)
    except ValueError:
        result.note("unclosed", text=reply.text, **facts)
    except jsonschema.ValidationError as error:
        result.note("invalid", text=reply.text, error=error.message, **facts)


def random_engine(seed: int = 0) -> Engine:
    """An engine around a small model of random weights and a tokenizer trained here on a few lines."""
    tokenizer = small_tokenizer()
    return Engine(random_model(len(tokenizer), tokenizer.eos_token_id, seed), tokenizer)


def random_model(vocab_size: int, eos: int, seed: int = 0) -> PreTrainedModel:
    """Wide weights, so that what it wants is far from any schema and varies."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=4096,
            bos_token_id=None,
            eos_token_id=eos,
            pad_token_id=None,
            initializer_range=0.5,
        )
        return LlamaForCausalLM(config).eval()


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with some merged JSON punctuation, as real vocabularies have."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|im_end|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_TEXT * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer
