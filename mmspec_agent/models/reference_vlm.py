"""`reference-vlm`: a LLaVA model on SmolLM2-135M-Instruct with a vision tower of our own (SYSTEM.md M8).

What ships is small: tower, projector and low-rank changes of the language model, which are merged into the
model's own copy when it is built. It was trained on scenes of `mmspec_agent.models.scenes` (see `vlm_training`).
"""

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor, SegformerConfig
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from mmspec_agent.core.errors import ModelError, ModelFetchError, ModelNotFound

from . import reference_lm
from .home import home, is_complete, model_folder
from .progress import Progress, Silent

NAME = "reference-vlm"
SUMMARY = "SmolLM2-135M-Instruct with a vision tower for simple rendered pictures, bf16, 280 MB: a small VLM for demos"

DATA = Path(__file__).parent / "data"
WEIGHTS = DATA / "reference_vlm.safetensors"
REPORT = DATA / "reference_vlm_report.json"

IMAGE_TOKEN = "<image>"
REUSED_TOKEN = "<empty_output>"
"""A token SmolLM2 knows but has no use for is renamed to `IMAGE_TOKEN`, so that no embedding row is added."""

LORA_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gu": ("mlp.gate_proj", "mlp.up_proj"),
    "d": ("mlp.down_proj",),
}
"""Fused linear layers that carry one low-rank change each, and the modules they are made of."""

CHAT_TEMPLATE = """\
{%- macro put(content) -%}
{%- if content is string -%}{{ content }}{%- else -%}
{%- for part in content -%}
{%- if part['type'] in ['image', 'image_url'] -%}{{ '<image>' }}
{%- elif part['type'] == 'text' -%}{{ part['text'] }}{%- endif -%}
{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- set first = messages[0] -%}
{%- if first['role'] != 'system' and '<image>' not in put(first['content']) -%}
{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\n' + put(message['content']) + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""


def folder() -> Path:
    """Where the merged model is or would be."""
    return model_folder(NAME)


def is_ready() -> bool:
    """Whether the merged model is there and made of the weights that ship now."""
    stamp = folder() / "reference_vlm_stamp.json"
    return WEIGHTS.is_file() and is_complete(folder()) and stamp.is_file() and stamp.read_text() == _stamp()


def fetch(source: Path | None = None, hub: bool = False, progress: Progress | None = None) -> Path:
    """Merge shipped weights and `reference-lm` into a folder that `from_pretrained` reads, and return it.

    `reference-lm` is fetched first where it is missing; source and hub are passed on to `reference_lm.fetch`.
    Raises ModelFetchError.
    """
    progress = progress or Silent()
    if is_ready():
        return folder()
    if not WEIGHTS.is_file():
        raise ModelFetchError(f"This installation has no weights of {NAME} ({WEIGHTS}). {_HOW_TO_TRAIN}")
    reference_lm.fetch(source, hub, progress)
    progress.stage(f"merging {NAME}")
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=home()) as name:
        made = Path(name) / "made"
        model, processor = load_reference_vlm()
        model.save_pretrained(made)
        processor.save_pretrained(made)
        (made / "reference_vlm_stamp.json").write_text(_stamp())
        if folder().exists():
            os.replace(folder(), Path(name) / "old")
        os.replace(made, folder())
    return folder()


def _stamp() -> str:
    """What tells one set of shipped weights from another."""
    import hashlib

    return json.dumps({"sha256": hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()})


def load_reference_vlm(
    dtype: torch.dtype = torch.bfloat16, *, weights: Path | None = None, language_model: Path | None = None
) -> tuple[Any, Any]:
    """The model (LlavaForConditionalGeneration, eval mode) and its LlavaProcessor.

    weights: a safetensors file of tower, projector and low-rank changes, the shipped one by default.
    language_model: folder of SmolLM2-135M-Instruct, `reference-lm` by default. Raises as `find_parts`.
    """
    from transformers import AutoModelForCausalLM

    state, path = find_parts(weights, language_model)
    language = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    processor = build_processor(path)
    model = build_model(language, state, processor.image_token_id)
    return model.to(dtype).eval(), processor


def find_parts(weights: Path | None = None, language_model: Path | None = None) -> tuple[dict[str, Tensor], Path]:
    """Tower, projector and low-rank changes, and the folder of the language model; arguments as `load_reference_vlm`.

    Raises ModelNotFound where one of them is missing.
    Raises ModelError where the file holds something else.
    """
    path = language_model or reference_lm.folder()
    if not is_complete(path):
        raise ModelNotFound(f"{NAME} needs reference-lm, which is not in {path}. Run `mmspec models get reference-lm`.")
    return read_weights(weights or WEIGHTS), path


def read_weights(path: Path) -> dict[str, Tensor]:
    """What `mmspec models train-reference` wrote. Raises ModelNotFound or ModelError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ModelNotFound(f"There are no weights of {NAME} at {path}. {_HOW_TO_TRAIN}")
    try:
        state: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise ModelError(f"{path} is not a safetensors file ({error}). {_HOW_TO_TRAIN}") from error
    parts = {name.partition(".")[0] for name in state}
    if parts != {"tower", "projector", "language"}:
        raise ModelError(f"{path} holds {', '.join(sorted(parts))}, not tower, projector and language. {_HOW_TO_TRAIN}")
    return state


_HOW_TO_TRAIN = "Train them with `mmspec models train-reference`, or install a release, which brings them."


def build_model(language: Any, state: dict[str, Tensor], image_token_id: int) -> LlavaForConditionalGeneration:
    """LLaVA of a language model in fp32 and the trained parts; the language model's copy takes the low-rank changes."""
    config = reference_config(copy.deepcopy(language.config), image_token_id)
    model = LlavaForConditionalGeneration(config)
    model.model.language_model.load_state_dict(language.model.state_dict())
    model.tie_weights()
    _load_part(model.model.vision_tower, state, "tower.")
    _load_part(model.model.multi_modal_projector, state, "projector.")
    for index, layer in enumerate(model.model.language_model.layers):
        merge_low_rank(layer, state, f"language.layers.{index}.")
    model.generation_config = copy.deepcopy(language.generation_config)
    return model


def _load_part(module: Any, state: dict[str, Tensor], prefix: str) -> None:
    part = {name.removeprefix(prefix): v.float() for name, v in state.items() if name.startswith(prefix)}
    module.load_state_dict(part, strict=True)


def merge_low_rank(layer: Any, state: dict[str, Tensor], prefix: str) -> None:
    """Add b @ a of each fused linear layer to the modules it is made of; nothing where the state has none."""
    for part, names in LORA_PARTS.items():
        if f"{prefix}{part}_a" not in state:
            continue
        change = state[f"{prefix}{part}_b"].float() @ state[f"{prefix}{part}_a"].float()
        start = 0
        for name in names:
            weight = layer.get_submodule(name).weight
            weight.data += change[start : start + len(weight)].to(weight.dtype)
            start += len(weight)


def build_processor(path: Path) -> LlavaProcessor:
    """LlavaProcessor on the language model's tokenizer, with an image processor that needs PIL alone."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    text = (path / "tokenizer.json").read_text(encoding="utf-8")
    renamed = Tokenizer.from_str(text.replace(f'"{REUSED_TOKEN}"', f'"{IMAGE_TOKEN}"'))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=renamed,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        extra_special_tokens={"image_token": IMAGE_TOKEN},
        padding_side="left",
    )
    images = SiglipImageProcessorPil(
        size={"height": 192, "width": 192}, image_mean=[0.5] * 3, image_std=[0.5] * 3, do_convert_rgb=True
    )
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=16,
        vision_feature_select_strategy="full",
        image_token=IMAGE_TOKEN,
        chat_template=CHAT_TEMPLATE,
    )


def reference_config(text_config: Any, image_token_id: int) -> LlavaConfig:
    """LLaVA around the language model: 192 x 192 pixels, 144 visual tokens, a tower of 4.5 M parameters.

    Segformer, since its convolutions learn shapes from few pictures; its last stage is the grid of 12 x 12 tokens."""
    vision = SegformerConfig(
        num_encoder_blocks=3,
        depths=[2, 2, 5],
        sr_ratios=[4, 2, 1],
        hidden_sizes=[32, 96, 256],
        patch_sizes=[7, 3, 3],
        strides=[4, 2, 2],
        num_attention_heads=[1, 2, 4],
        mlp_ratios=[2, 2, 4],
        hidden_act="relu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        drop_path_rate=0.0,
        reshape_last_stage=False,
        hidden_size=256,
        image_size=192,
        patch_size=16,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text_config,
        image_token_index=image_token_id,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=144,
        tie_word_embeddings=True,
    )
