"""`mmspec draft`: from a model folder to its own text, and to a store that drafts, without a change of answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import tiny_model
from tiny_chat import tiny_tokenizer
from typer.testing import CliRunner
from unhurried import OnPaper

from mmspec_agent import Engine
from mmspec_agent.cli.main import build
from mmspec_agent.core.drafters.counts import CountStore
from mmspec_agent.core.drafters.ngram import NgramDrafter
from mmspec_agent.core.pool.dialogues import DialogueFolder

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'][0] }}:{{ m['content'] }}]{% endfor %}"
    "{% if add_generation_prompt %}[a:{% endif %}"
)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    tiny_model("llama").save_pretrained(folder)
    return folder


def draft(*arguments: object) -> str:
    result = CliRunner().invoke(build(), ["draft", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_data_is_gone_on_with_and_counted_into_a_store(model_folder: Path, tmp_path: Path) -> None:
    text, path = tmp_path / "text", tmp_path / "counts.safetensors"
    draft("data", model_folder, text, "--tokens", 200, "--rows", 4)
    first = len(DialogueFolder.open(text).shards)
    assert "answer tokens" in draft("data", model_folder, text, "--tokens", 400, "--rows", 4)
    stored = DialogueFolder.open(text)
    assert len(stored.shards) > first
    assert sum(len(d.answer) for d in stored) >= 400
    draft("data", model_folder, text, "--tokens", 300, "--rows", 4)
    assert len(DialogueFolder.open(text).shards) == len(stored.shards)  # it held enough already
    assert "contexts" in draft("store", text, path, "--size", "1MB")

    model = tiny_model("llama")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    plain = Engine(model, tokenizer, drafters=[])
    with_store = Engine(model, tokenizer, drafters=[NgramDrafter(store=CountStore.open(path))])
    with_store.controller = OnPaper()
    accepted = 0
    for question in ("abc", "What?", "d e f"):
        for options in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 3}):
            reply = with_store.chat(question, max_new_tokens=40, **options)
            assert reply.token_ids == plain.chat(question, max_new_tokens=40, **options).token_ids
            accepted += reply.stats.accepted
    assert accepted > 0
