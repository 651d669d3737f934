"""The commands demo, chat, doctor and bench: on a tiny model here, on the reference model where it is at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from mmspec_agent.cli.console import Painter, Palette
from mmspec_agent.cli.demo import Stopwatch
from mmspec_agent.cli.demo_text import comparison
from mmspec_agent.cli.main import build, main
from mmspec_agent.models import catalog
from mmspec_agent.reply import TokenInfo

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
RUNNER = CliRunner()


def reference_lm_is_here() -> bool:
    model = catalog.offline_model("reference-lm")
    return model is not None and model.is_ready()


needs_reference_lm = pytest.mark.skipif(
    not reference_lm_is_here(), reason="reference-lm is not here: mmspec models get reference-lm"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama of random weights with a byte tokenizer, as a folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            eos_token_id=0,
            bos_token_id=None,
            pad_token_id=0,
        )
    ).save_pretrained(path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=core, chat_template=TEMPLATE).save_pretrained(path)
    return path


def test_every_command_is_registered_and_says_what_it_does() -> None:
    result = RUNNER.invoke(build(), ["--help"])
    assert result.exit_code == 0
    for command in ("demo", "chat", "bench", "doctor", "models"):
        assert command in result.output
    assert RUNNER.invoke(build(), ["bench", "text", "--help"]).exit_code == 0


def test_help_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from mmspec_agent.cli.main import build; build(); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


@pytest.mark.slow
def test_demo_shows_answer_figures_and_the_check(folder: Path) -> None:
    result = RUNNER.invoke(
        build(), ["demo", "--model", str(folder), "--prompt", "say pear and pear", "--max-new-tokens", "24"]
    )
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "say pear and pear" in said
    assert "tokens identical to transformers' generate: 24 of 24 (fp32, checked)" in said
    assert "tokens identical to our plain loop" in said
    assert "the speed of transformers' generate" in said
    assert "■ target" in said


def test_comparison_is_checked_and_never_claims_what_is_not_so() -> None:
    assert "identical" in comparison("theirs", [1, 2], [1, 2], "fp32")
    assert "differ" in comparison("theirs", [1, 2], [1, 3], "fp32")
    flipped = comparison("theirs", [1, 2], [1, 3], "bf16")
    assert "identical" not in flipped
    assert "up to token 1" in flipped


def test_a_stopwatch_counts_the_iterator_not_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def spend(seconds: float) -> float:
        nonlocal now
        now += seconds
        return seconds

    monkeypatch.setattr("mmspec_agent.cli.demo.perf_counter", lambda: now)
    watch = Stopwatch()
    for _ in watch.over(spend(1.0) for _ in range(3)):
        spend(100.0)
    assert watch.seconds == 3.0
    assert watch.call(lambda: spend(5.0)) == 5.0
    assert watch.seconds == 8.0


def test_tokens_are_painted_by_source_and_unknown_drafters_get_a_colour(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    palette = Palette()
    painter = Painter(tokenizer, palette)
    ids = tokenizer.encode("añb", add_special_tokens=False)
    sources = ["target", "ngram", "mine", "forced"]
    text = painter.paint([TokenInfo(i, source, "TEXT") for i, source in zip(ids, sources)])
    assert text.plain + painter.rest().plain == "añb"
    assert palette.style("mine") != palette.style("yours")
    assert palette.style("mine") == palette.style("mine")
    legend = palette.legend(["ngram", "mine"]).plain
    assert "ngram" in legend
    assert "'mine'" in legend


def test_chat_reads_lines_from_a_pipe(folder: Path) -> None:
    lines = "/help\n/stats\n\nhello\n/stats\n/nonsense\n/reset\n/stats\n/quit\nnever read\n"
    arguments = ["chat", "--model", str(folder), "--max-new-tokens", "8"]
    result = RUNNER.invoke(build(), arguments, input=lines)
    assert result.exit_code == 0, result.output
    assert result.output.count("No answer yet.") == 2
    assert "8 tokens in" in result.output
    assert "There is no command /nonsense" in result.output
    assert "forgotten" in result.output


def test_chat_ends_with_its_input_and_colours_do_not_change_the_text(folder: Path) -> None:
    arguments = ["chat", "--model", str(folder), "--max-new-tokens", "12"]
    plain = RUNNER.invoke(build(), arguments, input="hello\n")
    coloured = RUNNER.invoke(build(), [*arguments, "--colors"], input="hello\n")
    assert plain.exit_code == coloured.exit_code == 0
    assert plain.stdout == coloured.stdout


def test_doctor_measures_and_concludes(folder: Path) -> None:
    result = RUNNER.invoke(build(), ["doctor", "--json", "--model", str(folder), "--repeats", "2"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found["forward_ms_by_nodes"]) == ["0", "1", "2", "4", "8", "16", "32", "64"]
    assert found["model"]["class"] == "LlamaForCausalLM"
    assert found["dtypes"]["fp32"] == "native"
    assert "-bound" in found["verdict"] or "between" in found["verdict"]
    nodes = [choice["nodes"] for choice in found["controller"]]
    assert nodes == sorted(nodes)
    assert nodes[-1] > 0


def test_doctor_speaks_to_people_too(folder: Path) -> None:
    result = RUNNER.invoke(build(), ["doctor", "--model", str(folder), "--repeats", "1"])
    assert result.exit_code == 0, result.output
    for part in ("machine", "versions", "cost of a forward", "what the controller will choose", "verdict"):
        assert part in result.output


def test_bench_fails_with_status_1_where_a_bar_falls_short(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "own.jsonl"
    prompts.write_text(json.dumps({"prompt": "abc", "kind": "copy_heavy", "max_new_tokens": 20}), encoding="utf-8")
    options = ["--model", str(folder), "--prompts", str(prompts), "--dtype", "fp32", "--repeats", "1"]
    result = RUNNER.invoke(build(), ["bench", "text", "--json", *options])
    found = json.loads(result.stdout)
    assert set(found) == {"bench", "environment", "arms", "ratios", "bars", "details"}
    assert result.exit_code == (0 if all(bar["ok"] for bar in found["bars"]) else 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chat", "--model", "./none"], "none"),
        (["bench", "text", "--prompts", "none.jsonl"], "none.jsonl"),
        (["bench", "text", "--repeats", "0"], "--repeats 0"),
        (["doctor", "--dtype", "int3"], "int3"),
    ],
)
def test_errors_are_one_message_not_a_traceback(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mmspec", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    shown = capsys.readouterr().err
    assert "error: " in shown
    assert said in shown


@needs_reference_lm
@pytest.mark.reference
@pytest.mark.slow
def test_demo_on_the_reference_model_is_faster_in_forwards_and_identical() -> None:
    """By a controller that goes by what rows cost on paper: on a busy machine drafts may not pay."""
    run_main = (
        "import mmspec_agent.engine as engine; from unhurried import OnPaper; engine.Controller = OnPaper; "
        "from mmspec_agent.cli.main import main; main()"
    )
    command = [sys.executable, "-c", run_main, "demo", "--max-new-tokens", "60"]
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=580, env=environment)
    said = " ".join(done.stdout.split())
    assert "tokens identical to transformers' generate: 60 of 60 (fp32, checked)" in said
    assert "■ ngram" in said
