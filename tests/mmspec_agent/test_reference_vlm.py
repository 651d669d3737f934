"""The reference VLM's parts on a tiny language model: layers, batches, training that resumes, building, answering."""

import copy
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mmspec_agent.core.errors import ModelError, ModelNotFound
from mmspec_agent.models import reference_vlm, vlm_training_run
from mmspec_agent.models.reference_vlm import build_model, build_processor, load_reference_vlm
from mmspec_agent.models.scenes import descriptions, questions, random_scene
from mmspec_agent.models.scenes.labels import IGNORE, label, unlabelled
from mmspec_agent.models.scenes.outside import ANSWER, outside
from mmspec_agent.models.scenes.questions import names
from mmspec_agent.models.vlm_training import StagePlan, load_checkpoint
from mmspec_agent.models.vlm_training_evaluation import answer, evaluate
from mmspec_agent.models.vlm_training_language import Encoder, Mix, Picture, _few_of_each, assemble
from mmspec_agent.models.vlm_training_lora import LoraModel
from mmspec_agent.models.vlm_training_outside import evaluate_outside
from mmspec_agent.models.vlm_training_places import Mark, PlaceHeads
from mmspec_agent.models.vlm_training_run import train_reference

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<empty_output>"]
STEPS = {"windows": 1, "tower": 1, "short": 2, "long": 1, "claims": 1}
FURTHER_STEPS = {"heads": 2, "tower": 0, "long": 1, "claims": 1}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like reference-lm: a byte-level tokenizer and a Llama of two layers, random."""
    folder = tmp_path_factory.mktemp("lm")
    texts = [t for seed in range(60) for q in questions(random_scene(seed)) for t in (q.text, q.answer)]
    texts += [q.answer for seed in range(60) for q in descriptions(random_scene(seed))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    from tokenizers import decoders

    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")
    wrapped.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(wrapped), hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=1024, tie_word_embeddings=True,
        eos_token_id=2, pad_token_id=2, bos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True, scope="module")
def small_batches() -> Iterator[None]:
    plans = tuple(StagePlan(name, 1, 2, 1e-3, warmup=1) for name in STEPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vlm_training_run, "PLAN", plans)
        further = tuple(StagePlan(name, 1, 2, 1e-3, warmup=1) for name in FURTHER_STEPS)
        patch.setattr(vlm_training_run, "FURTHER", further)
        patch.setattr("shutil.which", lambda *_, **__: None)
        yield


@pytest.fixture(scope="module")
def trained(tiny: Path, small_batches: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of a few steps."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, tiny, STEPS)
    return folder


def train(out: Path, tiny: Path, steps: dict[str, int], **more: Any) -> Path:
    return train_reference(out, steps=steps, language_model=tiny, workers=1, evaluated=0, **more)


def test_layers_for_training_compute_what_the_language_model_computes(tiny: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    layers = LoraModel(model)
    ids = torch.randint(4, 300, (2, 11))
    bias = torch.zeros(2, 11, 11).masked_fill_(~torch.ones(11, 11, dtype=torch.bool).tril(), -1e4)
    positions = torch.arange(11)[None].expand(2, -1)
    ours = layers(model.model.embed_tokens(ids), positions, bias)
    assert torch.allclose(ours, model.model(ids).last_hidden_state, atol=1e-5)


def test_merged_changes_equal_changes_beside(tiny: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    layers = LoraModel(model)
    state = {}
    for name, parameter in layers.named_parameters():
        parameter.data = torch.randn_like(parameter) * 0.1
        state[f"language.{name}"] = parameter.detach()
    ids, positions = torch.randint(4, 300, (1, 9)), torch.arange(9)[None]
    bias = torch.zeros(1, 9, 9).masked_fill_(~torch.ones(9, 9, dtype=torch.bool).tril(), -1e4)
    ours = layers(model.model.embed_tokens(ids), positions, bias)
    for index, layer in enumerate(model.model.layers):
        reference_vlm.merge_low_rank(layer, state, f"language.layers.{index}.")
    assert torch.allclose(ours, model.model(ids).last_hidden_state, atol=1e-4)


def test_branches_see_the_picture_and_themselves_only(tiny: Path) -> None:
    encoder = Encoder(build_processor(tiny).tokenizer, Mix(visual=40, text=160, described=0.5, followed=0.5))
    rng = np.random.default_rng(0)
    scenes = [random_scene(seed) for seed in range(4)]
    rows = [encoder.row(Picture(scene, label(scene), True), rng) for scene in scenes]
    embedding = torch.zeros(1000, 48)
    _, positions, bias = assemble(rows, torch.zeros(4, 144, 48), embedding, encoder)
    head = len(encoder.head)
    for r, row in enumerate(rows):
        first = head + 40
        branches = np.array(row.branches)
        assert row.groups
        assert positions[r, first] == head + 144
        for i in range(len(row.ids)):
            seen = bias[r, first + i] == 0
            assert seen[:first].all()
            own = torch.from_numpy((branches == branches[i]) & (np.arange(len(branches)) <= i))
            assert torch.equal(seen[first : first + len(row.ids)], own)
        for _, start, end in row.groups:
            assert all(target != IGNORE for target in row.targets[start:end])


def test_no_kind_of_question_crowds_out_the_others() -> None:
    scene = next(scene for scene in map(random_scene, range(100)) if len(scene.things) == 5)
    asked = questions(scene)
    kept = _few_of_each(asked)
    assert Counter(turn.kind for turn in asked)["relation"] > 2
    assert Counter(turn.kind for turn in kept) == {k: min(2, n) for k, n in Counter(t.kind for t in asked).items()}
    assert kept == [turn for turn in asked if turn in kept]


def test_visible_tokens_cover_the_objects_first(tiny: Path) -> None:
    encoder = Encoder(build_processor(tiny).tokenizer, Mix(visual=60, text=60, described=0, followed=0))
    item = label(random_scene(2))
    covered = np.flatnonzero(item.labels["background"] == IGNORE)
    row = encoder.row(Picture(random_scene(2), item, True), np.random.default_rng(0))
    assert len(row.kept) == 60
    assert len(covered) > 50 or set(covered) <= set(row.kept)


CLAIMS = Mix(visual=40, text=240, described=0.5, followed=0.5, sees=False, claims=True, outside=0.5)


def test_names_are_held_to_the_places_of_what_they_name(tiny: Path) -> None:
    """A mark stands at a name's last token, and those of a relation at its answer, with first minus second."""
    tokenizer = build_processor(tiny).tokenizer
    encoder, rng = Encoder(tokenizer, CLAIMS), np.random.default_rng(0)
    compared = 0
    for seed in range(12):
        scene = random_scene(seed, "objects")
        row = encoder.row(Picture(scene, label(scene), True), rng)
        places = {(t.x / 96 - 1, t.y / 96 - 1): name for t, name in zip(scene.things, names(scene)) if name}
        ways = {(x - p, y - q) for x, y in places for p, q in places}
        for mark in row.marks:
            if mark.compared:
                compared += 1
                assert (mark.x, mark.y) in ways
                assert row.targets[mark.at] != IGNORE
            else:
                assert tokenizer.decode(row.ids[: mark.at + 1]).endswith("the " + places[mark.x, mark.y])
    assert compared > 20


def test_what_is_no_scene_has_one_answer_and_no_places(tiny: Path) -> None:
    tokenizer = build_processor(tiny).tokenizer
    encoder = Encoder(tokenizer, CLAIMS)
    picture = Picture(random_scene(3), unlabelled(outside(3)), False)
    row = encoder.row(picture, np.random.default_rng(0))
    assert not row.marks
    assert len(row.groups) > 2
    for kind, start, end in row.groups:
        assert kind.startswith("outside")
        assert tokenizer.decode(list(row.targets[start:end])) == ANSWER + "<|im_end|>"


def test_place_heads_read_the_marked_tokens_alone() -> None:
    heads = PlaceHeads(4)
    states = torch.randn(2, 9, 4, requires_grad=True)
    marks = [[Mark(1, 0.5, -0.5, False)], [Mark(2, 0.1, 0.2, True)]]
    losses = heads.loss(states, states, marks, 3)
    sum(losses.values(), torch.zeros(())).backward()  # type: ignore[no-untyped-call]
    assert states.grad is not None
    assert sorted(map(tuple, states.grad.abs().sum(-1).nonzero().tolist())) == [(0, 4), (1, 5)]
    assert float(sum(heads.loss(states, states, [[], []], 3).values())) == 0


@pytest.mark.slow
def test_a_stage_interrupted_in_its_middle_ends_as_if_it_had_not_been(
    tiny: Path, trained: Path, tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    def stop(stage: str, step: int, done: float, losses: dict[str, float]) -> None:
        if stage == "short" and step == 1:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vlm_training_run, "SAVE_EVERY", 0.0)
        with pytest.raises(Stop):
            train(tmp_path / "parts", tiny, STEPS, progress=stop)
        train(tmp_path / "parts", tiny, STEPS)
    states: list[dict[str, Tensor]] = []
    for folder in (trained, tmp_path / "parts"):
        saved = load_checkpoint(folder)
        assert saved is not None
        states.append(saved["model"])
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_a_trained_model_is_built_answers_and_is_measured(tiny: Path, trained: Path) -> None:
    report = json.loads((trained / vlm_training_run.REPORT_NAME).read_text())
    assert report["stages"]["short"]["steps"] == STEPS["short"]
    weights = trained / vlm_training_run.WEIGHTS_NAME
    assert all(value.dtype == torch.bfloat16 for value in load_file(weights).values())
    model, processor = load_reference_vlm(torch.float32, weights=weights, language_model=tiny)
    pictures = [random_scene(seed).render() for seed in (1, 2)]
    asked = [["What color is it?", "How many objects are there?"], ["Describe the picture."]]
    together = answer(model, processor, pictures, asked, max_new_tokens=6)
    assert [len(row) for row in together] == [2, 1]
    content = [{"type": "image"}, {"type": "text", "text": asked[0][1]}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=prompt, images=pictures[0], return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    ids = ids[: int((ids == 2).nonzero()[0])] if (ids == 2).any() else ids
    assert processor.tokenizer.decode(ids) == together[0][1]
    result = evaluate(model, processor, count=2, per_scene=2, batch=2)
    asked_more = sum(result.kinds.get(kind, (0, 0))[1] for kind in ("negation", "relation"))
    assert sum(asked for _, asked in result.kinds.values()) == 4 + asked_more
    assert result.kinds["negation"][1] == 4
    outside = evaluate_outside(model, processor, count=6, batch=4)
    assert outside.share(tuple(outside.kinds)) == 0, "a model of a few steps knows no such answer"
    assert sum(asked for _, asked in outside.kinds.values()) == 6


def test_a_run_can_begin_with_the_weights_of_another(tiny: Path, trained: Path, tmp_path: Path) -> None:
    weights = trained / vlm_training_run.WEIGHTS_NAME
    heads_only = {"heads": 1, "tower": 0, "long": 0, "claims": 0}
    train(tmp_path / "heads", tiny, heads_only, begin=weights)
    untouched = load_file(tmp_path / "heads" / vlm_training_run.WEIGHTS_NAME)
    assert all(torch.equal(value, untouched[name]) for name, value in load_file(weights).items())
    answers_only = {"heads": 0, "tower": 0, "long": 1, "claims": 0}
    train(tmp_path / "answers", tiny, answers_only, begin=weights)
    changed = load_file(tmp_path / "answers" / vlm_training_run.WEIGHTS_NAME)
    moved = {name.partition(".")[0] for name, value in load_file(weights).items() if (value != changed[name]).any()}
    assert moved == {"projector", "language"}, "the tower stays while answers are learned"
    report = json.loads(train(tmp_path, tiny, FURTHER_STEPS, begin=weights).read_text(encoding="utf-8"))
    assert {name: stage["steps"] for name, stage in report["stages"].items()} == FURTHER_STEPS
    before, after = load_file(weights), load_file(tmp_path / vlm_training_run.WEIGHTS_NAME)
    tower = [name for name in before if name.startswith("tower.") and before[name].dim() == 2]
    near = [torch.allclose(before[name].float(), after[name].float(), atol=0.02) for name in tower]
    assert all(near), "one step away, not begun anew"
    with pytest.raises(ModelNotFound, match="nowhere"):
        train(tmp_path / "other", tiny, STEPS, begin=tmp_path / "nowhere.safetensors")
    with pytest.raises(ModelError, match="not tower, projector and language"):
        train(tmp_path / "other", tiny, STEPS, begin=tiny / "model.safetensors")


def test_the_picture_reaches_the_logits(tiny: Path, trained: Path) -> None:
    weights = trained / vlm_training_run.WEIGHTS_NAME
    model, processor = load_reference_vlm(torch.float32, weights=weights, language_model=tiny)
    prompt = processor.image_token + "x"
    seen = []
    for seed in (1, 2):
        inputs = processor(text=prompt, images=random_scene(seed).render(), return_tensors="pt")
        assert int((inputs["input_ids"] == model.config.image_token_id).sum()) == 144
        with torch.no_grad():
            seen.append(model(**inputs).logits[0, -1])
    assert not torch.allclose(seen[0], seen[1])


def test_a_saved_model_is_read_by_the_auto_classes(tiny: Path, trained: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    weights = trained / vlm_training_run.WEIGHTS_NAME
    model, processor = load_reference_vlm(torch.float32, weights=weights, language_model=tiny)
    model.save_pretrained(tmp_path / "saved")
    processor.save_pretrained(tmp_path / "saved")
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "saved").eval()
    reader = AutoProcessor.from_pretrained(tmp_path / "saved")
    inputs = reader(text="<image>a", images=random_scene(5).render(), return_tensors="pt")
    expected = processor(text="<image>a", images=random_scene(5).render(), return_tensors="pt")
    assert torch.equal(inputs["pixel_values"], expected["pixel_values"])
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, model(**expected).logits)


def test_chat_template_takes_content_parts_and_plain_text(tiny: Path) -> None:
    processor = build_processor(tiny)
    picture = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    prompt = processor.apply_chat_template([{"role": "user", "content": picture}], add_generation_prompt=True)
    assert prompt == "<|im_start|>user\n<image>What is it?<|im_end|>\n<|im_start|>assistant\n"
    plain = processor.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert plain.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    turns = [{"role": "user", "content": picture}, {"role": "assistant", "content": "A cup."}]
    assert processor.apply_chat_template(turns).startswith(prompt + "A cup.<|im_end|>\n")


def test_missing_weights_and_language_model_are_named(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="train-reference"):
        load_reference_vlm(weights=tmp_path / "none.safetensors", language_model=tiny)
    here = tmp_path / "some.safetensors"
    here.touch()
    with pytest.raises(ModelNotFound, match="mmspec models get reference-lm"):
        load_reference_vlm(weights=here, language_model=tmp_path / "nowhere")


def test_building_leaves_the_language_model_as_it_was(tiny: Path, trained: Path) -> None:
    state = load_file(trained / vlm_training_run.WEIGHTS_NAME)
    language = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    before = copy.deepcopy(language.state_dict())
    build_model(language, state, 3)
    assert all(torch.equal(value, before[name]) for name, value in language.state_dict().items())


ORPHAN = """
import multiprocessing, threading, time
from mmspec_agent.models.vlm_training_run import _leave_with_parent

def work():
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    print(multiprocessing.current_process().pid, flush=True)
    time.sleep(600)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
"""


@pytest.mark.slow
def test_workers_leave_with_a_run_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert int(run.stdout.readline()) > 0
        run.kill()
        # The pipe ends when the last process that holds it is gone.
        assert run.stdout.read() == ""
