"""Proof 5: every processor a generation config can name, per tree path; and refusals by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake import oracle, random_drafter
from test_generate_greedy import engine_of, greedy, prompt_of
from texts import byte_tokenizer, chat_model
from tiny import VOCAB, tiny_model
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList

from mmspec_agent import Engine
from mmspec_agent.core.errors import ContextOverflow, EngineBusy, OptionError, PromptError, UnsupportedOption

ANSWER = greedy(tiny_model("llama"), prompt_of(9), max_new_tokens=24)[0, 9:].tolist()
EARLY, LATE = ANSWER[2], ANSWER[9]

GREEDY: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[5], [7, 9], [EARLY], ANSWER[7:9]]},
    "forced_bos_token_id": {"forced_bos_token_id": 7},
    "forced_eos_token_id": {"forced_eos_token_id": 2},
    "suppress_tokens": {"suppress_tokens": [4, EARLY, LATE]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [4, ANSWER[0]]},
    "sequence_bias": {"sequence_bias": [[[LATE], 4.0], [[EARLY, 8], 9.0]]},
    "min_new_tokens": {"min_new_tokens": 14, "eos_token_id": list(range(3, 40))},
    "min_length": {"min_length": 20, "eos_token_id": list(range(3, 40))},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": [4, 1.6]},
    "renormalize_logits": {"renormalize_logits": True},
    "remove_invalid_values": {"remove_invalid_values": True},
    "several eos": {"eos_token_id": [9, LATE, 3]},
    "all at once": {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[LATE]],
        "min_new_tokens": 5,
    },
}

SAMPLED: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.6},
    "hot": {"temperature": 1.9},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1, "top_k": 0},
    "typical_p": {"typical_p": 0.6},
    "epsilon_cutoff": {"epsilon_cutoff": 0.02},
    "eta_cutoff": {"eta_cutoff": 0.02},
    "together": {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_processors_equal_transformers_with_drafts_on(model: Any, name: str) -> None:
    ids = prompt_of(9)
    options = {"max_new_tokens": 24, **GREEDY[name]}
    expected = greedy(model, ids, **options)
    right = oracle(expected[0, 9:].tolist(), 9)
    for drafters in ([random_drafter(0, VOCAB - 4, 3)], [right]):
        engine = engine_of(model, drafters)
        assert engine.generate(ids, do_sample=False, **options).tolist() == expected.tolist()
    assert engine.last_stats is not None
    assert engine.last_stats.forwards < engine.last_stats.emitted


@pytest.mark.slow
def test_the_options_tested_do_something(model: Any) -> None:
    ids = prompt_of(9)
    plain = greedy(model, ids, max_new_tokens=24).tolist()
    idle = {"renormalize_logits", "remove_invalid_values", "forced_bos_token_id", "encoder_no_repeat_ngram_size"}
    same = {n for n, o in GREEDY.items() if greedy(model, ids, **{"max_new_tokens": 24, **o}).tolist() == plain}
    assert same <= idle


def test_a_forced_first_token(model: Any) -> None:
    ids = prompt_of(1)
    expected = greedy(model, ids, max_new_tokens=12, forced_bos_token_id=7)
    assert expected[0, 1] == 7
    engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3)])
    output = engine.generate(ids, max_new_tokens=12, do_sample=False, forced_bos_token_id=7)
    assert output.tolist() == expected.tolist()


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_processors_speculative_equals_plain(model: Any, name: str) -> None:
    ids = prompt_of(9)
    options = {"max_new_tokens": 24, "do_sample": True, "seed": 5, "eos_token_id": None, **SAMPLED[name]}
    expected = engine_of(model, []).generate(ids, **options)
    right = oracle(expected[0, 9:].tolist(), 9)
    for drafters in ([random_drafter(0, VOCAB - 4, 3)], [right]):
        engine = engine_of(model, drafters)
        assert engine.generate(ids, **options).tolist() == expected.tolist()
    assert engine.last_stats is not None
    assert engine.last_stats.forwards < 8


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_tokens_are_possible_under_transformers_own_processing(model: Any, name: str) -> None:
    """Every token lies in the support that HF's processors leave at its place, and scores are HF's."""
    ids = prompt_of(9)
    options = {"max_new_tokens": 12, "do_sample": True, "eos_token_id": None, **SAMPLED[name]}
    output = engine_of(model, [random_drafter(0, VOCAB - 4, 3)]).generate(
        ids, seed=3, return_dict_in_generate=True, output_scores=True, **options
    )
    tokens = output.sequences[0].tolist()
    for at, scores in enumerate(output.scores):
        assert scores[0, tokens[9 + at]] > float("-inf")
        theirs: Any = model.generate(
            output.sequences[:, : 9 + at],
            return_dict_in_generate=True,
            output_scores=True,
            **{**options, "max_new_tokens": 1},
        )
        torch.testing.assert_close(scores, theirs.scores[0], atol=1e-4, rtol=1e-4)


def test_prefix_allowed_tokens_and_processors_of_the_user(model: Any) -> None:
    class Odd(LogitsProcessor):  # type: ignore[misc]
        """Bans what came three tokens before; has to be shown the right path."""

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            scores = scores.clone()
            scores[:, input_ids[0, -3]] = float("-inf")
            return scores

    ids = prompt_of(9)
    for options in (
        {"prefix_allowed_tokens_fn": lambda row, ids: [3 + (int(ids[-1]) * k) % 80 for k in (2, 3, 5, 7)]},
        {"logits_processor": LogitsProcessorList([Odd()])},
    ):
        expected = greedy(model, ids, max_new_tokens=24, **options)
        engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3), oracle(expected[0, 9:].tolist(), 9)])
        output = engine.generate(ids, max_new_tokens=24, do_sample=False, **options)
        assert output.tolist() == expected.tolist()


def test_processors_that_hold_something_per_row(model: Any) -> None:
    ids = prompt_of(9, rows=3)
    for options in (
        {"encoder_repetition_penalty": 1.5},
        {"encoder_no_repeat_ngram_size": 2},
        {"prefix_allowed_tokens_fn": lambda row, ids: list(range(10 * row + 3, 10 * row + 13))},
    ):
        expected = greedy(model, ids, max_new_tokens=16, **options)
        engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3)])
        assert engine.generate(ids, max_new_tokens=16, do_sample=False, **options).tolist() == expected.tolist()


def test_stop_strings_end_at_transformers_token() -> None:
    model, tokenizer = chat_model(eos=None), byte_tokenizer()
    ids = torch.tensor([tokenizer.encode("Once upon a time", add_special_tokens=False)])
    free = greedy(model, ids, max_new_tokens=40)
    answer = free[0, ids.shape[1] :].tolist()
    for first in (3, 8, 15):
        stop = tokenizer.decode(answer[first : first + 3])
        expected = greedy(model, ids, max_new_tokens=40, stop_strings=[stop, "never said"], tokenizer=tokenizer)
        for own, given in ((tokenizer, {}), (None, {"tokenizer": tokenizer})):
            engine = Engine(model, own, drafters=[oracle(answer, ids.shape[1])])
            output = engine.generate(
                ids, max_new_tokens=40, do_sample=False, stop_strings=[stop, "never said"], **given
            )
            assert output.tolist() == expected.tolist()
    options: dict[str, Any] = {"max_new_tokens": 40, "stop_strings": [stop, "never said"]}
    in_one_line = Engine(model, tokenizer).custom_generate
    for given in ({}, {"tokenizer": tokenizer}):
        assert greedy(model, ids, custom_generate=in_one_line, **options, **given).tolist() == expected.tolist()
    with pytest.raises(OptionError, match=r"engine\.generate"):
        greedy(model, ids, custom_generate=Engine(model).custom_generate, **options)
    config = GenerationConfig(max_new_tokens=40, do_sample=False, stop_strings=[stop, "never said"])
    assert Engine(model, tokenizer).generate(ids, generation_config=config).tolist() == expected.tolist()
    with pytest.raises(OptionError, match="tokenizer"):
        Engine(model).generate(ids, stop_strings=["x"])


REFUSED: dict[str, dict[str, Any]] = {
    "num_beams": {"num_beams": 3},
    "guidance_scale": {"guidance_scale": 1.5},
    "penalty_alpha": {"penalty_alpha": 0.6, "top_k": 4},
    "dola_layers": {"dola_layers": "low"},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("way", ["generate", "custom_generate"])
def test_refused_by_name(model: Any, name: str, way: str) -> None:
    engine = engine_of(model, [])
    call, options = engine.generate, REFUSED[name]
    if way == "custom_generate":
        call, options = model.generate, {**options, "custom_generate": engine.custom_generate}
    with pytest.raises(UnsupportedOption, match=name):
        call(prompt_of(5), max_new_tokens=3, **options)


def test_assistant_models_are_refused_by_name(model: Any) -> None:
    engine, assistant = engine_of(model, []), tiny_model("llama", 1)
    with pytest.raises(UnsupportedOption, match="assistant_model"):
        engine.generate(prompt_of(5), max_new_tokens=3, assistant_model=assistant)
    with pytest.raises(UnsupportedOption, match="assistant_model"):
        model.generate(
            prompt_of(5), max_new_tokens=3, assistant_model=assistant, custom_generate=engine.custom_generate
        )


def test_a_cache_that_holds_tokens_is_refused_an_empty_one_is_not(model: Any) -> None:
    cache = DynamicCache()
    engine = engine_of(model, [])
    ids = prompt_of(5)
    output = engine.generate(ids, max_new_tokens=3, do_sample=False, cache=cache)
    assert output.tolist() == greedy(model, ids, max_new_tokens=3).tolist()
    with torch.inference_mode():
        model(input_ids=ids, cache=cache, use_cache=True)
    with pytest.raises(UnsupportedOption, match="cache"):
        engine.generate(ids, max_new_tokens=3, cache=cache)


def test_bad_prompts(model: Any) -> None:
    engine = engine_of(model, [])
    empty = torch.zeros(1, 0, dtype=torch.long)
    with pytest.raises(PromptError, match="at least one token"):
        engine.generate(empty)
    with pytest.raises(PromptError, match="input_ids"):
        engine.generate(max_new_tokens=3)
    with pytest.raises(ContextOverflow, match="context is 512"):
        engine.generate(prompt_of(513), max_new_tokens=3)
    with pytest.raises(PromptError, match="97"):
        engine.generate(torch.tensor([[3, VOCAB]]), max_new_tokens=3)
    with pytest.raises(PromptError, match="-1"):
        engine.generate(torch.tensor([[3, -1]]), max_new_tokens=3)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    with pytest.raises(PromptError, match="padding"):
        engine.generate(prompt_of(3, rows=2), attention_mask=mask, max_new_tokens=3)
    mask = torch.tensor([[0, 0, 0], [1, 1, 1]])
    with pytest.raises(PromptError, match="zeros"):
        engine.generate(prompt_of(3, rows=2), attention_mask=mask, max_new_tokens=3)
    assert engine.generate(prompt_of(5), max_new_tokens=3).shape == (1, 8)


def test_bad_options(model: Any) -> None:
    engine = engine_of(model, [])
    with pytest.raises(OptionError, match="max_new_tokenz"):
        engine.generate(prompt_of(5), max_new_tokenz=3)
    for options in (
        {"max_new_tokens": -3},
        {"temperature": -1.0, "do_sample": True},
    ):
        with pytest.raises(OptionError):
            engine.generate(prompt_of(5), **{"max_new_tokens": 3, **options})
    with pytest.raises(OptionError, match="another model"):
        tiny_model("llama", 1).generate(prompt_of(5), max_new_tokens=3, custom_generate=engine.custom_generate)


def test_a_callback_that_calls_the_engine_again_is_refused(model: Any) -> None:
    engine = engine_of(model, [])

    class Again:
        def put(self, value: torch.Tensor) -> None:
            if value.numel() == 1:
                engine.generate(prompt_of(4), max_new_tokens=2)

        def end(self) -> None:
            raise AssertionError("never reached")

    with pytest.raises(EngineBusy, match="this thread"):
        engine.generate(prompt_of(5), max_new_tokens=3, streamer=Again())
    assert engine.generate(prompt_of(5), max_new_tokens=3).shape == (1, 8)
