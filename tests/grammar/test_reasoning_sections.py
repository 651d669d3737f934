"""How reasoning sections are found in prompts and templates."""

from __future__ import annotations

import pytest

from mmspec_agent.grammar.sections import is_closed, section_left_open, section_of

PAIRS = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<think_on>", "</think_on>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|think|>", "<|/think|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|start_of_reasoning|>", "<|end_of_reasoning|>"),
]


@pytest.mark.parametrize(("opener", "closer"), PAIRS)
@pytest.mark.parametrize("space", ["", "\n", "\n\n", " "])
def test_a_section_that_the_prompt_ends_in_is_seen(opener: str, closer: str, space: str) -> None:
    section = section_left_open(f"<|user|>Hello<|assistant|>{opener}{space}")
    assert section is not None
    assert tuple(section) == (opener, closer)
    assert not is_closed(f"<|user|>Hello<|assistant|>{opener}{space}")


@pytest.mark.parametrize(("opener", "closer"), PAIRS)
def test_a_section_that_the_prompt_has_closed_is_none(opener: str, closer: str) -> None:
    prompt = f"<|assistant|>{opener}\n\n{closer}\n\n"
    assert section_left_open(prompt) is None
    assert is_closed(prompt)


@pytest.mark.parametrize(("opener", "closer"), PAIRS)
def test_a_template_shows_its_section_by_what_closes_it(opener: str, closer: str) -> None:
    section = section_of(f"{{% if thoughts %}}{opener}{{{{ thoughts }}}}{closer}{{% endif %}}")
    assert section is not None
    assert tuple(section) == (opener, closer)


@pytest.mark.parametrize(
    "prompt",
    ["", "Hello", "<|assistant|>", "what does <think> mean?<|assistant|>", "<b>", "[INST] x [/INST]", "<|end|>\n",
     "<|im_start|>assistant\n", "a <think>\nOkay."],
)  # fmt: skip
def test_other_prompts_end_in_no_section(prompt: str) -> None:
    assert section_left_open(prompt) is None
    assert not is_closed(prompt)
    assert section_of(prompt) is None
