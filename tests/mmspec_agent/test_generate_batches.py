"""Whatever a processor or criterion of a batch holds, counts or looks at: it sees what transformers shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake import oracle, random_drafter
from quick import every
from test_generate_greedy import _padded, engine_of, greedy, prompt_of
from tiny import VOCAB, tiny_model
from transformers import DynamicCache, StaticCache, StoppingCriteria, StoppingCriteriaList

from mmspec_agent.core.errors import ContextWarning, OptionError, PromptError, UnsupportedOption

ROWS, NEW = 3, 16


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


def _noise(*shape: int) -> torch.Tensor:
    return 6.0 * torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def per_row_bias() -> Callable[..., torch.Tensor]:
    bias = _noise(ROWS, VOCAB)
    return lambda ids, scores: scores + bias


class PerRowAttribute:
    """Keeps a tensor of the batch's shape as an attribute."""

    def __init__(self) -> None:
        self.bias = _noise(ROWS, VOCAB)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for row in range(len(scores)):
            scores[row] += self.bias[row]
        return scores


class CallCounter:
    """Its bias depends on how often it was called."""

    def __init__(self) -> None:
        self.calls, self.bias = 0, _noise(64, VOCAB)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return scores + self.bias[self.calls % 64]


class StatePerRow:
    """Remembers the best token of each row and bans it at the next step."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.last is not None:
            scores = scores.scatter(1, self.last[:, None], float("-inf"))
        self.last = scores.argmax(dim=-1)
        return scores


def ban_what_other_rows_said() -> Callable[..., torch.Tensor]:
    def process(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, ids[:, -1]] = float("-inf")
        return scores

    return process


def mean_over_rows() -> Callable[..., torch.Tensor]:
    return lambda ids, scores: scores - 0.5 * scores.mean(dim=0, keepdim=True)


def in_place() -> Callable[..., torch.Tensor]:
    def process(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, ids[0, -2]] -= 7.0
        return scores

    return process


class StopRow(StoppingCriteria):  # type: ignore[misc]
    """Each row ends at another length."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.tensor([input_ids.shape[1] >= 14 + 3 * row for row in range(len(input_ids))])


class StopOnAnyRow(StoppingCriteria):  # type: ignore[misc]
    """Counts its calls and looks at every row's last token."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.calls += 1
        return torch.full((len(input_ids),), self.calls >= 5 and bool((input_ids[:, -1] % 4 == 0).any()))


PROCESSORS: list[Callable[[], Any]] = [
    per_row_bias,
    PerRowAttribute,
    CallCounter,
    StatePerRow,
    ban_what_other_rows_said,
    mean_over_rows,
    in_place,
]


@pytest.mark.parametrize("make", every(3, PROCESSORS), ids=lambda make: make.__name__)
@pytest.mark.parametrize("eos", [None, list(range(3, 12))], ids=["endless", "rows that end"])
def test_processors_of_any_kind_in_a_batch(model: Any, make: Callable[[], Any], eos: Any) -> None:
    ids, mask = _padded([9, 4, 7])
    options: dict[str, Any] = {
        "attention_mask": mask,
        "max_new_tokens": NEW,
        "eos_token_id": eos,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    expected: Any = greedy(model, ids, logits_processor=[make()], **options)
    engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3), oracle(expected.sequences[0, 9:].tolist(), 9)])
    output = engine.generate(ids, do_sample=False, logits_processor=[make()], **options)
    assert output.sequences.tolist() == expected.sequences.tolist()
    for ours, theirs in ((output.scores, expected.scores), (output.logits, expected.logits)):
        torch.testing.assert_close(torch.stack(ours), torch.stack(theirs), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [StopRow, StopOnAnyRow])
@pytest.mark.parametrize("eos", [None, list(range(3, 12))], ids=["no eos", "eos"])
def test_criteria_of_any_kind_in_a_batch(model: Any, make: Callable[[], Any], eos: Any) -> None:
    """Without an end-of-sequence id transformers lets finished rows run on; with one it pads them."""
    ids = prompt_of(9, rows=ROWS)
    model.generation_config.eos_token_id, before = eos, model.generation_config.eos_token_id
    try:
        expected = greedy(model, ids, max_new_tokens=NEW, stopping_criteria=StoppingCriteriaList([make()]))
        engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3), oracle(expected[1, 9:].tolist(), 9)])
        output = engine.generate(
            ids, max_new_tokens=NEW, do_sample=False, stopping_criteria=StoppingCriteriaList([make()])
        )
    finally:
        model.generation_config.eos_token_id = before
    assert output.tolist() == expected.tolist()


def test_a_streamer_of_several_rows(model: Any) -> None:
    class Streamer:
        def __init__(self) -> None:
            self.got: list[Any] = []

        def put(self, value: torch.Tensor) -> None:
            self.got.append(value.tolist())

        def end(self) -> None:
            self.got.append("end")

    ids, theirs, ours = prompt_of(9, rows=2), Streamer(), Streamer()
    greedy(model, ids, max_new_tokens=6, streamer=theirs, eos_token_id=list(range(3, 30)))
    engine_of(model, [random_drafter(0, VOCAB - 4, 3)]).generate(
        ids, max_new_tokens=6, do_sample=False, streamer=ours, eos_token_id=list(range(3, 30))
    )
    assert ours.got == theirs.got


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("kind", [None, "static", "own"])
def test_the_cache_that_is_returned_holds_transformers_rows_and_can_be_continued(name: str, kind: str | None) -> None:
    model = tiny_model(name)
    ids, mask = _padded([9, 30])
    options: dict[str, Any] = {"max_new_tokens": 12, "return_dict_in_generate": True, "attention_mask": mask}
    caches = [DynamicCache(config=model.config), DynamicCache(config=model.config)]
    given = [{"cache": cache} if kind == "own" else {"cache_implementation": kind} for cache in caches]
    expected: Any = greedy(model, ids, **options, **given[0])
    engine = engine_of(model, [oracle(expected.sequences[0, 30:].tolist(), 30), random_drafter(0, VOCAB - 4, 3)])
    output = engine.generate(ids, do_sample=False, **options, **given[1])
    assert type(output.cache) is type(expected.cache)
    assert output.cache.get_seq_length() == expected.cache.get_seq_length() == 41
    for ours, theirs in zip(output.cache.layers, expected.cache.layers, strict=True):
        shown = ours.keys.shape[2] if kind != "static" else min(41, ours.keys.shape[2])
        padding = max(0, 21 - (41 - shown))  # of the first row; its slots are masked for good
        for a, b in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
            torch.testing.assert_close(a[1, :, :shown], b[1, :, :shown], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(a[0, :, padding:shown], b[0, :, padding:shown], atol=1e-4, rtol=1e-4)
    if kind is None:
        longer = torch.cat([mask, torch.ones(2, 12, dtype=torch.long)], dim=1)
        more = [
            greedy(model, one.sequences, attention_mask=longer, cache=one.cache, max_new_tokens=8)
            for one in (expected, output)
        ]
        assert more[1].tolist() == more[0].tolist()


def test_no_cache_is_returned_where_none_is_used(model: Any) -> None:
    output = engine_of(model, []).generate(
        prompt_of(5), max_new_tokens=3, return_dict_in_generate=True, use_cache=False
    )
    assert output.cache is None
    too_small = StaticCache(config=model.config, max_cache_len=4)
    with pytest.raises(Exception):  # noqa: B017  (as in transformers, whatever it raises there)
        greedy(model, prompt_of(5), max_new_tokens=3, cache=too_small)


def test_the_end_of_the_context_is_said() -> None:
    model = tiny_model("llama")
    engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3)])
    engine.target.text_config.max_position_embeddings = 48
    for rows in (1, 2):
        ids = prompt_of(30, rows=rows)
        with pytest.warns(ContextWarning, match="48 tokens"):
            output = engine.generate(ids, max_new_tokens=40, do_sample=False, eos_token_id=None)
        expected = greedy(model, ids, max_new_tokens=output.shape[1] - 30, eos_token_id=None)
        assert output.tolist() == expected.tolist()
        assert output.shape[1] in (48, 49)


POSITIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "spread": lambda ids, mask: torch.arange(ids.shape[1])[None] * 3,
    "shifted": lambda ids, mask: torch.arange(ids.shape[1])[None] + 5,
    "padding counted": lambda ids, mask: torch.arange(ids.shape[1]).expand_as(ids),
    "of too few tokens": lambda ids, mask: torch.arange(ids.shape[1] - 1)[None],
}


@pytest.mark.parametrize("way", ["generate", "custom_generate"])
def test_position_ids_are_those_of_the_mask_or_refused(model: Any, way: str) -> None:
    ids, mask = _padded([9, 4])
    engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3)])
    call: Any = engine.generate if way == "generate" else model.generate
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    if way == "custom_generate":
        options["custom_generate"] = engine.custom_generate
    implied = (mask.cumsum(-1) - 1).clamp(min=0)
    expected = greedy(model, ids, attention_mask=mask, max_new_tokens=8).tolist()
    assert call(ids, attention_mask=mask, position_ids=implied, **options).tolist() == expected
    assert call(ids, attention_mask=mask, position_ids=implied + 9 * (1 - mask), **options).tolist() == expected
    for name, make in POSITIONS.items():
        with pytest.raises((UnsupportedOption, ValueError, IndexError, RuntimeError), match=r"position_ids|size|shape"):
            call(ids, attention_mask=mask, position_ids=make(ids, mask), **options)
        assert name


BAD_IDS: list[Any] = [
    None,
    5,
    "text",
    b"text",
    [[3, 4]],
    [3, 4],
    ((3, 4),),
    {"input_ids": torch.tensor([[3, 4]])},
    torch.tensor([3, 4]).numpy(),
    torch.tensor(3),
    torch.tensor([3, 4]),
    torch.tensor([[[3, 4]]]),
    torch.tensor([[3.0, 4.0]]),
    torch.tensor([[True, False]]),
    torch.tensor([[3, 4]], dtype=torch.int16),
    torch.tensor([[3, 4]], dtype=torch.complex64),
    torch.zeros(1, 0, dtype=torch.long),
    torch.zeros(0, 3, dtype=torch.long),
    torch.zeros(1, 3, dtype=torch.long, device="meta"),
    torch.tensor([[3, 4]]).to_sparse(),
    torch.tensor([[3, VOCAB]]),
    torch.tensor([[3, -1]]),
]
BAD_MASKS: list[Any] = [
    [[1, 1, 1]],
    5,
    torch.ones(1, 2, dtype=torch.long),
    torch.ones(3, dtype=torch.long),
    torch.ones(1, 1, 3, 3, dtype=torch.long),
    torch.tensor([[1, 2, 1]]),
    torch.tensor([[0.0, 0.5, 1.0]]),
    torch.tensor([[1, 0, 1]]),
    torch.tensor([[1, 1, 0]]),
    torch.tensor([[0, 0, 0]]),
]


def test_prompts_of_every_wrong_type_and_shape(model: Any) -> None:
    engine = engine_of(model, [])
    for ids in BAD_IDS:
        with pytest.raises(PromptError):
            engine.generate(ids, max_new_tokens=3)
    for mask in BAD_MASKS:
        with pytest.raises(PromptError):
            engine.generate(prompt_of(3), attention_mask=mask, max_new_tokens=3)
    short = prompt_of(3).to(torch.int32)
    assert (
        engine.generate(short, max_new_tokens=3, do_sample=False).tolist()
        == greedy(model, short, max_new_tokens=3).tolist()
    )


@pytest.mark.parametrize("way", ["generate", "custom_generate"])
def test_embeddings_in_place_of_ids_are_refused_by_name(model: Any, way: str) -> None:
    engine, embeds = engine_of(model, []), torch.zeros(1, 4, 32)
    if way == "generate":
        with pytest.raises(UnsupportedOption, match="inputs_embeds"):
            engine.generate(prompt_of(4), inputs_embeds=embeds, max_new_tokens=3)
        return
    for ids in (None, prompt_of(4)):
        with pytest.raises(UnsupportedOption, match="inputs_embeds"):
            model.generate(ids, inputs_embeds=embeds, max_new_tokens=3, custom_generate=engine.custom_generate)


WRONG_VALUES: list[dict[str, Any]] = [
    {"logits_processor": 5},
    {"logits_processor": [5]},
    {"logits_processor": lambda ids, scores: scores},
    {"logits_processor": [lambda ids, scores: scores[0]]},
    {"logits_processor": [lambda ids, scores: None]},
    {"logits_processor": [lambda ids, scores: scores[:, :3]]},
    {"stopping_criteria": 5},
    {"prefix_allowed_tokens_fn": 5},
    {"prefix_allowed_tokens_fn": lambda row, ids: []},
    {"max_new_tokens": "many"},
    {"max_new_tokens": 0},
    {"max_new_tokens": 2.5},
    {"eos_token_id": "x"},
    {"bad_words_ids": [[]]},
    {"bad_words_ids": [[10**6]]},
    {"bad_words_ids": 5},
    {"suppress_tokens": "x"},
    {"sequence_bias": {(10**6,): 1.0}},
    {"sequence_bias": 3},
    {"repetition_penalty": "x"},
    {"repetition_penalty": -1.0},
    {"no_repeat_ngram_size": 1.5},
    {"forced_bos_token_id": 10**6, "max_length": 9},
    {"forced_eos_token_id": "x"},
    {"exponential_decay_length_penalty": 3},
    {"watermarking_config": 3},
    {"stop_strings": 5, "tokenizer": 3},
    {"stop_strings": ["x"]},
    {"seed": "x"},
    {"cache": 5},
    {"cache": ((1, 2),)},
    {"temperature": "x", "do_sample": True},
    {"top_k": -1, "do_sample": True},
    {"top_p": 2.0, "do_sample": True},
    {"num_return_sequences": 2},
    {"num_return_sequences": 0},
    {"generation_config": 5},
    {"generation_config": {"max_new_tokens": 3}},
    {"streamer": 5},
    {"cache_implementation": "magic"},
    {"max_time": "x"},
]


@pytest.mark.parametrize("options", every(4, WRONG_VALUES), ids=lambda options: "+".join(options))
def test_wrong_values_are_errors_of_our_own(model: Any, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        engine_of(model, []).generate(prompt_of(5), **{"max_new_tokens": 3, **options})
