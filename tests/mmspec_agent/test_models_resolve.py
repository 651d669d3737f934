"""A name becomes a model, or an error that says what to do; nothing waits for a network that is not there."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec_agent.core.errors import ModelError, ModelNotFound, OptionError
from mmspec_agent.models import catalog
from mmspec_agent.models.resolve import DTYPES, load, load_model, locate, reads_pictures, resolve_dtype


def tiny_tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {word: index for index, word in enumerate(["<unk>", "<s>", "</s>", "a", "b"])}
    raw = Tokenizer(WordLevel(words, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def text_config() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        dtype="bfloat16",
    )


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaForCausalLM

    folder = tmp_path_factory.mktemp("language")
    LlamaForCausalLM(text_config()).to(torch.bfloat16).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("MMSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_folder_is_loaded_as_stored_and_ready_to_run(language_model: Path) -> None:
    loaded = load(language_model, device="cpu")
    assert loaded.model.dtype == torch.bfloat16
    assert not loaded.model.training
    assert loaded.processor is None
    assert loaded.tokenizer.eos_token == "</s>"
    assert loaded.location.is_local
    assert loaded.location.path == str(language_model)


@pytest.mark.parametrize("dtype", ["fp32", "float32", "torch.float32", torch.float32])
def test_dtype_may_be_written_in_the_usual_ways(language_model: Path, dtype: Any) -> None:
    assert load(str(language_model), dtype=dtype, device="cpu").model.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["int3", "double precision", torch.int8, ""])
def test_other_dtypes_are_refused_with_the_accepted_ones(dtype: Any) -> None:
    with pytest.raises(OptionError, match="bf16"):
        resolve_dtype(dtype)


def test_every_dtype_name_exists() -> None:
    assert all(name == "auto" or isinstance(getattr(torch, name), torch.dtype) for name in DTYPES.values())


def test_vision_model_without_its_processor_still_reads_text(tmp_path: Path) -> None:
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=4
    )
    config = LlavaConfig(vision_config=vision, text_config=text_config(), image_token_index=7)
    LlavaForConditionalGeneration(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype="fp32", device="cpu")
    assert isinstance(loaded.model, LlavaForConditionalGeneration)
    assert loaded.processor is None
    assert loaded.tokenizer("a")["input_ids"] == [3]
    assert reads_pictures(config)
    assert not reads_pictures(text_config())


def test_reference_model_that_is_not_there_offers_its_command() -> None:
    with pytest.raises(ModelNotFound, match="mmspec models get reference-lm"):
        load("reference-lm")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("reference_lm", "Did you mean 'reference-lm'"),
        ("nobody/nothing-at-all", "Hugging Face Hub"),
        ("./no/such/folder", "There is no folder"),
        ("", "There is no folder"),
        (Path("relative-folder"), "There is no folder"),
    ],
)
def test_unknown_names_fail_at_once_and_say_what_is_accepted(name: str | Path, words: str) -> None:
    began = time.monotonic()
    with pytest.raises(ModelNotFound, match=words) as raised:
        load(name)
    assert "mmspec models get reference-lm" in str(raised.value)
    assert time.monotonic() - began < 20


def test_folder_without_a_model_and_gguf_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        locate(tmp_path)
    file = tmp_path / "weights.gguf"
    file.touch()
    for given in (tmp_path, file):
        with pytest.raises(ModelNotFound, match="GGUF"):
            locate(given)


def test_damaged_folder_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{ not json")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(tmp_path)


def test_unknown_and_contradicting_options_are_named(language_model: Path) -> None:
    with pytest.raises(OptionError, match="'revison'"):
        load(language_model, revison="main")
    with pytest.raises(OptionError, match="device_map"):
        load(language_model, device="cpu", device_map="auto")


def test_options_reach_transformers(language_model: Path) -> None:
    assert load(language_model, device="cpu", attn_implementation="eager").model.config._attn_implementation == "eager"


def test_short_form_gives_model_and_tokenizer(language_model: Path) -> None:
    model, tokenizer = load_model(language_model, dtype="bf16", device_map=None)
    assert model.dtype == torch.bfloat16
    assert tokenizer.eos_token == "</s>"


def test_folder_of_the_same_name_never_hides_a_reference_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reference-lm").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match="not on this machine yet"):
        locate("reference-lm")
    assert "reference-lm" in catalog.names()
