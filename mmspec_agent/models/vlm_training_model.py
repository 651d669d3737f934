"""The model as it is trained: HF tower and projector, and the language model's layers with low-rank changes."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlavaConfig, SegformerModel
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from .vlm_training_lora import LoraModel
from .vlm_training_places import PlaceHeads
from .vlm_training_tower import DenseHeads, lexicon_ids


class Trainee(nn.Module):
    """Tower, projector, heads; `lexicon` holds the mean-removed word embeddings that tokens are aligned to."""

    lexicon: Tensor
    language: LoraModel | None

    def __init__(self, config: LlavaConfig, embedding: Tensor, tokenizer: Any) -> None:
        super().__init__()
        config.vision_config._attn_implementation = "eager"  # SDPA's backward is slow on a CPU
        self.tower = SegformerModel(config.vision_config)
        self.language = None
        self.projector = LlavaMultiModalProjector(config)
        self.heads = DenseHeads(config.vision_config.hidden_size)
        self.places = PlaceHeads(config.text_config.hidden_size)
        rows = [embedding[ids].float().mean(0) for ids in lexicon_ids(tokenizer)]
        self.register_buffer("lexicon", torch.stack(rows), persistent=False)

    def features(self, pixel_values: Tensor) -> Tensor:
        """Hidden states of the tower's last stage, [batch, tokens, width], as LLaVA selects them (layer -1)."""
        hidden: Tensor = self.tower(pixel_values, output_hidden_states=True).hidden_states[-1]
        return hidden


def open_language(model: Trainee, language_model: Any, compiled: bool) -> None:
    """Give the trainee its language model's layers, ready for low-rank changes."""
    if model.language is None:
        model.language = LoraModel(language_model)
        if compiled:
            model.language.use_compiler()


def load_language_model(path: Path) -> Any:
    """The language model in bf16, frozen."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    return model.requires_grad_(False).eval()
