"""Templates that open a reasoning section: it is closed before a call or a document, in any budget, on every way."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from mmspec_agent.bench.closing import random_engine
from mmspec_agent.core.compliance import ComplianceProcessor
from mmspec_agent.core.errors import ConstraintError
from mmspec_agent.engine import Engine
from mmspec_agent.reply import Done, ReasoningPiece, Reply, StepPiece, TextPiece, ToolCallPiece

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>\n</tool_call>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nOPENED{% endif %}"
)
OPENED = ["<think>\n", "<think>", "[THINK]", "<|START_THINKING|>", "◁think▷", "<seed:think>\n"]
CLOSERS = ["</think>", "</think>", "[/THINK]", "<|END_THINKING|>", "◁/think▷", "</seed:think>"]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n"]}
FORMS: dict[str, dict[str, Any]] = {
    "required": {"tools": [{"name": "tick", "parameters": SCHEMA}], "tool_choice": "required"},
    "named": {"tools": [{"name": "tick", "parameters": SCHEMA}], "tool_choice": "tick", "parallel_tool_calls": False},
    "unrepeated": {"tools": [{"name": "tick", "parameters": SCHEMA}], "tool_choice": "any",
                   "repeated_tool_calls": False},
    "format": {"response_format": SCHEMA},
    "regex": {"response_format": {"type": "regex", "pattern": "(yes|no)!"}},
    "either": {"tools": [{"name": "tick", "parameters": SCHEMA}], "response_format": SCHEMA},
}  # fmt: skip


def opened_engine(opened: str, control: bool) -> Engine:
    """A model of random weights whose template ends with ``opened``; ``control``: its marks are single tokens."""
    engine = random_engine(5)
    tokenizer = engine.tokenizer
    tokenizer.chat_template = TEMPLATE.replace("OPENED", opened)
    if control:
        # Vocabularies grow only where the model has rows: two ids are renamed instead.
        engine = Engine(engine.model, renamed(tokenizer, opened.strip()))
    return engine


def renamed(tokenizer: Any, opener: str) -> Any:
    """The tokenizer with its last two ids spelling the section's marks."""
    import json

    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    closer = CLOSERS[[one.strip() for one in OPENED].index(opener)]
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    vocab: dict[str, int] = spec["model"]["vocab"]
    last = sorted(vocab, key=lambda text: vocab[text])[-2:]
    merges = [m for m in spec["model"]["merges"] if "".join(m if isinstance(m, list) else m.split()) not in last]
    spec["model"]["merges"] = merges
    for old, new in zip(last, (opener, closer), strict=True):
        vocab[new] = vocab.pop(old)
        mark = {"id": vocab[new], "content": new, "single_word": False, "lstrip": False, "rstrip": False}
        spec["added_tokens"].append({**mark, "normalized": False, "special": True})
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(spec)), eos_token="<|im_end|>")
    made.chat_template = tokenizer.chat_template
    return made


@pytest.fixture(scope="module")
def engines() -> dict[tuple[str, bool], Engine]:
    return {}


def engine_of(engines: dict[tuple[str, bool], Engine], opened: str, control: bool) -> Engine:
    if (opened, control) not in engines:
        engines[opened, control] = opened_engine(opened, control)
    return engines[opened, control]


def check(reply: Reply, form: str, closer: str) -> None:
    """The answer has its form and holds nothing of the section."""
    assert closer not in reply.text
    assert closer not in reply.reasoning
    if reply.tool_calls:
        assert reply.text == ""
        for call in reply.tool_calls:
            jsonschema.validate(call.arguments, SCHEMA)
    else:
        assert form in ("format", "regex", "either")
        assert reply.parsed is not None, (reply.text, reply.notes)
    assert reply.tokens[0].state == "REASONING" or reply.reasoning == ""


@pytest.mark.slow
@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_the_section_is_closed_first_in_any_budget(
    form: str, control: bool, engines: dict[tuple[str, bool], Engine]
) -> None:
    engine = engine_of(engines, OPENED[0], control)
    for budget in (50, 75):
        given = {**FORMS[form], "max_new_tokens": budget, "temperature": 1.5, "seed": budget}
        reply = engine.chat("Tick?", **given)
        check(reply, form, CLOSERS[0])
        assert len(reply.token_ids) <= budget
        assert engine.chat("Tick?", **given, speculate=False, skip_forced=False).token_ids == reply.token_ids


@pytest.mark.slow
@pytest.mark.parametrize(("opened", "closer"), list(zip(OPENED, CLOSERS, strict=True)))
def test_every_kind_of_mark_is_known(opened: str, closer: str, engines: dict[tuple[str, bool], Engine]) -> None:
    for control in (False, True):
        engine = engine_of(engines, opened, control)
        for form in ("required", "format"):
            reply = engine.chat("Tick?", **FORMS[form], max_new_tokens=60, temperature=1.5)
            check(reply, form, closer)
            assert reply.message.get("reasoning_content", "") == reply.reasoning


@pytest.mark.slow
def test_the_model_may_close_the_section_itself(engines: dict[tuple[str, bool], Engine]) -> None:
    engine = engine_of(engines, OPENED[0], True)
    closer = engine.tokenizer.convert_tokens_to_ids("</think>")
    for form in FORMS:
        reply = engine.chat("Tick?", **FORMS[form], max_new_tokens=120, sequence_bias={(closer,): 50.0})
        check(reply, form, "</think>")
        assert reply.reasoning == ""
        assert reply.token_ids[0] == closer


def test_under_auto_calls_begin_behind_the_section_only(engines: dict[tuple[str, bool], Engine]) -> None:
    engine = engine_of(engines, OPENED[0], False)
    written = 'x {"name": "tick", "arguments": 1}</think>Well.'
    ids = engine.tokenizer.encode(written, add_special_tokens=False)
    bias = {tuple(ids[: n + 1]): 1000.0 * (n + 1) for n in range(len(ids))}
    tools = FORMS["required"]["tools"]
    reply = engine.chat("Tick?", tools=tools, tool_format="json", sequence_bias=bias, max_new_tokens=len(ids))
    assert reply.reasoning == 'x {"name": "tick", "arguments": 1}'
    assert reply.text == "Well."
    assert reply.tool_calls == ()


def test_pieces_of_a_stream_add_up_and_keep_the_section_apart(engines: dict[tuple[str, bool], Engine]) -> None:
    for control in (False, True):
        for form in ("required", "format"):
            engine = engine_of(engines, OPENED[0], control)
            events = list(engine.stream("Tick?", **FORMS[form], max_new_tokens=70, temperature=1.5))
            assert isinstance(events[-1], Done)
            reply = events[-1].reply
            thought = "".join(event.text for event in events if isinstance(event, ReasoningPiece))
            said = "".join(event.text for event in events if isinstance(event, TextPiece))
            assert thought.strip() == reply.reasoning
            assert said.strip() == reply.text.strip()
            assert bool([e for e in events if isinstance(e, ToolCallPiece)]) == bool(reply.tool_calls)
            steps = [event for event in events if isinstance(event, StepPiece)]
            assert sum(len(step.tokens) for step in steps) == len(reply.token_ids)


def test_a_budget_too_small_for_both_says_why(engines: dict[tuple[str, bool], Engine]) -> None:
    engine = engine_of(engines, OPENED[0], False)
    with pytest.raises(ConstraintError, match=r"reasoning section.*</think>.*chat_template_kwargs"):
        engine.chat("Tick?", **FORMS["format"], max_new_tokens=4)


@pytest.mark.parametrize("form", ["required", "format"])
def test_a_section_that_the_template_closes_itself_is_over(form: str) -> None:
    engine = opened_engine("{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}", False)
    for seed in range(3):
        given = {**FORMS[form], "max_new_tokens": 60, "temperature": 1.5, "seed": seed}
        reply = engine.chat("Tick?", chat_template_kwargs={"enable_thinking": False}, **given)
        assert reply.reasoning == ""
        assert "REASONING" not in {token.state for token in reply.tokens}
        check(reply, form, "</think>")


def test_a_section_that_the_model_may_open_itself(engines: dict[tuple[str, bool], Engine]) -> None:
    engine = opened_engine("{% if enable_thinking is false %}</think>{% endif %}", False)
    ids = engine.tokenizer.encode("<think>", add_special_tokens=False)
    bias = {tuple(ids[: n + 1]): 1000.0 * (n + 1) for n in range(len(ids))}
    reply = engine.chat("Tick?", **FORMS["required"], max_new_tokens=80, sequence_bias=bias)
    check_open = [token.state for token in reply.tokens[: len(ids)]]
    assert check_open[-1] == "REASONING"
    assert reply.tool_calls
    assert reply.text == ""


@pytest.mark.slow
def test_compliance_goes_with_a_section(engines: dict[tuple[str, bool], Engine]) -> None:
    for control in (False, True):
        engine = engine_of(engines, OPENED[0], control)
        for form in ("required", "format", "either"):
            given = {**FORMS[form], "compliance": ComplianceProcessor(["zebra crossing"])}
            check(engine.chat("Tick?", **given, max_new_tokens=80, temperature=1.0), form, "</think>")


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("stop", [["e", " "], ["</think>"], ["<think>", "\n"]])
def test_stop_strings_cut_neither_the_section_nor_the_call_behind_it(
    stop: list[str], control: bool, engines: dict[tuple[str, bool], Engine]
) -> None:
    engine = engine_of(engines, OPENED[0], control)
    given: dict[str, Any] = {**FORMS["required"], "max_new_tokens": 60, "temperature": 1.5}
    assert engine.chat("Tick?", **given, stop=stop).token_ids == engine.chat("Tick?", **given).token_ids
    closed = engine.chat("Tick?", **FORMS["format"], max_new_tokens=60, temperature=1.5, stop=["</think>"])
    assert closed.parsed is not None


def test_a_document_that_a_stop_string_cut_says_so(engines: dict[tuple[str, bool], Engine]) -> None:
    engine = random_engine(5)
    reply = engine.chat("Tick?", response_format=SCHEMA, max_new_tokens=60, stop=['"'])
    assert (reply.text, reply.parsed) == ("{", None)
    assert "stop string" in reply.notes["invalid"]
