"""The table of options is whole and true: each way in does about each name what the table says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fake import always_wrong, oracle
from quick import every
from texts import byte_tokenizer, chat_model
from transformers import (
    CompileConfig,
    GenerationConfig,
    GenerationMixin,
    LlamaForCausalLM,
    LogitsProcessorList,
    StoppingCriteriaList,
    WatermarkingConfig,
)
from unhurried import Unhurried

from mmspec_agent import Engine
from mmspec_agent.core.errors import UnsupportedOption
from mmspec_agent.option_table import TABLE, Rule, Status, Way, as_markdown

DOCS = Path(__file__).parents[2] / "docs"
MODEL, TOKENIZER, NEW, TEXT = chat_model(eos=None), byte_tokenizer(), 14, "abc"
IDS = torch.tensor(
    [
        TOKENIZER.encode(
            TOKENIZER.apply_chat_template(
                [{"role": "user", "content": TEXT}], tokenize=False, add_generation_prompt=True
            ),
            add_special_tokens=False,
        )
    ]
)
LENGTH = IDS.shape[1]
GIVEN: dict[str, Any] = {"attention_mask": torch.ones_like(IDS), "max_new_tokens": NEW, "do_sample": False}


def theirs(**options: Any) -> Any:
    torch.manual_seed(0)
    options = {name: value for name, value in options.items() if name not in ("inputs", "seed")}  # one way, and ours
    with torch.inference_mode():
        return MODEL.generate(IDS, **{**GIVEN, **options})


PLAIN: list[int] = theirs()[0, LENGTH:].tolist()


def engine() -> Engine:
    made = Engine(MODEL, TOKENIZER, drafters=[oracle(PLAIN, LENGTH), always_wrong(PLAIN, LENGTH, 259)])
    made.controller = Unhurried()
    return made


def ours(way: Way, **options: Any) -> Any:
    options = {**GIVEN, **options}
    if way is Way.GENERATE:
        return engine().generate(options.pop("inputs", IDS), **options)
    return MODEL.generate(options.pop("inputs", IDS), **{"custom_generate": engine().custom_generate, **options})


def chatted(**options: Any) -> list[int]:
    ids: list[int] = engine().chat(TEXT, **{"max_new_tokens": NEW, **options}).token_ids
    return ids


def stop_after(length: int) -> StoppingCriteriaList:
    return StoppingCriteriaList([lambda ids, scores, **kw: torch.tensor([ids.shape[1] >= length])])


ENDS = {"eos_token_id": PLAIN[3]}
GREEDY: dict[str, dict[str, Any]] = {
    "max_new_tokens": {"max_new_tokens": 5},
    "max_length": {"max_new_tokens": None, "max_length": LENGTH + 4},
    "min_length": {**ENDS, "min_length": LENGTH + 8},
    "min_new_tokens": {**ENDS, "min_new_tokens": 8},
    "max_time": {"max_time": 0.0},
    "eos_token_id": ENDS,
    "do_sample": {},
    "repetition_penalty": {"repetition_penalty": 3.0},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 0.2},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1, "sequence_bias": {(int(IDS[0, 3]),): 40.0}},
    "bad_words_ids": {"bad_words_ids": [[PLAIN[2]]]},
    "sequence_bias": {"sequence_bias": {(PLAIN[4],): 9.0}},
    "suppress_tokens": {"suppress_tokens": [PLAIN[1]]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [PLAIN[0]]},
    "forced_eos_token_id": {"forced_eos_token_id": 5},
    "exponential_decay_length_penalty": {"eos_token_id": 7, "exponential_decay_length_penalty": (2, 3.0)},
    "watermarking_config": {"watermarking_config": WatermarkingConfig(bias=9.0)},
    "logits_processor": {"logits_processor": LogitsProcessorList([lambda ids, s: s.roll(1, -1)])},
    "stopping_criteria": {"stopping_criteria": stop_after(LENGTH + 3)},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": lambda row, ids: [5, 6, 7 + len(ids) % 5]},
    "stop_strings": {"stop_strings": [TOKENIZER.decode(PLAIN[4:6])], "tokenizer": TOKENIZER},
}
"""Options that change the answer; ``do_sample`` has its own test."""

SAME_ANSWER: dict[str, dict[str, Any]] = {
    "renormalize_logits": {"renormalize_logits": True},
    "remove_invalid_values": {"remove_invalid_values": True},
    "forced_bos_token_id": {"forced_bos_token_id": 7},
    "return_dict_in_generate": {"return_dict_in_generate": True},
    "output_scores": {"return_dict_in_generate": True, "output_scores": True},
    "output_logits": {"return_dict_in_generate": True, "output_logits": True, "repetition_penalty": 2.0},
    "pad_token_id": {"pad_token_id": 3},
    "num_return_sequences": {"num_return_sequences": 1},
    "inputs": {"inputs": IDS},
    "input_ids": {},
    "generation_config": {"generation_config": GenerationConfig(max_new_tokens=NEW, do_sample=False)},
    "streamer": {},
    "tokenizer": {"tokenizer": TOKENIZER},
    "seed": {"seed": 3},
    "attention_mask": {"attention_mask": torch.tensor([[0] * 3 + [1] * (LENGTH - 3)])},
    "position_ids": {"position_ids": torch.arange(LENGTH)[None]},
    "cache": {},
    "past_key_values": {},
    "cache_params": {},
    "custom_generate": {},
}
"""Honoured options whose effect is not another greedy answer; what it is, is shown beside or in other files."""

SAMPLING: dict[str, Any] = {
    "temperature": 0.3,
    "top_k": 3,
    "top_p": 0.3,
    "min_p": 0.4,
    "top_h": 0.4,
    "typical_p": 0.4,
    "epsilon_cutoff": 0.05,
    "eta_cutoff": 0.2,
}

REFUSED: dict[str, Any] = {
    "num_beams": 2,
    "num_beam_groups": 2,
    "constraints": [object()],
    "force_words_ids": [[5]],
    "penalty_alpha": 0.5,
    "dola_layers": "low",
    "guidance_scale": 2.0,
    "token_healing": True,
    "prompt_lookup_num_tokens": 3,
    "assistant_early_exit": 1,
    "assistant_ensemble_weight": 0.5,
    "speculation_type": "dflash",
    "use_mtp": True,
    "is_assistant": True,
    "output_attentions": True,
    "output_hidden_states": True,
    "continuous_batching_config": {},
    "assistant_model": MODEL,
    "assistant_tokenizer": TOKENIZER,
    "synced_gpus": True,
    "negative_prompt_ids": IDS,
    "negative_prompt_attention_mask": torch.ones_like(IDS),
    "custom_generate": lambda *a, **k: None,
    "inputs_embeds": torch.zeros(1, LENGTH, 32),
    "labels": IDS,
    "token_type_ids": torch.zeros_like(IDS),
    "cache_position": torch.arange(LENGTH),
    "return_dict": True,
    "output_router_logits": True,
    "num_items_in_batch": 3,
    # Refused by chat alone.
    "output_scores": True,
    "output_logits": True,
    "return_dict_in_generate": True,
    "num_return_sequences": 2,
    "inputs": IDS,
    "input_ids": IDS,
    "attention_mask": torch.ones_like(IDS),
    "position_ids": torch.arange(LENGTH)[None],
    "generation_config": GenerationConfig(),
    "streamer": object(),
    "tokenizer": TOKENIZER,
    "trust_remote_code": True,
    "cache": object(),
    "past_key_values": object(),
    "cache_params": object(),
    "logits_to_keep": 1,
}

MEANINGLESS: dict[str, Any] = {
    "length_penalty": 2.0,
    "early_stopping": True,
    "diversity_penalty": 0.0,
    "low_memory": True,
    "num_assistant_tokens": 4,
    "num_assistant_tokens_schedule": "heuristic",
    "assistant_confidence_threshold": 0.3,
    "assistant_lookbehind": 3,
    "target_lookbehind": 3,
    "max_matching_ngram_size": 3,
    "use_cache": False,
    "cache_config": {"nbits": 4},
    "max_cache_len": 99,
    "prefill_chunk_size": 4,
    "cache_implementation": "dynamic",
    "compile_config": CompileConfig(),
    "disable_compile": True,
    "bos_token_id": 9,
    "decoder_start_token_id": 9,
    "_from_model_config": True,
    "transformers_version": "4.0",
    "trust_remote_code": False,
    "logits_to_keep": 1,
    "assistant_tokenizer": TOKENIZER,
    "pad_token_id": 9,
}


def rules(way: Way, status: Status) -> list[Rule]:
    return [rule for rule in TABLE.values() if rule.verdicts[way].status is status]


def test_every_name_of_transformers_is_in_the_table() -> None:
    """A newer transformers with a new option fails here until somebody has decided about it."""
    config = set(GenerationConfig().to_dict()) | {n for n in vars(GenerationConfig()) if not n.startswith("_")}
    arguments = set(inspect.signature(GenerationMixin.generate).parameters) - {"self", "kwargs"}
    forward = set(inspect.signature(LlamaForCausalLM.forward).parameters) - {"self", "kwargs"}
    assert config | arguments | forward <= set(TABLE)


def test_every_honoured_option_has_a_witness() -> None:
    for way in Way:
        shown = {*GREEDY, *SAME_ANSWER, *SAMPLING}
        assert {rule.name for rule in rules(way, Status.HONOURED)} <= shown
        assert {rule.name for rule in rules(way, Status.REFUSED)} <= set(REFUSED)
        assert {rule.name for rule in rules(way, Status.MEANINGLESS)} <= set(MEANINGLESS)


@pytest.mark.parametrize("name", every(8, GREEDY))
def test_an_honoured_option_changes_the_answer_as_in_transformers(name: str) -> None:
    options = GREEDY[name]
    expected = theirs(**options).tolist()
    if name != "do_sample":
        assert expected[0][LENGTH:] != PLAIN
    for way in (Way.GENERATE, Way.CUSTOM):
        assert ours(way, **options).tolist() == expected
    if "max_length" not in options:
        options = {k: v for k, v in options.items() if k != "tokenizer"}
        assert chatted(**options) == expected[0][LENGTH:]
    else:
        assert engine().chat(TEXT, max_length=LENGTH + 4).token_ids == expected[0][LENGTH:]


@pytest.mark.parametrize("name", every(7, SAME_ANSWER))
def test_an_honoured_option_that_leaves_this_answer_as_it_is(name: str) -> None:
    options = SAME_ANSWER[name]
    expected = theirs(**options)
    for way in (Way.GENERATE, Way.CUSTOM):
        output = ours(way, **options)
        if "return_dict_in_generate" not in options:
            assert output.tolist() == expected.tolist()
            continue
        assert output.sequences.tolist() == expected.sequences.tolist()
        for field in ("scores", "logits"):
            mine, wanted = getattr(output, field), getattr(expected, field)
            assert (mine is None) == (wanted is None)
            if wanted is not None:
                torch.testing.assert_close(torch.cat(mine), torch.cat(wanted), atol=1e-4, rtol=1e-4)
    if TABLE[name].verdicts[Way.CHAT].status is Status.HONOURED and name != "max_length":
        assert chatted(**options) == expected[0, LENGTH:].tolist()


@pytest.mark.parametrize("name", every(4, SAMPLING))
def test_a_sampling_option_leaves_the_scores_that_transformers_leaves(name: str) -> None:
    options = {"do_sample": True, "return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 1}
    plain = theirs(**options).scores[0]
    expected = theirs(**{**options, name: SAMPLING[name]}).scores[0]
    assert not torch.equal(plain, expected)
    for way in (Way.GENERATE, Way.CUSTOM):
        scores = ours(way, **{**options, name: SAMPLING[name]}).scores[0]
        torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)
    told = {name: SAMPLING[name]} if name == "temperature" else {name: SAMPLING[name], "do_sample": True}
    reply = engine().chat(TEXT, max_new_tokens=1, logprobs=True, top_logprobs=20, **told)
    assert reply.top_logprobs is not None
    for token, logprob in reply.top_logprobs[0]:
        assert logprob == pytest.approx(float(torch.log_softmax(expected[0], -1)[token]), abs=1e-3)


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("name", every(9, REFUSED))
def test_a_refused_option_is_refused_by_name(way: Way, name: str) -> None:
    rule = TABLE[name]
    if rule.verdicts[way].status is not Status.REFUSED:
        return
    value = REFUSED[name]
    if way is Way.CHAT:
        with pytest.raises(UnsupportedOption, match=name):
            engine().chat(TEXT, max_new_tokens=3, **{name: value})
        return
    # What transformers refuses itself, before it calls the engine, is its own error.
    errors = (UnsupportedOption, ValueError, TypeError) if way is Way.CUSTOM else UnsupportedOption
    with pytest.raises(errors, match=re.escape(name) if way is Way.GENERATE else None):
        ours(way, **{name: value})
    for neutral in rule.neutral:
        if way is Way.GENERATE:
            assert ours(way, **{name: neutral}).tolist() == theirs().tolist()


@pytest.mark.parametrize("name", every(12, MEANINGLESS))
def test_an_option_without_meaning_changes_neither_transformers_answer_nor_ours(name: str) -> None:
    options = {name: MEANINGLESS[name]}
    for way in Way:
        if TABLE[name].verdicts[way].status is not Status.MEANINGLESS:
            continue
        if way is Way.CHAT:
            assert chatted(**options) == PLAIN
        elif name == "bos_token_id":
            assert ours(way, **options)[0, LENGTH:].tolist() == theirs(**options)[0, LENGTH:].tolist() == PLAIN
        else:
            assert ours(way, **options)[0, LENGTH:].tolist() == PLAIN
            assert theirs(**options)[0, LENGTH:].tolist() == PLAIN


@pytest.mark.parametrize("value", ["quantized", "paged"])
def test_caches_that_change_the_tokens_are_refused(value: str) -> None:
    for call in (lambda: ours(Way.GENERATE, cache_implementation=value), lambda: chatted(cache_implementation=value)):
        with pytest.raises(UnsupportedOption, match="cache_implementation"):
            call()


OWN_VALUES: dict[str, dict[str, Any]] = {
    name: GREEDY[name]
    for name in (
        "suppress_tokens",
        "eos_token_id",
        "repetition_penalty",
        "max_new_tokens",
        "max_time",
        "min_new_tokens",
    )
}


@pytest.mark.parametrize("name", every(3, [*OWN_VALUES, "stop_strings"]))
def test_values_of_the_models_own_generation_config_count(name: str) -> None:
    values = OWN_VALUES.get(name, {"stop_strings": GREEDY["stop_strings"]["stop_strings"]})
    expected = theirs(**{"max_new_tokens": NEW, **values, "tokenizer": TOKENIZER})[0, LENGTH:].tolist()
    before = MODEL.generation_config
    MODEL.generation_config = GenerationConfig(**{**before.to_dict(), **values})
    try:
        given = {} if name == "max_new_tokens" else {"max_new_tokens": NEW}
        assert engine().chat(TEXT, **given).token_ids == expected
        if name == "stop_strings":
            with pytest.raises(UnsupportedOption, match="stop_strings"):
                engine().generate(IDS, max_new_tokens=NEW)
        else:
            assert engine().generate(IDS, do_sample=False, **given)[0, LENGTH:].tolist() == expected
    finally:
        MODEL.generation_config = before


@pytest.mark.parametrize("name", every(2, ["num_beams", "penalty_alpha", "dola_layers", "guidance_scale"]))
def test_what_the_models_own_generation_config_asks_is_refused_too(name: str) -> None:
    before = MODEL.generation_config
    MODEL.generation_config = GenerationConfig(**{**before.to_dict(), name: REFUSED[name]})
    try:
        for call in (
            lambda: engine().chat(TEXT, max_new_tokens=3),
            lambda: engine().generate(IDS, max_new_tokens=3),
            lambda: MODEL.generate(IDS, max_new_tokens=3, custom_generate=engine().custom_generate),
        ):
            with pytest.raises(UnsupportedOption, match=name):
                call()
    finally:
        MODEL.generation_config = before


def test_a_sampled_chat_by_do_sample_alone_is_temperature_one() -> None:
    sampled = chatted(do_sample=True, seed=3)
    assert sampled == chatted(temperature=1.0, seed=3) != PLAIN
    assert chatted(do_sample=False) == PLAIN


def test_the_page_of_options_is_the_table() -> None:
    page = (DOCS / "options.md").read_text(encoding="utf-8")
    assert page.endswith(as_markdown()), "docs/options.md has to end with as_markdown()"
