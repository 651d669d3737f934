"""The text benchmark on a tiny model of random weights: what it counts, cuts and claims, not its speeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from unhurried import OnPaper, cost

from mmspec_agent.bench.arms import NAMES, OURS, TextArms
from mmspec_agent.bench.common import Report
from mmspec_agent.bench.forward_clock import ForwardClock
from mmspec_agent.bench.stepping import (
    GREEDY,
    HopelessDrafter,
    engine_share,
    forward_costs,
    hopeless_drafts,
    interpolated,
    open_decoder,
)
from mmspec_agent.bench.text import TextOptions, run
from mmspec_agent.core.controller import Controller
from mmspec_agent.core.errors import OptionError
from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.models.progress import Silent

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
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
    model: LlamaForCausalLM = LlamaForCausalLM(config).eval()
    return model


def byte_tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved tiny model that the benchmark can load like any other."""
    path = tmp_path_factory.mktemp("tiny")
    tiny_model().save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def report(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    prompts = tmp_path_factory.mktemp("prompts") / "own.jsonl"
    lines = [
        {"prompt": f"say the word {word} and then the word {word} again", "kind": kind, "max_new_tokens": 40}
        for kind, word in (("copy_heavy", "pear"), ("chat", "plum"), ("own", "fig"))
    ]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return run(TextOptions(str(folder), prompts, ("fp32",), repeats=2), Silent())


@pytest.mark.slow
def test_report_holds_ratios_bars_and_counts_of_every_arm(report: Report) -> None:
    found = report.as_dict()
    assert found["bench"] == "text"
    assert found["environment"]["dtypes"] == ["fp32"]
    rows = found["details"]["prompts"]
    assert [row["kind"] for row in rows] == ["copy_heavy", "chat", "own"]
    for row in rows:
        assert row["tokens_used"] + row["tokens_cut"] <= 40
        if row["tokens_used"]:
            assert set(row["seconds"]) == set(NAMES)
            assert all(len(seconds) == 2 for seconds in row["seconds"].values())
    for arms in found["arms"]["fp32"].values():
        assert set(arms) == set(NAMES)
        assert arms[OURS]["rows"] >= arms[OURS]["tokens"]


@pytest.mark.slow
def test_report_checks_tokens_hopeless_drafts_and_the_engines_share(report: Report) -> None:
    names = [bar.name for bar in report.bars]
    assert any("hopeless drafts" in name and "by rows" in name for name in names)
    assert any("engine time outside the forward" in name for name in names)
    tokens = report.details["tokens"]["fp32"]
    assert tokens["equal_to_hf"] == tokens["prompts"] == tokens["equal_to_plain_loop"]
    equal = next(bar for bar in report.bars if "very tokens" in bar.name)
    assert equal.ok


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (TextOptions(repeats=0), "--repeats 0"),
        (TextOptions(dtypes=("int3",)), "int3"),
        (TextOptions(dtypes=()), "dtype"),
    ],
)
def test_options_outside_what_is_accepted_are_refused(options: TextOptions, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        run(options, Silent())


def test_forward_clock_counts_every_arm_and_leaves_no_hook() -> None:
    model = tiny_model()
    arms = TextArms(model, byte_tokenizer())
    ids = arms.encode("abcabcabc")
    answers = {name: arms.call(name, ids, 12) for name in NAMES}
    assert len({tuple(answer.tokens) for answer in answers.values()}) == 1
    assert answers["HF generate"].forwards == answers["plain loop"].forwards == len(answers[OURS].tokens)
    assert answers["plain loop"].rows == ids.shape[1] + answers["plain loop"].forwards - 1
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_forward_clock_lets_go_when_the_work_raises() -> None:
    model = tiny_model()
    with pytest.raises(RuntimeError, match="stop"), ForwardClock(model):
        raise RuntimeError("stop")
    assert not model._forward_hooks


def test_hopeless_drafts_change_no_token_and_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    target = HFTarget(tiny_model())
    prompt = list(range(1, 30))
    plain = open_decoder(target, prompt, 60, None, Controller(enabled=False))
    drafted = open_decoder(target, prompt, 60, HopelessDrafter(255), OnPaper())
    tokens = [[e.token for step in decoder.steps() for e in step.emitted] for decoder in (plain, drafted)]
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 60
    monkeypatch.setattr("mmspec_agent.bench.stepping.Controller", OnPaper)
    result = hopeless_drafts(target, prompt, 100, {rows: cost(rows) for rows in (1, 16, 64)})
    assert 0.97 <= result.counted < 1.0
    assert any(change.startswith("down to plain") for change in result.ladder)


def test_engine_share_measures_steps_of_the_size_asked_for() -> None:
    share = engine_share(HFTarget(tiny_model()), list(range(1, 40)), 16, 4, GREEDY)
    assert share.nodes == 16
    assert 0 < share.share < 1


def test_costs_are_measured_by_rows_and_read_between() -> None:
    costs = forward_costs(HFTarget(tiny_model()), list(range(1, 20)), (0, 3, 7), 2)
    assert sorted(costs) == [1, 4, 8]
    assert interpolated({1: 1.0, 5: 2.0}, 3) == pytest.approx(1.5)
    assert interpolated({1: 1.0, 5: 2.0}, 10) == pytest.approx(4.0)
    assert interpolated({2: 1.0}, 1) == 1.0
