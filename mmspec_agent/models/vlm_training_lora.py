"""The language model's layers for training: fused projections with low-rank changes, attention with a bias given.

The weights are the language model's own, frozen in bf16; only the low-rank factors are parameters.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RANK = 16


class LoraLayer(nn.Module):
    """One Llama decoder layer; `qkv`, `o`, `gu`, `d` carry factors `*_a` [rank, in] and `*_b` [out, rank]."""

    PARTS = ("qkv", "o", "gu", "d")
    norm1: Tensor
    norm2: Tensor

    def __init__(self, layer: Any, config: Any, rank: int = RANK) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.eps, self.wide = config.rms_norm_eps, config.intermediate_size
        self._keep("norm1", layer.input_layernorm.weight)
        self._keep("norm2", layer.post_attention_layernorm.weight)
        self._keep("qkv", torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]))
        self._keep("o", attention.o_proj.weight)
        self._keep("gu", torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        self._keep("d", mlp.down_proj.weight)
        for part in self.PARTS:
            rows, columns = getattr(self, part).shape
            self.register_parameter(part + "_a", nn.Parameter(torch.randn(rank, columns) * columns**-0.5))
            self.register_parameter(part + "_b", nn.Parameter(torch.zeros(rows, rank)))

    def _keep(self, name: str, weight: Tensor) -> None:
        self.register_buffer(name, weight.detach().clone(), persistent=False)

    def _linear(self, x: Tensor, part: str) -> Tensor:
        weight, a, b = getattr(self, part), getattr(self, part + "_a"), getattr(self, part + "_b")
        return F.linear(x, weight) + F.linear(F.linear(x, a.to(x.dtype)), b.to(x.dtype))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * weight

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        """x [batch, n, width]; cos, sin [batch, n, 1, head_dim]; bias [batch, n, n], 0 where attended."""
        x = x + self._linear(self._attend(self._linear(self._norm(x, self.norm1), "qkv"), cos, sin, bias), "o")
        both = self._linear(self._norm(x, self.norm2), "gu")
        return x + self._linear(F.silu(both[..., : self.wide]) * both[..., self.wide :], "d")

    def _attend(self, qkv: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        batch, n, _ = qkv.shape
        groups, size = self.heads // self.kv_heads, self.head_dim
        heads = qkv.view(batch, n, -1, size)
        turned, value = heads[:, :, : self.heads + self.kv_heads], heads[:, :, self.heads + self.kv_heads :]
        half = torch.cat([-turned[..., size // 2 :], turned[..., : size // 2]], -1)
        turned = (turned * cos + half * sin).transpose(1, 2)
        query = turned[:, : self.heads].reshape(batch, self.kv_heads, groups * n, size)
        key, value = turned[:, self.heads :], value.transpose(1, 2)
        scores = (query @ key.transpose(-1, -2)).view(batch, self.kv_heads, groups, n, n) * size**-0.5
        weights = torch.softmax((scores + bias[:, None, None]).float(), -1).to(qkv.dtype)
        mixed = weights.view(batch, self.kv_heads, groups * n, n) @ value
        return mixed.view(batch, self.heads, n, size).transpose(1, 2).reshape(batch, n, -1)


class LoraModel(nn.Module):
    """The layers, the rotary embedding, the final norm and the (tied) embedding."""

    embedding: Tensor
    final: Tensor

    def __init__(self, language_model: Any, rank: int = RANK) -> None:
        super().__init__()
        config = language_model.config
        self.layers = nn.ModuleList(LoraLayer(layer, config, rank) for layer in language_model.model.layers)
        self.rotary = language_model.model.rotary_emb
        self.register_buffer("embedding", language_model.model.embed_tokens.weight.detach(), persistent=False)
        self.register_buffer("final", language_model.model.norm.weight.detach(), persistent=False)
        self._run: Callable[..., Tensor] = LoraLayer.forward

    def use_compiler(self) -> None:
        """One compiled layer for all (about twice as fast); needs a C++ compiler."""
        torch._dynamo.config.cache_size_limit = 64
        self._run = torch.compile(LoraLayer.forward, dynamic=False)

    def freeze_below(self, first: int) -> None:
        """Let only the low-rank changes of the layers from `first` on be learned: what lies below needs no gradient."""
        for index, layer in enumerate(self.layers):
            layer.requires_grad_(index >= first)

    def forward(self, inputs: Tensor, positions: Tensor, bias: Tensor) -> Tensor:
        """Final hidden states [batch, n, width] for embeddings [batch, n, width], positions [batch, n]."""
        return self.states(inputs, positions, bias)[0]

    def states(self, inputs: Tensor, positions: Tensor, bias: Tensor, taps: Sequence[int] = ()) -> list[Tensor]:
        """The same, and behind it the hidden states [batch, n, width] after each of the layers in taps."""
        cos, sin = self.rotary(inputs, positions)
        cos, sin, hidden = cos[:, :, None], sin[:, :, None], inputs
        tapped: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            hidden = self._run(layer, hidden, cos, sin, bias)
            tapped[index] = hidden
        last: LoraLayer = self.layers[0]  # type: ignore[assignment]
        return [last._norm(hidden, self.final), *(tapped[min(index, len(self.layers) - 1)] for index in taps)]
