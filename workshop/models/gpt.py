"""A Llama-style language model, to be read from top to bottom.

Tokens become vectors; each layer adds what attention gathers from earlier positions and what a gated network
makes of each position alone; the last vectors are compared with every word of the vocabulary.

    x = embedding(tokens)                                  (batch, sequence, hidden)
    for each layer:   x = x + attention(norm(x));   x = x + mlp(norm(x))
    logits = head(norm(x))                                 (batch, sequence, vocabulary)

Four choices make it a Llama (arXiv:2302.13971): RMSNorm before each block, rotary positions (RoFormer,
arXiv:2104.09864, section 3.2.2), a gated SwiGLU network, and fewer key and value heads than query heads (GQA,
arXiv:2305.13245). No biases. Names are those of `transformers.LlamaForCausalLM`: state dicts load both ways.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class GPTConfig:
    """The shape of the model; ValueError where the heads do not fit the width.

    Args:
        vocab_size: words known.
        hidden_size: width of the residual stream.
        num_layers, num_heads: blocks; query heads; `hidden_size / num_heads` is the width of a head.
        num_kv_heads: key and value heads, each shared by a group of query heads (as many: plain attention).
        intermediate_size: width inside the gated network.
        tied: the head is the embedding's own matrix.
        rope_theta, norm_eps: longest rotary wavelength over 2 pi; what keeps a norm from dividing by zero.
    """

    vocab_size: int = 4096
    hidden_size: int = 256
    num_layers: int = 4
    num_heads: int = 8
    num_kv_heads: int = 4
    intermediate_size: int = 704
    tied: bool = False
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads or (self.hidden_size // self.num_heads) % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not give {self.num_heads} heads of an even width: "
                "rotary positions turn pairs, so hidden_size / num_heads must be a whole, even number"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads cannot share {self.num_kv_heads} kv heads evenly")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads


TINY = GPTConfig(
    vocab_size=256,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=192,
)
"""The model of the lessons: a step takes milliseconds, and it knows 256 words, because a token is a byte of
the Python reference manual (`workshop.models.text`). A lesson that needs another size says which and why:
``replace(TINY, num_layers=8)``."""


class RMSNorm(nn.Module):
    """Divide by the root mean square of the last dimension, in fp32; then scale (arXiv:1910.07467, eq. 4)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Scale each vector to root mean square one, in fp32, then by the weight."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


def rotary_table(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin of position times frequency theta^(-2i/head_dim), each (sequence, head_dim), fp32."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim)
    angle = torch.outer(positions.float(), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i+half}) by its position's angle. x: (batch, heads, sequence, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attend(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Tensor:
    """Attention in which ``heads / kv_heads`` query heads share a key and value head.

    No fused kernel of a GPU takes shared heads in fp32 (flash and cuDNN want 16 bits, the memory-efficient
    one equal heads), and what is left keeps every score. So there each query head gets a copy of its key's.

    query: (batch, heads, sequence, head_dim), key and value: (batch, kv_heads, sequence, head_dim).
    """
    if query.is_cuda and query.dtype == torch.float32 and query.shape[1] != key.shape[1]:
        shared = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal, enable_gqa=True)


class CoreAttention(nn.Module):
    """softmax(query key^T / sqrt(head_dim)) value, which selective recompute drops (arXiv:2205.05198)."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Query (batch, heads, seq, head_dim), key and value with num_kv_heads, to the query's shape."""
        return attend(query, key, value, is_causal=True)


class Attention(nn.Module):
    """Causal attention; heads are counted from the projections, so a tensor-parallel rank runs the same."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, kv_width = config.hidden_size, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_width, bias=False)
        self.v_proj = nn.Linear(width, kv_width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.core = CoreAttention()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same: attention over earlier positions."""
        batch, length, _ = x.shape
        projected = (project(x) for project in (self.q_proj, self.k_proj, self.v_proj))
        query, key, value = (p.view(batch, length, -1, self.head_dim).transpose(1, 2) for p in projected)
        mixed = self.core(rotate(query, cos, sin), rotate(key, cos, sin), value)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)), SwiGLU (arXiv:2002.05202, equation 6)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same: down(silu(gate) * up)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then the gated network, each on a normalised copy and added back."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same: attention and feed-forward, each with its residual."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Between tokens and head; `positions` says where the tokens are (`parallel.context_gpt` cuts them)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config, self.recompute, self.positions = config, False, torch.arange
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, seq) to vectors (batch, seq, hidden)."""
        x = self.embed_tokens(tokens)
        positions = self.positions(tokens.shape[1], device=tokens.device)
        table = rotary_table(positions, self.config.head_dim, self.config.rope_theta)
        cos, sin = (turn.to(x.dtype) for turn in table)
        for layer in self.layers:
            again = self.recompute and self.training
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if again else layer(x, cos, sin)
        return self.norm(x)


class GPT(nn.Module):
    """The language model: `model(tokens)` gives logits, `model(tokens, targets)` the mean cross-entropy.

    With `model.model.recompute = True` layers keep their input and compute the rest again (arXiv:1604.06174).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.apply(self._initialise)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """tokens, targets: (batch, sequence) whole numbers below vocab_size."""
        logits = self.lm_head(self.model(tokens))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())
