"""A thousand random combinations of options: transformers' tokens, scores and logits, or an error that says why not."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake import FakeDrafter
from texts import byte_tokenizer, chat_model
from transformers import StoppingCriteriaList, WatermarkingConfig
from unhurried import Unhurried

from mmspec_agent import Engine
from mmspec_agent.core.drafters.base import DraftView
from mmspec_agent.core.errors import ConstraintConflict, MMSpecError, UnsupportedOption
from mmspec_agent.core.tree import ROOT, DraftTree, TreeBuilder

MODEL, TOKENIZER, VOCAB = chat_model(eos=None), byte_tokenizer(), 259
BIAS = 5.0 * torch.randn(16, VOCAB, generator=torch.Generator().manual_seed(0))

Options = dict[str, Any]
Draw = Callable[[random.Random], Options]


class Knowing(FakeDrafter):
    """Knows the answer to each prompt, and hangs a wrong sibling beside each right guess."""

    def __init__(self) -> None:
        super().__init__(self._guess, "knowing")
        self.answers: dict[tuple[int, ...], list[int]] = {}

    def _guess(self, view: DraftView, budget: int) -> DraftTree:
        tokens = list(view.tokens)
        right = self.answers.get(tuple(tokens[: view.prompt_length]), [])[len(tokens) - view.prompt_length :]
        builder, parent = TreeBuilder(), ROOT
        for token in right[: min(4, budget // 2, view.remaining)]:
            builder.add(parent, (token + 7) % VOCAB, "wrong", 0.5)
            parent = builder.add(parent, token, "right", 0.9)
        return builder.build()


class Counting:
    """A processor with a state: its bias depends on how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return scores + BIAS[self.calls % 16]


def per_row(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores + BIAS[: len(scores)]


def other_rows(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    scores[:, ids[:, -1]] -= 6.0
    return scores


class StopAt:
    """A criterion with a state: each row ends after another count of calls."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.left -= 1
        return torch.tensor([self.left <= row for row in range(len(ids))])


def some(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, VOCAB) for _ in range(count)]


def ends(rng: random.Random) -> Options:
    return {"eos_token_id": some(rng, rng.choice([1, 20, 90])), "pad_token_id": rng.choice([0, 5])}


SHARED: list[Draw] = [
    lambda rng: {"repetition_penalty": rng.choice([0.6, 1.4, 3.0])},
    lambda rng: {"no_repeat_ngram_size": rng.choice([1, 2, 3])},
    lambda rng: {"encoder_repetition_penalty": rng.choice([0.3, 1.7])},
    lambda rng: {"encoder_no_repeat_ngram_size": rng.choice([1, 2])},
    lambda rng: {"bad_words_ids": [some(rng, rng.choice([1, 2])) for _ in range(30)]},
    lambda rng: {"sequence_bias": {tuple(some(rng, rng.choice([1, 2]))): rng.choice([-9.0, 6.0]) for _ in range(20)}},
    lambda rng: {"suppress_tokens": some(rng, 60)},
    lambda rng: {"begin_suppress_tokens": some(rng, 100)},
    lambda rng: {"forced_eos_token_id": some(rng, 1)[0]},
    lambda rng: {"min_new_tokens": rng.randrange(1, 8), **ends(rng)},
    lambda rng: {"min_length": rng.randrange(1, 40), **ends(rng)},
    lambda rng: {"exponential_decay_length_penalty": (rng.randrange(1, 5), 1.5), **ends(rng)},
    ends,
    lambda rng: {"renormalize_logits": True},
    lambda rng: {"remove_invalid_values": True},
    lambda rng: {"watermarking_config": WatermarkingConfig(bias=4.0, context_width=1)},
    lambda rng: {"logits_processor": [Counting()]},
    lambda rng: {"prefix_allowed_tokens_fn": lambda row, ids: [3 + (int(ids[-1]) * k + row) % 250 for k in (2, 3, 5)]},
    lambda rng: {"stopping_criteria": StoppingCriteriaList([StopAt(rng.randrange(1, 9))])},
    lambda rng: {"do_sample": True, "top_k": 1, "temperature": rng.choice([0.5, 1.0, 1.7])},
    lambda rng: {"do_sample": True, "top_p": 0.0},
    lambda rng: {"max_time": 1e6},
    lambda rng: {"use_cache": rng.choice([True, False]), "length_penalty": 2.0},
    lambda rng: {"cache_implementation": rng.choice(["dynamic", "static"])},
]
BATCH: list[Draw] = [
    lambda rng: {"logits_processor": [per_row, Counting()]},
    lambda rng: {"logits_processor": [other_rows]},
    lambda rng: {"return_dict_in_generate": True, "output_scores": True},
    lambda rng: {"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
    lambda rng: {"return_dict_in_generate": True},
    lambda rng: {"stop_strings": [TOKENIZER.decode([rng.randrange(36, 96)]) for _ in range(40)]},
]
REFUSED: list[Options] = [
    {"num_beams": 2},
    {"guidance_scale": 2.0},
    {"output_hidden_states": True},
    {"token_healing": True},
    {"prompt_lookup_num_tokens": 3},
    {"is_assistant": True},
]


def combination(rng: random.Random, drawn: list[Draw]) -> Callable[[], Options]:
    """The same random options made anew at each call, as some of them have a state."""
    chosen, seed = rng.sample(drawn, rng.choice([0, 1, 2, 2, 3, 3, 4, 5])), rng.random()

    def make() -> Options:
        options: Options = {}
        for at, draw in enumerate(chosen):
            options.update(draw(random.Random(f"{seed} {at}")))
        if "do_sample" in options:  # these can leave several tokens equally likely, one of which is then drawn
            options.pop("watermarking_config", None)
            options.pop("prefix_allowed_tokens_fn", None)
        return options

    return make


def batch(rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = [rng.randrange(2, 14) for _ in range(rng.choice([1, 1, 2, 3]))]
    ids, mask = torch.zeros(len(lengths), max(lengths), dtype=torch.long), torch.zeros(len(lengths), max(lengths))
    for row, length in enumerate(lengths):
        ids[row, -length:], mask[row, -length:] = torch.tensor(some(rng, length)), 1
    return ids, mask.long()


def close(ours: Any, theirs: Any) -> None:
    assert (ours is None) == (theirs is None)
    if theirs is not None:
        torch.testing.assert_close(torch.stack(ours), torch.stack(theirs), atol=1e-3, rtol=1e-3)


def run(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a call returns, or the error that it raises."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            return call(*args, **options)
        except Exception as error:
            return error


def compared(engine: Engine, knowing: Knowing, rng: random.Random) -> str:
    """One combination by ``generate`` or ``custom_generate``; what came of it."""
    ids, mask = batch(rng)
    make = combination(rng, SHARED + BATCH)
    length = rng.choice([{"max_new_tokens": rng.randrange(1, 10)}, {"max_length": ids.shape[1] + rng.randrange(1, 10)}])
    fixed: Options = {"attention_mask": mask, **length}
    if rng.random() < 0.2:
        fixed["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    refused = rng.choice(REFUSED) if rng.random() < 0.06 else {}
    expected = run(MODEL.generate, ids, **fixed, **make(), tokenizer=TOKENIZER)
    sequences = getattr(expected, "sequences", expected)
    knowing.answers = {}
    if isinstance(sequences, torch.Tensor):
        for row in range(len(ids)):
            prompt = tuple(ids[row][mask[row] == 1].tolist())
            knowing.answers[prompt] = sequences[row, ids.shape[1] :].tolist()
    options = {**fixed, **make(), **refused}
    if rng.random() < 0.5:
        output = run(engine.generate, ids, **options)
    else:
        output = run(MODEL.generate, ids, custom_generate=engine.custom_generate, **options)
    if refused:
        assert isinstance(output, UnsupportedOption), (options, output)
        assert next(iter(refused)) in str(output)
        return "refused"
    if isinstance(output, Exception):
        assert isinstance(output, MMSpecError) or isinstance(expected, Exception), (options, output)
        assert isinstance(expected, Exception) or isinstance(output, ConstraintConflict), (options, output)
        return "error"
    assert not isinstance(expected, Exception), (options, expected)
    assert getattr(output, "sequences", output).tolist() == sequences.tolist(), options
    if "return_dict_in_generate" in options:
        close(output.scores, expected.scores)
        close(output.logits, expected.logits)
        assert (output.cache is None) == (expected.cache is None)
        if expected.cache is not None:
            assert output.cache.get_seq_length() == expected.cache.get_seq_length()
    return "equal"


def penalties(rng: random.Random) -> Options:
    return {"frequency_penalty": rng.uniform(-2, 2), "presence_penalty": rng.uniform(-2, 2)}


CHAT: list[Draw] = [
    penalties,
    lambda rng: {"logit_bias": {token: rng.choice([-100, -3, 4]) for token in some(rng, 20)}},
    lambda rng: {"logprobs": True, "top_logprobs": 3},
    lambda rng: {"prediction": "the prediction of something", "speculate": True},
    lambda rng: {"stop": [TOKENIZER.decode([rng.randrange(36, 96)]) for _ in range(40)]},
    lambda rng: {"speculate": False, "prediction": None},
]


def as_transformers(options: Options, prompt_length: int) -> Options:
    """The same options for ``model.generate``, by processors written for this test."""
    options = dict(options)
    steps: list[Any] = []
    frequency, presence = options.pop("frequency_penalty", 0.0), options.pop("presence_penalty", 0.0)
    bias = options.pop("logit_bias", {})

    def penalise(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for token in set(said := ids[0, prompt_length:].tolist()):
            scores[0, token] -= said.count(token) * frequency + presence
        for token, value in bias.items():
            scores[0, token] += value
        return scores

    if frequency or bias:
        steps.append(penalise)
    if "stop" in options:
        options["stop_strings"] = options.pop("stop")
    for name in ("logprobs", "top_logprobs", "prediction", "speculate"):
        options.pop(name, None)
    options["logits_processor"] = [*steps, *options.get("logits_processor", ())]
    return options


def compared_chat(engine: Engine, knowing: Knowing, rng: random.Random) -> str:
    """One combination by a session; what came of it."""
    text = TOKENIZER.decode([rng.randrange(68, 94) for _ in range(rng.randrange(1, 9))])
    messages = [{"role": "user", "content": text}]
    goes_on = rng.random() < 0.2
    if goes_on:
        messages.append({"role": "assistant", "content": "so"})
    template = {"continue_final_message": True} if goes_on else {"add_generation_prompt": True}
    rendered = TOKENIZER.apply_chat_template(messages, tokenize=False, **template)
    ids = torch.tensor([TOKENIZER.encode(rendered, add_special_tokens=False)])
    make, new = combination(rng, SHARED + CHAT), {"max_new_tokens": rng.randrange(1, 12)}
    expected = run(MODEL.generate, ids, **new, **as_transformers(make(), ids.shape[1]), tokenizer=TOKENIZER)
    answer = expected[0, ids.shape[1] :].tolist() if isinstance(expected, torch.Tensor) else []
    knowing.answers = {tuple(ids[0].tolist()): answer}
    options = {**new, **make(), "continue_final_message": goes_on}
    refused = rng.choice(REFUSED) if rng.random() < 0.06 else {}
    reply = run(engine.session().send, messages, **{**options, **refused})
    if refused:
        assert isinstance(reply, UnsupportedOption), (options, reply)
        return "refused"
    if isinstance(reply, Exception):
        assert isinstance(reply, MMSpecError), (options, reply)
        assert isinstance(expected, Exception) or isinstance(reply, ConstraintConflict), (options, reply)
        return "error"
    assert reply.token_ids == answer, (options, expected)
    return "equal"


@pytest.mark.slow
@pytest.mark.parametrize(("compare", "count"), [(compared, 700), (compared_chat, 300)])
@pytest.mark.parametrize("half", [0, 1])
def test_random_combinations_of_options(compare: Callable[..., str], count: int, half: int) -> None:
    check(compare, count // 2, 1 + half)


@pytest.mark.parametrize("compare", [compared, compared_chat])
def test_a_few_combinations(compare: Callable[..., str]) -> None:
    check(compare, 12, 0)


def check(compare: Callable[..., str], count: int, seed: int) -> None:
    knowing = Knowing()
    engine = Engine(MODEL, TOKENIZER, drafters=[knowing])
    engine.controller = Unhurried()
    came = [compare(engine, knowing, random.Random(f"{seed} {at}")) for at in range(count)]
    assert came.count("equal") >= 0.8 * count
    assert came.count("error") <= 0.12 * count
