"""The linear maps of a transformer block, by name, width and the way tensor parallelism cuts them.

Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) puts low-rank maps in place of the
usual three: ``h -> q_rank -> a*(n + r)`` for queries, ``h -> kv_rank + r`` and ``kv_rank -> a*(n + v)`` for
keys and values, with ``n`` and ``r`` the parts of a head without and with rotary positions and ``v`` the
width of its values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from workshop.facts.model import ModelSpec


class Linear(NamedTuple):
    """One linear map ``inputs -> outputs`` of a block.

    ``split`` says how tensor parallelism cuts it: ``"column"`` (outputs divided), ``"row"`` (inputs divided)
    or ``"none"`` (kept whole), as in Shoeybi et al. 2019 (arXiv 1909.08053).  ``copies`` is the number of
    such maps in the layer (experts); ``active`` the number one token passes through.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    split: str = "column"
    copies: int = 1
    active: int = 1

    @property
    def weights(self) -> int:
        """Elements of one copy's weight matrix."""
        return self.inputs * self.outputs

    @property
    def params(self) -> int:
        """Parameters of all copies, biases included."""
        return self.copies * (self.weights + (self.outputs if self.bias else 0))


def attention(spec: ModelSpec) -> tuple[Linear, ...]:
    """The linear maps of one attention, queries first."""
    h, bias = spec.hidden_size, spec.qkv_bias
    out = Linear("attention_out", spec.attention_width, h, spec.attention_out_bias, "row")
    if spec.is_mla:
        return (*latent(spec), out)
    widths = (("q", spec.q_width), ("k", spec.kv_width), ("v", spec.v_width))
    return (*(Linear(name, h, width, bias) for name, width in widths), out)


def latent(spec: ModelSpec) -> tuple[Linear, ...]:
    """Queries, keys and values of multi-head latent attention; the narrow maps are not cut."""
    h, bias = spec.hidden_size, spec.qkv_bias
    queries: tuple[Linear, ...] = (Linear("q", h, spec.q_width, bias),)
    if spec.q_lora_rank:
        down = Linear("q_down", h, spec.q_lora_rank, bias, "none")
        queries = (down, Linear("q_up", spec.q_lora_rank, spec.q_width))
    down = Linear("kv_down", h, spec.kv_lora_rank + spec.qk_rope_head_dim, bias, "none")
    up = Linear("kv_up", spec.kv_lora_rank, spec.num_heads * (spec.qk_nope_head_dim + spec.v_head_dim))
    return (*queries, down, up)


def mlp(
    spec: ModelSpec, width: int, prefix: str = "", copies: int = 1, active: int = 1
) -> tuple[Linear, ...]:
    """The linear maps of one MLP of inner width ``width``."""
    h, bias = spec.hidden_size, spec.mlp_bias
    gate = (Linear(prefix + "gate", h, width, bias, "column", copies, active),) if spec.gated_mlp else ()
    up = Linear(prefix + "up", h, width, bias, "column", copies, active)
    return (*gate, up, Linear(prefix + "down", width, h, bias, "row", copies, active))


def layer(spec: ModelSpec, kind: str) -> tuple[Linear, ...]:
    """The linear maps of one layer, ``"dense"`` or ``"moe"``."""
    if kind == "dense":
        return attention(spec) + mlp(spec, spec.ffn_hidden_size)
    shared: tuple[Linear, ...] = ()
    if spec.shared_ffn_hidden_size:
        shared = mlp(spec, spec.shared_ffn_hidden_size, "shared_")
    if spec.shared_expert_gate:
        shared += (Linear("shared_expert_gate", spec.hidden_size, 1, False, "none"),)
    router = Linear("router", spec.hidden_size, spec.num_experts, spec.router_bias, "none")
    experts = mlp(spec, spec.moe_ffn_hidden_size, "expert_", spec.num_experts, spec.experts_per_token)
    return (*attention(spec), router, *shared, *experts)


def part_of(linear: Linear) -> str:
    """The part of a layer a map belongs to: attention, mlp, router, experts or shared_experts."""
    if linear.name in ("gate", "up", "down"):
        return "mlp"
    if linear.name == "router":
        return "router"
    if linear.name.startswith("expert_"):
        return "experts"
    return "shared_experts" if linear.name.startswith("shared_") else "attention"
