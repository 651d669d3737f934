"""Proof 2: ``engine.generate`` gives HF ``generate``'s tokens at temperature 0 in fp32, whatever drafts."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from fake import FakeDrafter, adversaries, eager_controller, oracle, random_drafter
from tiny import ARCHITECTURES, VOCAB, tiny_model
from transformers import StoppingCriteria, StoppingCriteriaList

from mmspec_agent import Engine
from mmspec_agent.core.errors import DrafterWarning


def engine_of(model: Any, drafters: list[FakeDrafter], nodes: int = 12) -> Engine:
    engine = Engine(model, drafters=drafters)
    engine.controller = eager_controller(nodes)
    return engine


def prompt_of(length: int, seed: int = 0, rows: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCAB - 4, (rows, length), generator=torch.Generator().manual_seed(seed))


def greedy(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    with torch.inference_mode():
        output: torch.Tensor = model.generate(ids, do_sample=False, **options)
    return output


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny_model(request.param)


@pytest.mark.slow
def test_every_architecture_with_random_trees_and_an_oracle(model: Any) -> None:
    """Past every sliding window (16 and 24 tokens), from a prompt shorter and one longer than it."""
    for length in (5, 37):
        ids = prompt_of(length)
        expected = greedy(model, ids, max_new_tokens=40)
        answer = expected[0, length:].tolist()
        right = oracle(answer, length)
        for drafters in ([], [random_drafter(length, VOCAB - 4, 3)], [random_drafter(1, VOCAB - 4, 3), right]):
            engine = engine_of(model, drafters)
            assert engine.generate(ids, max_new_tokens=40, do_sample=False).tolist() == expected.tolist()
            assert engine.last_stats is not None
            assert not engine.last_stats.dropped_drafters
        assert engine.last_stats is not None
        assert engine.last_stats.accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [*adversaries([1], 1, 5)])
def test_adversarial_drafters(name: str) -> None:
    model = tiny_model("llama")
    ids = prompt_of(9)
    expected = greedy(model, ids, max_new_tokens=30)
    engine = engine_of(model, [adversaries(expected[0, 9:].tolist(), 9, VOCAB)[name]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DrafterWarning)
        assert engine.generate(ids, max_new_tokens=30, do_sample=False).tolist() == expected.tolist()


def test_drafts_past_the_end_of_sequence_are_cut() -> None:
    model = tiny_model("llama")
    ids = prompt_of(9)
    answer = greedy(model, ids, max_new_tokens=30)[0, 9:].tolist()
    eos = next(t for i, t in enumerate(answer[5:], 5) if t not in answer[:i])
    expected = greedy(model, ids, max_new_tokens=30, eos_token_id=eos)
    assert expected.shape[1] < 39
    output = engine_of(model, [oracle(answer, 9)]).generate(ids, max_new_tokens=30, do_sample=False, eos_token_id=eos)
    assert output.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
def test_image_placeholders_are_never_verified(name: str) -> None:
    model = tiny_model(name)
    ids = prompt_of(7)
    expected = greedy(model, ids, max_new_tokens=20)
    placeholders = Engine(model).target.placeholder_ids
    assert VOCAB - 1 in placeholders
    engine = engine_of(model, [random_drafter(2, VOCAB, VOCAB - 6)])
    assert engine.generate(ids, max_new_tokens=20, do_sample=False).tolist() == expected.tolist()


def test_gpt2_up_to_the_last_learned_position() -> None:
    """256 positions: nodes past the table are cut, and the reply ends where it is full, not with an error."""
    model = tiny_model("gpt2")
    ids = prompt_of(240)
    expected = greedy(model, ids, max_length=257)
    answer = expected[0, 240:].tolist()
    for drafters in ([], [oracle([*answer, *answer * 4], 240)], [random_drafter(5, VOCAB - 4, 3)]):
        engine = engine_of(model, drafters, nodes=30)
        assert engine.generate(ids, max_new_tokens=17, do_sample=False).tolist() == expected.tolist()
        assert engine.generate(ids, max_new_tokens=60, do_sample=False).tolist() == expected.tolist()


def _padded(lengths: list[int], seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(lengths)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, longest - length :] = prompt_of(length, seed + row)[0]
        mask[row, longest - length :] = 1
    return ids, mask


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "qwen2_5_vl"])
def test_batches_and_left_padding(name: str) -> None:
    model = tiny_model(name)
    ids, mask = _padded([4, 11, 7])
    expected = greedy(model, ids, attention_mask=mask, max_new_tokens=25)
    engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3)])
    output = engine.generate(ids, attention_mask=mask, max_new_tokens=25, do_sample=False)
    assert output.tolist() == expected.tolist()


def test_rows_that_end_early_are_padded() -> None:
    model = tiny_model("llama")
    ids, mask = _padded([4, 11, 7])
    free = greedy(model, ids, attention_mask=mask, max_new_tokens=25)
    eos = [int(free[0, 14]), int(free[1, 20])]
    expected = greedy(model, ids, attention_mask=mask, max_new_tokens=25, eos_token_id=eos)
    engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3)])
    output = engine.generate(ids, attention_mask=mask, max_new_tokens=25, eos_token_id=eos, do_sample=False)
    assert output.tolist() == expected.tolist()


def test_padded_rows_with_processors_that_count_or_look_back() -> None:
    """HF shows processors the padding too; lengths and penalties follow from that."""
    model = tiny_model("llama")
    ids, mask = _padded([4, 11])
    for options in (
        {"repetition_penalty": 1.7},
        {"min_new_tokens": 12, "eos_token_id": list(range(3, 60))},
        {"no_repeat_ngram_size": 2},
        {"forced_eos_token_id": 2},
    ):
        expected = greedy(model, ids, attention_mask=mask, max_new_tokens=20, **options)
        engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3)])
        output = engine.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False, **options)
        assert output.tolist() == expected.tolist(), options


def test_lengths() -> None:
    model = tiny_model("llama")
    ids = prompt_of(9)
    for options in ({}, {"max_new_tokens": 1}, {"max_length": 21}, {"max_length": 15, "min_length": 14}):
        expected = greedy(model, ids, **options)
        output = engine_of(model, [random_drafter(0, VOCAB - 4, 3)]).generate(ids, do_sample=False, **options)
        assert output.tolist() == expected.tolist(), options


def test_custom_generate_is_the_one_line_in_existing_code() -> None:
    model = tiny_model("llama")
    ids = prompt_of(9)
    expected = greedy(model, ids, max_new_tokens=30)
    engine = engine_of(model, [oracle(expected[0, 9:].tolist(), 9)])
    output = greedy(model, ids, max_new_tokens=30, custom_generate=engine.custom_generate)
    assert output.tolist() == expected.tolist()
    assert engine.last_stats is not None
    assert engine.last_stats.forwards < 8


def test_generation_config_objects_and_dict_outputs_with_scores_and_logits() -> None:
    from transformers import GenerationConfig

    model = tiny_model("qwen3")
    ids = prompt_of(9)
    config = GenerationConfig(
        max_new_tokens=20,
        do_sample=False,
        repetition_penalty=1.3,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        pad_token_id=0,
    )
    expected: Any = model.generate(ids, generation_config=config)
    engine = engine_of(model, [oracle(expected.sequences[0, 9:].tolist(), 9)])
    for output in (
        engine.generate(ids, generation_config=config),
        model.generate(ids, generation_config=config, custom_generate=engine.custom_generate),
    ):
        assert output.sequences.tolist() == expected.sequences.tolist()
        for ours, theirs in ((output.scores, expected.scores), (output.logits, expected.logits)):
            assert len(ours) == len(theirs)
            torch.testing.assert_close(torch.cat(ours), torch.cat(theirs), atol=1e-4, rtol=1e-4)
    bare = engine_of(model, []).generate(ids, max_new_tokens=3, do_sample=False, return_dict_in_generate=True)
    assert bare.scores is None
    assert bare.logits is None


class Streamer:
    """Collects what it is given."""

    def __init__(self) -> None:
        self.got: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.got.append(value.reshape(-1).tolist())

    def end(self) -> None:
        self.ended += 1


class Counting(StoppingCriteria):  # type: ignore[misc]
    """Stops at a length; remembers what it was shown."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.seen: list[list[int]] = []
        self.scores: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.seen.append(input_ids[0].tolist())
        self.scores.append(len(scores) if scores is not None else -1)
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.length)


@pytest.mark.parametrize("way", ["generate", "custom_generate"])
def test_streamer_and_criteria_are_called_once_per_token(way: str) -> None:
    model = tiny_model("llama")
    ids = prompt_of(9)
    theirs, ours = (Streamer(), Counting(26)), (Streamer(), Counting(26))
    options: dict[str, Any] = {
        "max_new_tokens": 30,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    expected: Any = model.generate(
        ids, streamer=theirs[0], stopping_criteria=StoppingCriteriaList([theirs[1]]), **options
    )
    engine = engine_of(model, [oracle(expected.sequences[0, 9:].tolist(), 9)])
    call = engine.generate if way == "generate" else model.generate
    if way == "custom_generate":
        options["custom_generate"] = engine.custom_generate
    output: Any = call(ids, streamer=ours[0], stopping_criteria=StoppingCriteriaList([ours[1]]), **options)
    assert output.sequences.tolist() == expected.sequences.tolist()
    assert ours[0].got == theirs[0].got
    assert ours[0].ended == theirs[0].ended == 1
    assert ours[1].seen == theirs[1].seen
    assert ours[1].scores == theirs[1].scores


def test_several_return_sequences() -> None:
    model = tiny_model("llama")
    ids = prompt_of(9, rows=2)
    engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3)])
    output = engine.generate(
        ids, max_new_tokens=20, do_sample=True, temperature=2.0, num_return_sequences=3, seed=1, eos_token_id=None
    )
    assert output.shape == (6, 29)
    assert [row[:9] for row in output.tolist()] == [row for row in ids.tolist() for _ in range(3)]
    assert len({tuple(row) for row in output.tolist()}) == 6
    again = engine_of(model, []).generate(
        ids, max_new_tokens=20, do_sample=True, temperature=2.0, num_return_sequences=3, seed=1, eos_token_id=None
    )
    assert again.tolist() == output.tolist()


def test_torchs_seed_governs_sampling_unless_one_is_given() -> None:
    model = tiny_model("llama")
    ids = prompt_of(9)
    engine = engine_of(model, [random_drafter(0, VOCAB - 4, 3)])
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(engine.generate(ids, max_new_tokens=20, do_sample=True).tolist())
    assert outputs[0] == outputs[1] != outputs[2]


def test_one_architecture_quickly() -> None:
    """The others, and every adversary, are in the slow part."""
    model, ids = tiny_model("gemma3"), prompt_of(20)
    expected = greedy(model, ids, max_new_tokens=12)
    engine = engine_of(model, [random_drafter(1, VOCAB - 4, 3), oracle(expected[0, 20:].tolist(), 20)])
    assert engine.generate(ids, max_new_tokens=12, do_sample=False).tolist() == expected.tolist()
