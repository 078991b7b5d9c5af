"""What a model is: its shape, and from the shape every parameter.

A transformer is a stack of equal blocks between an embedding and an output head. All of its parameters, and
nearly all of its arithmetic, sit in *linear maps*, so a block is described as the list of its linear maps
(:class:`Linear`) and the rest is derived from it: parameters by part here, FLOPs and saved activations in
``workshop.predict``, the targets of LoRA in :class:`workshop.facts.run.Adapter`.

For one block of width ``h``, with ``a`` query heads and ``k`` key-value heads of width ``d`` and an MLP of
width ``f``::

    attention   h*(a + 2k)*d + a*d*h        (a = k: 4 h^2, the multi-head attention of Vaswani et al. 2017)
    MLP         2*h*f   or, gated, 3*h*f    (gated: Shazeer 2020, "GLU variants improve transformer")
    norms       2*h     or, with biases, 4*h

``k < a`` is grouped-query attention (Ainslie et al. 2023), ``k = 1`` multi-query attention (Shazeer 2019). A
mixture of experts replaces the MLP by ``num_experts`` smaller ones, of which each token visits
``experts_per_token``, plus a router ``h -> num_experts`` and perhaps shared experts that every token visits.
Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) puts low-rank maps in place of the
usual three: ``h -> q_rank -> a*(n + r)`` for queries, ``h -> kv_rank + r`` and ``kv_rank -> a*(n + v)`` for
keys and values, with ``n`` and ``r`` the parts of a head without and with rotary positions and ``v`` the
width of its values.

The counts are those of the real models to the last parameter: ``tests/facts/test_model_modules.py`` holds
them against modules that transformers builds on the meta device.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from workshop.facts.checks import check_choice, check_positive


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


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a transformer.  Widths are in elements; zero for ``num_kv_heads``, ``head_dim``,
    ``ffn_hidden_size`` means "the usual": as many as heads, ``hidden_size / num_heads``, ``4 * hidden_size``.

    Raises ``ValueError`` for sizes that are not positive or do not fit together.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    ffn_hidden_size: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    max_positions: int = 0  # rows of a learned position table; 0 unless positions == "learned"
    positions: str = "rotary"
    rotary_factor: float = 1.0  # what cosine and sine are multiplied by (YaRN: 1 + ln(scaling) / 10)
    norm: str = "rmsnorm"
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False  # BLOOM, BERT
    qk_norm: str = "none"  # "head": one weight per head_dim (Qwen3); "full": one per projected width (OLMo 2)
    gated_mlp: bool = True
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    clamped_experts: bool = False  # an expert's gate and up are clamped before they meet (gpt-oss)
    head_bias: bool = False
    tied_embeddings: bool = False
    parallel_block: bool = False  # attention and MLP read the same normed input (GPT-J, phi)
    causal: bool = True
    attention_sinks: bool = False  # one learned logit per head (gpt-oss)
    attention_window: int = 0  # keys that a query sees, its own included, in layers that have a window
    full_attention_every: int = 0  # every n-th layer has none: 2 (gpt-oss, Gemma 2); 0: all have one
    q_lora_rank: int = 0
    kv_lora_rank: int = 0  # > 0 makes the attention multi-head latent attention
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    moe_ffn_hidden_size: int = 0
    shared_ffn_hidden_size: int = 0  # of all shared experts together
    shared_expert_gate: bool = False
    router_bias: bool = False
    first_dense_layers: int = 0
    moe_every: int = 1  # 1: every layer after the dense ones; 2: every second ...
    num_encoder_layers: int = 0  # T5: a second stack, and cross attention in the first
    num_token_types: int = 0  # BERT
    num_mtp_layers: int = 0  # multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2)
    head_transform: bool = False  # BERT: dense h -> h and a norm before the output matrix
    dropout: bool = False  # trained with dropout (GPT-2, GPT-3, BERT, OPT); Llama and all after it are not
    source: str = ""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once: predictors look specs up in caches."""
        return hash(tuple(getattr(self, f.name) for f in fields(self)))

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "vocab_size"):
            check_positive(f"{self.name}: {name}", getattr(self, name))
        check_choice("positions", self.positions, ("rotary", "learned", "alibi", "none"))
        check_choice("norm", self.norm, ("rmsnorm", "layernorm"))
        check_choice("qk_norm", self.qk_norm, ("none", "head", "full"))
        self._fill()
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and value < 0:
                raise ValueError(f"{self.name}: {field.name} = {value} is negative")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: num_heads = {self.num_heads} is not a multiple of "
                f"num_kv_heads = {self.num_kv_heads}"
            )
        if self.positions == "learned" and not self.max_positions:
            raise ValueError(f"{self.name}: learned positions need max_positions")
        if self.full_attention_every and not self.attention_window:
            raise ValueError(f"{self.name}: full_attention_every is of layers beside those with a window")
        if self.attention_window and not self.causal:
            raise ValueError(f"{self.name}: an attention_window is one of causal attention")
        if self.num_experts and not 0 < self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"{self.name}: experts_per_token = {self.experts_per_token} must lie between 1 and "
                f"num_experts = {self.num_experts}"
            )

    def _fill(self) -> None:
        """Put the usual values where zero was given."""
        usual: dict[str, Any] = {}
        if not self.num_kv_heads:
            usual["num_kv_heads"] = self.num_heads
        if not self.head_dim:
            if self.hidden_size % self.num_heads:
                raise ValueError(
                    f"{self.name}: hidden_size = {self.hidden_size} does not divide by "
                    f"num_heads = {self.num_heads}; give head_dim"
                )
            usual["head_dim"] = self.hidden_size // self.num_heads
        if not self.ffn_hidden_size:
            usual["ffn_hidden_size"] = 4 * self.hidden_size
        if self.num_experts and not self.moe_ffn_hidden_size:
            usual["moe_ffn_hidden_size"] = usual.get("ffn_hidden_size", self.ffn_hidden_size)
        for name, value in usual.items():
            object.__setattr__(self, name, value)

    # ------------------------------------------------------------------ shape

    @property
    def is_moe(self) -> bool:
        """Whether any layer has experts."""
        return self.num_experts > 0

    @property
    def is_mla(self) -> bool:
        """Whether the attention is multi-head latent attention."""
        return self.kv_lora_rank > 0

    @property
    def q_width(self) -> int:
        """Width of the queries of all heads."""
        return self.num_heads * (
            self.qk_nope_head_dim + self.qk_rope_head_dim if self.is_mla else self.head_dim
        )

    @property
    def kv_width(self) -> int:
        """Width of the keys (and, but for latent attention, of the values) as they are projected."""
        return self.q_width if self.is_mla else self.num_kv_heads * self.head_dim

    @property
    def v_width(self) -> int:
        """Width of the values as they are projected."""
        return self.num_heads * self.v_head_dim if self.is_mla else self.num_kv_heads * self.head_dim

    @property
    def attention_width(self) -> int:
        """Width of the attention's result, before the output projection."""
        return self.num_heads * (self.v_head_dim if self.is_mla else self.head_dim)

    @property
    def windowed_layers(self) -> int:
        """Layers whose queries see a window of keys, and not all that came before."""
        if not self.attention_window:
            return 0
        every = self.full_attention_every
        return self.num_layers - (self.num_layers // every if every else 0)

    def layer_kinds(self) -> tuple[str, ...]:
        """``"dense"`` or ``"moe"`` for every layer, in order."""
        return self._layer_kinds

    @cached_property
    def _layer_kinds(self) -> tuple[str, ...]:
        """:meth:`layer_kinds`, worked out once."""
        moe = [
            self.num_experts > 0
            and index >= self.first_dense_layers
            and (index - self.first_dense_layers + 1) % self.moe_every == 0
            for index in range(self.num_layers)
        ]
        return tuple("moe" if routed else "dense" for routed in moe)

    def attention_linears(self) -> tuple[Linear, ...]:
        """The linear maps of one attention, queries first."""
        return _attention(self)

    def linears(self, kind: str = "dense") -> tuple[Linear, ...]:
        """The linear maps of one layer of the given kind (see :meth:`layer_kinds`)."""
        return _layer(self, kind)

    # ------------------------------------------------------------------ parameters

    @property
    def norm_params(self) -> int:
        """Parameters of one norm over the hidden width."""
        return self.hidden_size * (2 if self.norm == "layernorm" else 1)

    def attention_norm_params(self) -> int:
        """Norms inside the attention: of queries and keys, or of the latent vectors; and the sinks."""
        sinks = self.num_heads if self.attention_sinks else 0
        if self.is_mla:
            return sinks + self.q_lora_rank + self.kv_lora_rank
        per = 2 if self.norm == "layernorm" else 1
        widths = {"none": 0, "head": 2 * self.head_dim, "full": self.q_width + self.kv_width}
        return sinks + per * widths[self.qk_norm]

    def layer_params(self, kind: str = "dense") -> dict[str, int]:
        """Parameters of one layer by part: attention, mlp, router, experts, shared_experts, norms."""
        parts = {
            "attention": self.attention_norm_params(),
            "mlp": 0,
            "router": 0,
            "experts": 0,
            "shared_experts": 0,
            "norms": self.norms_per_layer * self.norm_params,
        }
        for linear in self.linears(kind):
            parts[_part_of(linear)] += linear.params
        return {part: count for part, count in parts.items() if count}

    def head_params(self) -> int:
        """The output head: the vocabulary matrix unless tied, its bias, and BERT's transform."""
        matrix = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        bias = self.vocab_size if self.head_bias else 0
        transform = self.hidden_size * (self.hidden_size + 1) + self.norm_params if self.head_transform else 0
        return matrix + bias + transform

    def padded_vocab(self, multiple: int, tensor: Any = 1) -> Any:
        """Rows of the vocabulary's matrix as it is stored and computed with, of one layout or of an array.

        Args:
            multiple: of which times ``tensor`` it is padded to one, as Megatron-LM does (128) and llm.c.
            tensor: ranks over which it is divided; it is padded until they have equal parts.
        """
        whole = multiple * tensor
        return -(-self.vocab_size // whole) * whole

    def mtp_params(self) -> int:
        """One multi-token-prediction module: a layer, a map ``2h -> h``, three norms; the rest is shared."""
        layer = sum(self.layer_params(self.layer_kinds()[-1]).values())
        return layer + 2 * self.hidden_size**2 + 3 * self.norm_params

    def params_by_part(self) -> dict[str, int]:
        """Parameters of the whole model by part; the values sum to :attr:`num_params`."""
        parts = {
            "embedding": self.vocab_size * self.hidden_size,
            "positions": self.max_positions * self.hidden_size if self.positions == "learned" else 0,
            "token_types": self.num_token_types * self.hidden_size,
        }
        for kind, layers in Counter(self.layer_kinds()).items():
            for part, count in self.layer_params(kind).items():
                parts[part] = parts.get(part, 0) + layers * count
        if self.num_encoder_layers:
            encoder = sum(self.layer_params().values()) * self.num_encoder_layers
            cross = sum(linear.params for linear in self.attention_linears()) + self.norm_params
            parts["encoder"] = encoder + (self.norm_params if self.final_norm else 0)
            parts["cross_attention"] = cross * self.num_layers
        extra = int(self.final_norm) + int(self.embedding_norm)
        parts["norms"] = parts.get("norms", 0) + extra * self.norm_params
        parts["head"] = self.head_params()
        parts["mtp"] = self.num_mtp_layers * self.mtp_params()
        return {part: count for part, count in parts.items() if count}

    @property
    def num_params(self) -> int:
        """All parameters, tied ones once."""
        return sum(self.params_by_part().values())

    @property
    def num_active_params(self) -> int:
        """Parameters one token passes through: of the experts, only those it visits."""
        idle = sum(
            layers * ((linear.copies - linear.active) * linear.params // linear.copies)
            for kind, layers in Counter(self.layer_kinds()).items()
            for linear in self.linears(kind)
        )
        return self.num_params - idle

    def resized(self, **changes: Any) -> ModelSpec:
        """A copy with some fields changed, e.g. ``spec.resized(num_layers=2)``."""
        return replace(self, **changes)


# ------------------------------------------------------------------ linear maps


def _attention(spec: ModelSpec) -> tuple[Linear, ...]:
    """The linear maps of one attention, queries first."""
    h, bias = spec.hidden_size, spec.qkv_bias
    out = Linear("attention_out", spec.attention_width, h, spec.attention_out_bias, "row")
    if spec.is_mla:
        return (*_latent(spec), out)
    widths = (("q", spec.q_width), ("k", spec.kv_width), ("v", spec.v_width))
    return (*(Linear(name, h, width, bias) for name, width in widths), out)


def _latent(spec: ModelSpec) -> tuple[Linear, ...]:
    """Queries, keys and values of multi-head latent attention; the narrow maps are not cut."""
    h, bias = spec.hidden_size, spec.qkv_bias
    queries: tuple[Linear, ...] = (Linear("q", h, spec.q_width, bias),)
    if spec.q_lora_rank:
        down = Linear("q_down", h, spec.q_lora_rank, bias, "none")
        queries = (down, Linear("q_up", spec.q_lora_rank, spec.q_width))
    down = Linear("kv_down", h, spec.kv_lora_rank + spec.qk_rope_head_dim, bias, "none")
    up = Linear("kv_up", spec.kv_lora_rank, spec.num_heads * (spec.qk_nope_head_dim + spec.v_head_dim))
    return (*queries, down, up)


def _mlp(
    spec: ModelSpec, width: int, prefix: str = "", copies: int = 1, active: int = 1
) -> tuple[Linear, ...]:
    """The linear maps of one MLP of inner width ``width``."""
    h, bias = spec.hidden_size, spec.mlp_bias
    gate = (Linear(prefix + "gate", h, width, bias, "column", copies, active),) if spec.gated_mlp else ()
    up = Linear(prefix + "up", h, width, bias, "column", copies, active)
    return (*gate, up, Linear(prefix + "down", width, h, bias, "row", copies, active))


def _layer(spec: ModelSpec, kind: str) -> tuple[Linear, ...]:
    """The linear maps of one layer, ``"dense"`` or ``"moe"``."""
    if kind == "dense":
        return _attention(spec) + _mlp(spec, spec.ffn_hidden_size)
    shared: tuple[Linear, ...] = ()
    if spec.shared_ffn_hidden_size:
        shared = _mlp(spec, spec.shared_ffn_hidden_size, "shared_")
    if spec.shared_expert_gate:
        shared += (Linear("shared_expert_gate", spec.hidden_size, 1, False, "none"),)
    router = Linear("router", spec.hidden_size, spec.num_experts, spec.router_bias, "none")
    experts = _mlp(spec, spec.moe_ffn_hidden_size, "expert_", spec.num_experts, spec.experts_per_token)
    return (*_attention(spec), router, *shared, *experts)


def _part_of(linear: Linear) -> str:
    """The part of a layer a map belongs to: attention, mlp, router, experts or shared_experts."""
    if linear.name in ("gate", "up", "down"):
        return "mlp"
    if linear.name == "router":
        return "router"
    if linear.name.startswith("expert_"):
        return "experts"
    return "shared_experts" if linear.name.startswith("shared_") else "attention"
