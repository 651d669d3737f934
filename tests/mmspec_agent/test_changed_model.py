"""KV rows belong to weights: after any change of the model nothing that was computed before is used."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from texts import chat_model
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from usable import NEW, TOKENIZER, fresh

from mmspec_agent import Engine
from mmspec_agent.core.errors import CopyError, ModelError, SessionError, UnsupportedModel
from mmspec_agent.core.weights import ModelWatch, weights_digest

Edit = Callable[[PreTrainedModel], Any]


def _layer(model: PreTrainedModel) -> Any:
    return model.model.layers[0]


def _in_place(model: PreTrainedModel) -> None:
    with torch.no_grad():
        _layer(model).self_attn.k_proj.weight.mul_(-1)


def _one_row(model: PreTrainedModel) -> None:
    with torch.no_grad():
        _layer(model).self_attn.v_proj.weight[3].zero_()


def _through_data(model: PreTrainedModel) -> None:
    _layer(model).self_attn.k_proj.weight.data.mul_(-1)


def _through_numpy(model: PreTrainedModel) -> None:
    _layer(model).self_attn.k_proj.weight.detach().numpy()[:] *= -1


def _new_data(model: PreTrainedModel) -> None:
    weight = _layer(model).self_attn.v_proj.weight
    weight.data = -weight.data


def _new_parameter(model: PreTrainedModel) -> None:
    projection = _layer(model).self_attn.v_proj
    projection.weight = torch.nn.Parameter(-projection.weight.detach())


def _state_dict(model: PreTrainedModel) -> None:
    model.load_state_dict(chat_model(7, eos=None).state_dict())


def _inner_hook(model: PreTrainedModel) -> None:
    _layer(model).self_attn.v_proj.register_forward_hook(lambda _module, _given, output: -output)


def _new_module(model: PreTrainedModel) -> None:
    _layer(model).mlp = copy.deepcopy(model.model.layers[1].mlp)


def _own_forward(model: PreTrainedModel) -> None:
    projection = _layer(model).self_attn.v_proj
    projection.forward = lambda given: -torch.nn.functional.linear(given, projection.weight)


def _optimizer(model: PreTrainedModel) -> None:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    model(input_ids=torch.tensor([[5, 9, 3]]), labels=torch.tensor([[5, 9, 3]])).loss.backward()
    optimizer.step()


def _double(model: PreTrainedModel) -> None:
    model.double()


EDITS: list[Edit] = [
    _in_place,
    _one_row,
    _through_data,
    _through_numpy,
    _new_data,
    _new_parameter,
    _state_dict,
    _inner_hook,
    _new_module,
    _own_forward,
    _optimizer,
    _double,
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__.strip("_"))
def test_nothing_computed_with_other_weights_is_used(edit: Edit) -> None:
    engine = fresh()
    session = engine.session(max_new_tokens=NEW)
    session.send("one")
    engine.chat("one", max_new_tokens=NEW)
    engine.generate(torch.full((1, 9), 7), max_new_tokens=4)
    edit(engine.model)
    reply = engine.chat("one", max_new_tokens=NEW)
    other = Engine(engine.model, TOKENIZER)
    assert reply.stats.reused_tokens == 0
    assert reply.token_ids == other.chat("one", max_new_tokens=NEW).token_ids
    second = session.send("two")
    assert second.stats.reused_tokens == 0
    ids = session._conversation.tokens[: -len(second.token_ids)]
    assert other.generate(torch.tensor([ids]), max_new_tokens=NEW)[0, len(ids) :].tolist() == second.token_ids
    assert engine.chat("one", max_new_tokens=NEW).stats.reused_tokens > 0


def _lora(model: PreTrainedModel, name: str, seed: int) -> None:
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=2, target_modules=["k_proj", "v_proj"], init_lora_weights=False)
    peft.inject_adapter_in_model(config, model, name)
    model.eval()


def _each_layer(change: Callable[[Any], Any]) -> Edit:
    def edit(model: PreTrainedModel) -> None:
        for module in list(model.modules()):
            if isinstance(module, peft.tuners.lora.LoraLayer):
                change(module)

    return edit


_second = _each_layer(lambda layer: layer.set_adapter("second"))

ADAPTER_EDITS: list[Edit] = [
    lambda model: _lora(model, "third", 3),
    _second,
    _each_layer(lambda layer: layer.enable_adapters(False)),
    _each_layer(lambda layer: layer.set_scale("first", 30.0)),
    _each_layer(lambda layer: layer.merge()),
    _each_layer(lambda layer: layer.delete_adapter("first")),
]


@pytest.mark.parametrize("edit", ADAPTER_EDITS)
def test_an_adapter_that_is_switched_voids_what_was_computed(edit: Edit) -> None:
    model = chat_model(eos=None)
    _lora(model, "second", 2)
    _lora(model, "first", 1)
    engine = Engine(model, TOKENIZER)
    engine.chat("one", max_new_tokens=NEW)
    assert engine.chat("one", max_new_tokens=NEW).stats.reused_tokens > 0
    edit(model)
    reply = engine.chat("one", max_new_tokens=NEW)
    assert reply.stats.reused_tokens == 0
    assert reply.token_ids == Engine(model, TOKENIZER).chat("one", max_new_tokens=NEW).token_ids


def test_a_wrapped_adapter_model_answers_as_its_own_generate() -> None:
    torch.manual_seed(3)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    wrapped: Any = peft.get_peft_model(chat_model(eos=None), config).eval()
    engine = Engine(wrapped, TOKENIZER)
    ids = torch.arange(5, 25)[None]
    theirs = wrapped.generate(input_ids=ids, max_new_tokens=12, do_sample=False)
    assert engine.generate(ids, max_new_tokens=12, do_sample=False).tolist() == theirs.tolist()
    ours = wrapped.generate(input_ids=ids, max_new_tokens=12, do_sample=False, custom_generate=engine.custom_generate)
    assert ours.tolist() == theirs.tolist()


def test_virtual_tokens_are_refused_by_name() -> None:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    with pytest.raises(UnsupportedModel, match="virtual tokens"):
        Engine(peft.get_peft_model(chat_model(), config).eval(), TOKENIZER)


@pytest.mark.parametrize("change", [_one_row, _second, lambda model: model.half()])
def test_a_saved_session_belongs_to_every_weight_and_to_its_adapter(change: Edit, tmp_path: Path) -> None:
    model = chat_model(eos=None)
    _lora(model, "second", 2)
    _lora(model, "first", 1)
    engine = Engine(model, TOKENIZER)
    session = engine.session(max_new_tokens=NEW)
    session.send("one")
    session.save(tmp_path)
    assert Engine(copy.deepcopy(model), TOKENIZER).resume(tmp_path).cached_tokens == session.cached_tokens
    change(model)
    with pytest.raises(SessionError, match="another model"):
        engine.resume(tmp_path)
    with pytest.raises(SessionError, match="another model"):
        Engine(model, TOKENIZER).resume(tmp_path)


def test_rows_of_former_weights_are_not_saved(tmp_path: Path) -> None:
    engine = fresh()
    session = engine.session(max_new_tokens=NEW)
    session.send("one")
    _one_row(engine.model)
    session.save(tmp_path)
    again = engine.resume(tmp_path)
    assert again.cached_tokens == 0
    assert again.send("two", max_new_tokens=NEW).token_ids == session.send("two").token_ids


@pytest.mark.parametrize("part", ["model", "model.layers.1.mlp"])
def test_training_mode_is_refused_per_request(part: str) -> None:
    engine = fresh()
    expected = engine.chat("one", max_new_tokens=NEW).token_ids
    engine.model.get_submodule(part).train()
    ids = torch.full((1, 9), 7)
    for ask in (
        lambda: engine.chat("one"),
        lambda: engine.generate(ids, max_new_tokens=4),
        lambda: engine.model.generate(ids, max_new_tokens=4, custom_generate=engine.custom_generate),
        lambda: Engine(engine.model),
    ):
        with pytest.raises(ModelError, match=r"call model\.eval\(\) first"):
            ask()
    engine.model.eval()
    assert engine.chat("one", max_new_tokens=NEW).token_ids == expected


def test_forget_drops_what_cannot_be_seen_to_be_void() -> None:
    engine = fresh()
    session = engine.session(max_new_tokens=NEW)
    session.send("one")
    engine.chat("one", max_new_tokens=NEW)
    engine.model.model.layers[0].self_attn.scaling *= 3  # a plain attribute
    engine.forget()
    reply = engine.chat("one", max_new_tokens=NEW)
    assert reply.stats.reused_tokens == session.send("two").stats.reused_tokens == 0
    assert reply.token_ids == Engine(engine.model, TOKENIZER).chat("one", max_new_tokens=NEW).token_ids


def test_a_hook_that_only_counts_the_models_forwards_voids_nothing() -> None:
    engine = fresh()
    engine.chat("one", max_new_tokens=NEW)
    engine.model.register_forward_hook(lambda *_: None)
    assert engine.chat("one", max_new_tokens=NEW).stats.reused_tokens > 0


def _watched(layers: int, width: int) -> ModelWatch:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
    )
    return ModelWatch(LlamaForCausalLM(config).eval())


def _python_calls(call: Callable[[], object]) -> int:
    """How often the interpreter enters a function, comprehension or generator."""
    entered = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal entered
        entered += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered


def test_the_look_before_a_request_is_cheap() -> None:
    few, many, wide = _watched(3, 16), _watched(33, 16), _watched(3, 64)
    calls = [_python_calls(watch.changed) for watch in (few, many, wide)]
    # What grows with the model runs in C: the interpreter does as much for 30 tensors as for 300.
    assert calls[0] == calls[1] == calls[2] < 100, calls
    tensors = [len(watch._tensors()) for watch in (few, many, wide)]
    read = [sum(piece.nbytes for piece in watch._here) for watch in (few, many, wide)]
    assert tensors[1] > 300
    assert all(size <= 16 * count for size, count in zip(read, tensors))  # of a tensor of any size
    assert read[2] == read[0]
    assert not any(watch.changed() for watch in (few, many, wide))


def test_the_digest_sees_every_byte_and_only_the_content() -> None:
    model, other = chat_model(), chat_model()
    first = weights_digest(model)
    assert weights_digest(other) == first
    with torch.no_grad():
        other.model.embed_tokens.weight[17, 5] += 1e-3
    assert weights_digest(other) != first
    assert weights_digest(chat_model().half()) != first


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_engine_is_not_copied(copied: Callable[[Engine], Any]) -> None:
    with pytest.raises(CopyError, match="Build another one"):
        copied(fresh())
