"""`mmspec call` and `mmspec bench calls`, with a small model of random weights in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mmspec_agent.bench.call_tasks import load_tasks
from mmspec_agent.bench.calls import CallsOptions, run
from mmspec_agent.bench.closing import random_model, small_tokenizer
from mmspec_agent.bench.outlines_arm import call_schema, read_calls
from mmspec_agent.cli.call import payer
from mmspec_agent.cli.main import build
from mmspec_agent.core.errors import OptionError
from mmspec_agent.models.progress import Silent

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "maxLength": 8}, "deep": {"type": "boolean"}},
            "required": ["word", "deep"],
        },
    },
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with the small tokenizer."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = small_tokenizer()
    random_model(len(tokenizer), tokenizer.eos_token_id, seed=2).to(torch.float32).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(build(), ["call", "What is a lamp?", *map(str, arguments)])


@pytest.mark.parametrize("shape", ["list", "object", "one", "mcp"])
def test_a_call_as_json(folder: Path, tmp_path: Path, shape: str) -> None:
    mcp = {"name": "look", "inputSchema": TOOL["function"]["parameters"]}
    given = {"list": [TOOL], "object": {"tools": [TOOL]}, "one": TOOL, "mcp": {"tools": [mcp]}}[shape]
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(given))
    done = call("--tools", tools, "--json", "--model", folder, "--dtype", "fp32")
    assert done.exit_code == 0, done.output
    reply = json.loads(done.stdout)
    assert [one["name"] for one in reply["tool_calls"]] == ["look"]
    assert set(reply["tool_calls"][0]["arguments"]) == {"word", "deep"}
    assert sum(reply["paid_by"].values()) == reply["stats"]["emitted"]
    assert json.loads("".join(token["text"] for token in reply["tokens"]))["name"] == "look"


def test_the_screen_names_states_payers_and_costs(folder: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    done = call("--schema", schema, "--model", folder, "--dtype", "fp32")
    assert done.exit_code == 0, done.output
    for word in ("by who paid", "by state", "■ target", "■ skipped", "KEY_NAME", "NUMBER", "forwards", "rows"):
        assert word in done.stdout


@pytest.mark.parametrize("source", ["target", "forced", "grammar:forced", "grammar:string0+", "ngram", "refusal"])
def test_sources_of_drafters_are_grouped(source: str) -> None:
    known = {"target": "target", "forced": "skipped", "refusal": "refusal"}
    assert payer(source) == known.get(source, "drafted")


@pytest.mark.parametrize("text", ["{", "3", None])
def test_files_that_cannot_be_used(tmp_path: Path, text: str | None) -> None:
    tools = tmp_path / "tools.json"
    if text is not None:
        tools.write_text(text)
    done = call("--tools", tools)
    assert isinstance(done.exception, OptionError)
    assert "--tools" in str(done.exception)


def test_tools_or_a_schema_not_both() -> None:
    assert isinstance(call().exception, OptionError)
    assert isinstance(call("--tools", "a", "--schema", "b").exception, OptionError)


def tasks_file(path: Path, count: int = 2) -> Path:
    file = path / "tasks.jsonl"
    task = {
        "category": "simple",
        "messages": [{"role": "user", "content": "Look up lamp."}],
        "tools": [TOOL],
        "answers": [{"name": "look", "arguments": {"word": ["lamp"], "deep": [True, ""]}}],
    }
    file.write_text("".join(json.dumps({"id": f"t{i}", **task}) + "\n" for i in range(count)))
    return file


def test_the_benchmark_reports_every_call(folder: Path, tmp_path: Path) -> None:
    options = CallsOptions(str(folder), tasks_file(tmp_path), None, "fp32", max_new_tokens=60)
    report = run(options, Silent()).as_dict()
    assert set(report["arms"]) == {"HF generate", "plain loop", "Rule A", "all"}
    rows = report["details"]["tasks"]
    assert [row["id"] for row in rows] == ["t0", "t1"]
    for row in rows:
        assert row["equal_to_plain"]
        assert row["equal_to_hf"]
        assert row["session_reused"] > 0
        assert row["arms"]["all"]["forwards"] <= row["arms"]["plain loop"]["forwards"]
        assert all(arm["valid"] for arm in row["arms"].values())
    names = [bar["name"] for bar in report["bars"]]
    assert "forwards × cost of a forward, relative to plain" in names
    assert "share of valid calls" in names


def test_the_command_prints_one_object_and_fails_with_its_bars(folder: Path, tmp_path: Path) -> None:
    arguments = ["bench", "calls", "--json", "--model", str(folder), "--dtype", "fp32", "--max-new-tokens", "60"]
    done = CliRunner().invoke(build(), [*arguments, "--tasks", str(tasks_file(tmp_path)), "--limit", "1"])
    report = json.loads(done.stdout)
    assert done.exit_code == (0 if all(bar["ok"] for bar in report["bars"]) else 1)
    assert report["bench"] == "calls"


@pytest.mark.parametrize("line", ["[1]", "{}", "nonsense"])
def test_a_line_that_is_no_task_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(line)
    with pytest.raises(OptionError, match="line 1"):
        load_tasks(file)


def test_outlines_gets_the_schema_of_the_call(tmp_path: Path) -> None:
    task = load_tasks(tasks_file(tmp_path))[0]
    schema = call_schema(task)
    assert schema["properties"]["name"] == {"const": "look"}
    assert schema["properties"]["arguments"]["additionalProperties"] is False
    made = read_calls('{"name": "look", "arguments": {"word": "lamp", "deep": true}}')
    assert task.is_valid(made)
    assert task.is_correct(made)
    assert read_calls('{"name": "look"') == ()
