"""The prompts of the text benchmark that ship with the package: complete, varied, and in the form chat takes."""

import json
from collections import Counter
from importlib.resources import files
from typing import Any

import pytest

KINDS = ("copy_heavy", "passage", "chat", "second_turn")


def prompts() -> list[dict[str, Any]]:
    text = (files("mmspec_agent.bench") / "data" / "text_prompts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_each_kind_is_well_represented_and_ids_are_unique() -> None:
    found = prompts()
    assert len(found) >= 24
    assert len({prompt["id"] for prompt in found}) == len(found)
    counts = Counter(prompt["kind"] for prompt in found)
    assert set(counts) == set(KINDS)
    assert min(counts.values()) >= 6


@pytest.mark.parametrize("prompt", prompts(), ids=lambda prompt: str(prompt["id"]))
def test_prompt_is_a_conversation_that_waits_for_an_answer(prompt: dict[str, Any]) -> None:
    assert set(prompt) == {"id", "kind", "messages", "max_new_tokens"}
    assert prompt["id"].startswith(f"{prompt['kind']}/")
    assert 64 <= prompt["max_new_tokens"] <= 200
    assert all(message["content"].strip() for message in prompt["messages"])
    roles = [message["role"] for message in prompt["messages"] if message["role"] != "system"]
    assert roles == (["user", "assistant", "user"] if prompt["kind"] == "second_turn" else ["user"])


def test_passages_are_long_and_second_turns_follow_long_first_ones() -> None:
    for prompt in prompts():
        words = [len(message["content"].split()) for message in prompt["messages"]]
        if prompt["kind"] == "passage":
            assert 200 <= max(words) <= 450, prompt["id"]
        if prompt["kind"] == "second_turn":
            assert words[1] >= 80, prompt["id"]
