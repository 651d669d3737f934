"""Options of chat that are not transformers' own, and every wrong value and type that chat can be given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake import FakeDrafter, oracle, random_drafter
from texts import byte_tokenizer, chat_model
from unhurried import Unhurried

from mmspec_agent import Engine
from mmspec_agent.core.errors import MMSpecError, OptionError, PromptError
from mmspec_agent.reply import TextPiece

TOKENIZER, NEW = byte_tokenizer(), 24
QUESTION = [{"role": "user", "content": "abc"}]


def ids_of(messages: list[dict[str, Any]], **options: Any) -> list[int]:
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **options})
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False)
    return ids


IDS = ids_of(QUESTION)


def engine_with(*drafters: FakeDrafter, eos: int | None = None) -> Engine:
    made = Engine(chat_model(eos=eos), TOKENIZER, drafters=list(drafters))
    made.controller = Unhurried()
    return made


def reference(steer: Any = None, new: int = NEW, ids: list[int] = IDS) -> list[int]:
    """Token by token by hand: ``steer`` gets the tokens said and the scores [V], and returns scores."""
    model = chat_model(eos=None)
    said: list[int] = []
    for _ in range(new):
        with torch.inference_mode():
            row = model(input_ids=torch.tensor([ids + said])).logits[0, -1]
        scores = row.float().clone()
        if steer is not None:
            scores = steer(said, scores)
        said.append(int(scores.argmax()))
    return said


PLAIN = reference()


def penalised(frequency: float, presence: float) -> Any:
    def steer(said: list[int], scores: torch.Tensor) -> torch.Tensor:
        for token in set(said):
            scores[token] -= said.count(token) * frequency + presence
        return scores

    return steer


@pytest.mark.parametrize(("frequency", "presence"), [(2.0, 0.0), (0.0, 2.0), (1.3, 0.7), (-2.0, -1.0)])
def test_penalties_over_what_was_said_hold_along_every_path(frequency: float, presence: float) -> None:
    expected = reference(penalised(frequency, presence))
    assert expected != PLAIN
    for drafters in ([], [oracle(expected, len(IDS)), random_drafter(0, 250, 3)], [oracle(PLAIN, len(IDS))]):
        reply = engine_with(*drafters).chat(
            QUESTION, max_new_tokens=NEW, frequency_penalty=frequency, presence_penalty=presence
        )
        assert reply.token_ids == expected


def test_biases_by_id_by_digits_and_by_text() -> None:
    id_of_a = TOKENIZER.encode("a", add_special_tokens=False)[0]

    def steer(said: list[int], scores: torch.Tensor) -> torch.Tensor:
        scores[id_of_a] += 3.0
        scores[PLAIN[0]] -= 100
        return scores

    expected = reference(steer)
    assert expected != PLAIN
    for key in ("a", id_of_a, str(id_of_a)):
        reply = engine_with(oracle(PLAIN, len(IDS))).chat(
            QUESTION, max_new_tokens=NEW, logit_bias={key: 3, PLAIN[0]: -100}
        )
        assert reply.token_ids == expected
    for bad in ({"ab": 1}, {259: 1}, {-1: 1}, {"a": 101}, {"a": "x"}, {1.5: 1}, [1], {"": 1}):
        with pytest.raises(OptionError, match="logit_bias"):
            engine_with().chat(QUESTION, logit_bias=bad)


def test_top_logprobs_are_the_models() -> None:
    reply = engine_with(oracle(PLAIN, len(IDS))).chat(QUESTION, max_new_tokens=6, logprobs=True, top_logprobs=3)
    model = chat_model(eos=None)
    assert reply.logprobs is not None
    assert reply.top_logprobs is not None
    for at, (own, top) in enumerate(zip(reply.logprobs, reply.top_logprobs, strict=True)):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([IDS + PLAIN[:at]])).logits[0, -1]
        values, tokens = torch.log_softmax(logits.float(), -1).topk(3)
        assert [token for token, _ in top] == tokens.tolist()
        assert [value for _, value in top] == pytest.approx(values.tolist(), abs=1e-4)
        assert own == pytest.approx(float(values[0]), abs=1e-4)
    with pytest.raises(OptionError, match="logprobs"):
        engine_with().chat(QUESTION, top_logprobs=2)
    assert engine_with().chat(QUESTION, max_new_tokens=2).top_logprobs is None


def test_forced_runs_are_shown_to_processors_and_criteria_of_the_user() -> None:
    """A grammar forces tokens; a processor sees each of them, and criteria may end the reply among them."""
    lengths: list[int] = []

    def count(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        lengths.append(ids.shape[1])
        return scores

    options: dict[str, Any] = {"response_format": {"type": "object", "properties": {"aaaa": {"const": "bbbb"}}}}
    options["response_format"] |= {"required": ["aaaa"], "additionalProperties": False}
    plain = engine_with(eos=2).chat(QUESTION, max_new_tokens=40, **options)
    reply = engine_with(eos=2).chat(QUESTION, max_new_tokens=40, logits_processor=[count], **options)
    assert reply.token_ids == plain.token_ids
    assert lengths == list(range(len(IDS), len(IDS) + len(reply.token_ids)))
    stop = [lambda ids, scores, **kw: torch.tensor([ids.shape[1] >= len(IDS) + 5])]
    assert (
        engine_with(eos=2).chat(QUESTION, max_new_tokens=40, stopping_criteria=stop, **options).token_ids
        == (plain.token_ids[:5])
    )
    penalties = {"frequency_penalty": 1.0, "logit_bias": {"a": -5}}
    penalised_reply = engine_with(eos=2).chat(QUESTION, max_new_tokens=40, **penalties, **options)
    assert penalised_reply.token_ids == plain.token_ids
    assert penalised_reply.stats.forced == plain.stats.forced > 0


def test_going_on_with_the_last_message() -> None:
    begun = TOKENIZER.decode([65, 66, 67])
    messages = [*QUESTION, {"role": "assistant", "content": begun}]
    ids = ids_of(messages, add_generation_prompt=False, continue_final_message=True)
    assert ids[: len(IDS)] == IDS
    expected = reference(ids=ids, new=10)
    reply = engine_with().chat(messages, max_new_tokens=10, continue_final_message=True)
    assert reply.token_ids == expected
    assert reply.message == {"role": "assistant", "content": begun + reply.text}
    other = engine_with().chat(messages, max_new_tokens=10)
    assert other.token_ids != expected
    for bad in (QUESTION, [*QUESTION, {"role": "assistant", "content": ""}]):
        with pytest.raises(PromptError, match="continue_final_message"):
            engine_with().chat(bad, continue_final_message=True)
    with pytest.raises(OptionError, match="continue_final_message"):
        engine_with().chat(messages, continue_final_message=True, response_format={"type": "object"})


def test_a_session_goes_on_with_a_reply_that_was_cut() -> None:
    session = engine_with().session(max_new_tokens=6)
    first = session.send("abc")
    second = session.send([], continue_final_message=True)
    assert [m["role"] for m in session.messages] == ["user", "assistant"]
    assert session.messages[1]["content"] == first.text + second.text
    session.send([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], continue_final_message=True)
    assert [m["role"] for m in session.messages] == ["user", "assistant", "user", "assistant"]
    assert session.messages[3]["content"].startswith("y")


def test_what_the_template_reads() -> None:
    engine = engine_with()
    engine.tokenizer = byte_tokenizer()
    engine.tokenizer.chat_template = "{% if loud is defined and loud %}LOUD{% endif %}" + engine.tokenizer.chat_template
    quiet = engine.chat(QUESTION, max_new_tokens=4)
    loud = engine.chat(QUESTION, max_new_tokens=4, chat_template_kwargs={"loud": True})
    assert quiet.stats.prompt_tokens + 4 == loud.stats.prompt_tokens
    wrong: tuple[Any, ...] = (
        {"enable_thinking": False},
        {"messages": []},
        {"add_generation_prompt": False},
        {1: 2},
        [1],
        "x",
    )
    for bad in wrong:
        with pytest.raises(OptionError, match="chat_template_kwargs"):
            engine.chat(QUESTION, chat_template_kwargs=bad)


def _edits(tokens: list[int]) -> dict[str, list[int]]:
    return {
        "the same": tokens,
        "one replaced": [*tokens[:8], 70, *tokens[9:]],
        "two inserted": [*tokens[:8], 70, 71, *tokens[8:]],
        "two left out": [*tokens[:8], *tokens[10:]],
        "another beginning": [70, 71, 72, *tokens],
        "something else": [70, 71, 72, 73] * 5,
        "too short": tokens[:4],
    }


@pytest.mark.parametrize("kind", _edits(PLAIN))
def test_a_prediction_is_a_draft_and_never_more(kind: str) -> None:
    """Over texts of plain letters, so that a text's tokens are those of the answer."""

    def letters(said: list[int], scores: torch.Tensor) -> torch.Tensor:
        scores[[i for i in range(len(scores)) if i not in range(68, 94)]] = float("-inf")
        return scores

    def process(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return letters([], scores[0].clone())[None]

    answer = reference(letters)
    text = TOKENIZER.decode(_edits(answer)[kind])
    for prediction in (text, {"type": "content", "content": text}, {"type": "content", "content": [{"text": text}]}):
        reply = engine_with().chat(QUESTION, max_new_tokens=NEW, logits_processor=[process], prediction=prediction)
        assert reply.token_ids == answer
    counts = reply.usage["completion_tokens_details"]
    assert counts["accepted_prediction_tokens"] == reply.stats.sources["prediction"]
    if kind == "the same":
        assert counts["accepted_prediction_tokens"] >= NEW - 2
        assert reply.stats.forwards <= 3
    elif kind == "something else":
        assert counts["rejected_prediction_tokens"] > 0
    elif kind != "too short":
        assert counts["accepted_prediction_tokens"] > NEW // 2


def test_predictions_that_cannot_be_one() -> None:
    wrong: tuple[Any, ...] = (
        5,
        "",
        {"type": "content"},
        {"content": "x"},
        {"type": "content", "content": [5]},
        [],
        {},
        b"x",
    )
    for bad in wrong:
        with pytest.raises(OptionError, match="prediction"):
            engine_with().chat(QUESTION, prediction=bad)
    with pytest.raises(OptionError, match="speculate"):
        engine_with().chat(QUESTION, prediction="x", speculate=False)


def test_do_sample_and_temperature_may_not_contradict_each_other() -> None:
    for options in ({"do_sample": True, "temperature": 0.0}, {"do_sample": False, "temperature": 0.5}):
        with pytest.raises(OptionError, match="do_sample"):
            engine_with().chat(QUESTION, **options)
    with pytest.raises(OptionError, match="two names"):
        engine_with().chat(QUESTION, max_tokens=3, max_new_tokens=4)
    with pytest.raises(OptionError, match="max_length"):
        engine_with().chat(QUESTION, max_length=3)


SPECIAL, EOS = "<|im_start|>", "<|im_end|>"


@pytest.mark.parametrize("stop", [SPECIAL, "im_st", "a<|im_start|>", "<|im_start|>b", "a<|im", ">b", "ab", "b", "a"])
@pytest.mark.parametrize("written", [["a", SPECIAL, "b", "c"], ["a", "a", "b", SPECIAL, "b"], ["b", "a", SPECIAL, "b"]])
def test_stop_strings_in_special_tokens(stop: str, written: list[str]) -> None:
    """The answer ends with the token that completes the stop string, as by transformers' own criterion."""
    ids = [TOKENIZER.convert_tokens_to_ids(t) if len(t) > 1 else TOKENIZER.encode(t)[0] for t in written] + [70] * 9

    def write(shown: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, float("-inf"))
        forced[0, ids[shown.shape[1] - len(IDS)]] = 0.0
        return forced

    engine = engine_with(oracle(ids, len(IDS)))
    options: dict[str, Any] = {"max_new_tokens": 9, "logits_processor": [write]}
    theirs = engine.model.generate(
        torch.tensor([IDS]), do_sample=False, stop_strings=[stop, "never"], tokenizer=TOKENIZER, **options
    )[0, len(IDS) :].tolist()
    reply = engine.chat(QUESTION, stop=[stop, "never"], **options)
    assert reply.token_ids == theirs
    spelled = "".join(written) + TOKENIZER.decode([70] * 9)
    if stop in spelled:
        assert reply.finish_reason == "stop"
        shown = spelled[: spelled.index(stop)]
        for end in range(len(SPECIAL), 0, -1):  # what is left of a special token is not shown
            shown = shown.removesuffix(SPECIAL[:end]) if stop != "a" and end < len(SPECIAL) else shown
        assert reply.text == shown.replace(SPECIAL, "")
    pieces = [e.text for e in engine.stream(QUESTION, stop=[stop, "never"], **options) if isinstance(e, TextPiece)]
    assert "".join(pieces) == reply.text


def test_the_end_of_sequence_token_as_a_stop_string() -> None:
    for eos in (None, 2):
        engine = engine_with(eos=eos)
        reply = engine.chat(QUESTION, stop=EOS, max_new_tokens=9, logits_processor=[_writes([65, 66, 2, 67])])
        assert (reply.token_ids, reply.text, reply.finish_reason) == ([65, 66, 2], TOKENIZER.decode([65, 66]), "stop")


def _writes(ids: list[int]) -> Any:
    def write(shown: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, float("-inf"))
        forced[0, [*ids, *[70] * 99][shown.shape[1] - len(IDS)]] = 0.0
        return forced

    return write


LONE = "half \ud83d"
BAD_MESSAGES: list[Any] = [
    5,
    None,
    b"abc",
    1.5,
    object(),
    set(),
    [5],
    [None],
    [[]],
    {},
    {"role": "user"},
    {"role": 5, "content": "x"},
    {"role": [], "content": "x"},
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": {"text": "x"}}],
    [{"role": "user", "content": b"x"}],
    [{"role": "user", "content": [5]}],
    [{"role": "user", "content": [{"type": "text", "text": None}]}],
    [{"role": "user", "content": [{"type": "text", "text": LONE}]}],
    LONE,
    [{"role": "user", "content": LONE}],
    [{"role": "user", "content": "x", "name": LONE}],
    (x for x in QUESTION),
    torch.tensor([1, 2]),
]
BAD_VALUES: dict[str, list[Any]] = {
    "max_new_tokens": ["x", 0, 1.5, True, [], None.__class__],
    "temperature": ["x", -1, float("inf"), [], True],
    "seed": ["x", 1.5, True, []],
    "stop": [5, [5], [""], "", LONE, [LONE], {"a": 1}],
    "logprobs": [1, "yes"],
    "top_logprobs": [21, -1, "x"],
    "mode": [5, [], "other"],
    "beta": ["x", 2],
    "gamma": [[], 2],
    "lossy_gamma": [-1, "x"],
    "speculate": [1, "x"],
    "skip_forced": [0],
    "trace": [5],
    "cancelled": [5],
    "tools": [5, "x", [LONE]],
    "tool_choice": [LONE],
    "tool_format": [5],
    "parallel_tool_calls": ["x"],
    "json_style": [5, []],
    "unsupported": [5],
    "compliance": [5],
    "frequency_penalty": [3, "x"],
    "presence_penalty": [-3, []],
    "logits_processor": [5, [5], lambda ids, scores: scores],
    "stopping_criteria": [5, [5]],
    "prefix_allowed_tokens_fn": [5, lambda row, ids: [], lambda row, ids: [10**6], lambda row, ids: None],
    "continue_final_message": [1, "x"],
    "allow_remote": ["x"],
    "allow_local": ["x"],
    "lossy_visual_tokens": ["x", -1],
    "eos_token_id": ["x", [], [1.5]],
    "bad_words_ids": [5, [5], [[]], [["x"]], [[10**6]]],
    "suppress_tokens": [5, ["x"]],
    "repetition_penalty": ["x", -1, 0],
    "no_repeat_ngram_size": [1.5, "x"],
    "top_k": [1.5, -1],
    "top_p": ["x", 2, -1],
    "min_p": [2],
    "max_time": ["x", -1],
    "max_length": ["x", 0],
    "min_length": ["x", -1],
    "sequence_bias": [5, {(10**6,): 1.0}, "x"],
    "forced_eos_token_id": ["x", 10**6],
    "exponential_decay_length_penalty": [5, "x"],
    "watermarking_config": [5],
    "do_sample": ["x"],
    "generation": [{}],
    "given": [()],
}


@pytest.mark.parametrize("messages", BAD_MESSAGES, ids=lambda m: f"{type(m).__name__} {str(m)[:20]!a}")
def test_messages_of_every_wrong_type(messages: Any) -> None:
    engine = engine_with()
    with pytest.raises(PromptError):
        engine.chat(messages, max_new_tokens=2)
    with pytest.raises(PromptError):
        next(iter(engine.stream(messages, max_new_tokens=2)))
    with pytest.raises(PromptError):
        engine.session(max_new_tokens=2).send(messages)
    assert engine.chat("x", max_new_tokens=2).stats.emitted == 2


def test_systems_of_every_wrong_type() -> None:
    wrong: tuple[Any, ...] = (5, b"x", [], LONE, {"role": "system"})
    for system in wrong:
        with pytest.raises(PromptError):
            engine_with().session(system=system)


def test_options_of_every_wrong_type() -> None:
    engine, session = engine_with(), engine_with().session()
    for options in ({name: value} for name, values in BAD_VALUES.items() for value in values):
        with pytest.raises(MMSpecError):
            engine.chat("x", **{"max_new_tokens": 2, **options})
        with pytest.raises(MMSpecError):
            session.send("x", **{"max_new_tokens": 2, **options})
    assert session.messages == []
    assert engine.chat("x", max_new_tokens=2).stats.emitted == 2
