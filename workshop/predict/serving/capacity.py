"""How much text a server can hold: bytes of keys and values, and the tokens and requests that fit.

Every token of every request keeps its keys and values in every layer until the request is done::

    multi-head, grouped, multi-query    2 * kv_heads * head_dim * bytes     a token and layer
    latent (DeepSeek-V2)                (kv_rank + rope_dim) * bytes        one vector serves all heads

(Shazeer 2019, arXiv 1911.02150; Ainslie et al. 2023, arXiv 2305.13245; arXiv 2405.04434, section 2.1.) Over
t tensor ranks a rank keeps kv_heads / t of the heads, **but never less than one**: with more ranks than
heads each head lies on several of them, and a further rank adds no room for it. The latent vector is not cut
at all: each rank keeps the whole of it.

Layers whose queries see a window could forget what lies before it. Their whole cache is counted, as an engine
keeps it whose layers share one table of blocks.

Memory is handed out in blocks of a fixed number of tokens (PagedAttention: Kwon et al. 2023, arXiv
2309.06180). A request takes ceil(tokens / block) of them, so on average half a block is left empty.

    room = share * memory - weights - workspace         blocks = floor(room / (block * bytes a token))
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from workshop.facts.checks import check_choice, check_positive
from workshop.facts.model import ModelSpec
from workshop.facts.serving import KV_FORMATS, Serving
from workshop.predict.weight_formats import WeightFormat, weight_format

CONTEXT_BYTES = 2e9
"""What a device loses beside weights, cache and the widest moment: context, libraries, captured graphs, gaps.

vLLM's own figures leave 1.9 GB (13B on an A100 with 40 GB: 10 GB of cache at a share of 0.90, 12 at 0.95;
github vllm-project/vllm issue 1018) and 3 GB (70B in 8 bits at 0.98: pull request 12569) that nothing else
explains.
"""


def kv_bytes_per_token(model: ModelSpec, kv: str = "bf16", tensor: int = 1, kv_layers: int = 0) -> float:
    """Bytes of keys and values that one rank keeps for one token, all layers together.

    tensor: ranks that share the heads. kv_layers: layers that keep their own; 0: all.
    """
    check_choice("format of the KV cache", kv, KV_FORMATS)
    check_positive("tensor", tensor)
    layers = kv_layers or model.num_layers
    if model.is_mla:
        return layers * (model.kv_lora_rank + model.qk_rope_head_dim) * KV_FORMATS[kv]
    heads = max(1.0, model.num_kv_heads / tensor)
    return layers * 2 * heads * model.head_dim * KV_FORMATS[kv]


def rank_weight_bytes(serving: Serving, head_cut: bool = True) -> float:
    """Bytes of weights on the rank that holds most: linear maps cut over tensor ranks and stages.

    head_cut: the vocabulary matrices are cut as well.
    """
    model, form = serving.model, weight_format(serving.weights)
    cut = sum(
        layers
        * linear.copies
        * linear.weights
        * form.bytes_per_weight(linear.inputs)
        / _ways(serving, linear)
        for kind, layers in Counter(model.layer_kinds()).items()
        for linear in model.linears(kind)
    )
    return cut / serving.run.layout.pipeline + vocabulary_bytes(serving, head_cut)


def _ways(serving: Serving, linear: object) -> int:
    layout = serving.run.layout
    if getattr(linear, "copies", 1) > 1:
        return max(layout.tensor, layout.expert * layout.expert_tensor)
    return 1 if getattr(linear, "split", "") == "none" else layout.tensor


def vocabulary_bytes(serving: Serving, head_cut: bool = True) -> float:
    """Bytes of the embedding and the output head on one rank."""
    model = serving.model
    matrix = float(model.vocab_size * model.hidden_size) / (serving.tensor if head_cut else 1)
    head = matrix * head_bytes_per_weight(serving)
    return head if model.tied_embeddings else head + matrix * KV_FORMATS[serving.dtype]


def head_bytes_per_weight(serving: Serving) -> float:
    """Bytes of one weight of the output head."""
    form: WeightFormat = weight_format(serving.weights)
    if serving.quantized_head:
        return form.bytes_per_weight(serving.model.hidden_size)
    return KV_FORMATS[serving.dtype]


def workspace_bytes(serving: Serving) -> float:
    """Bytes that one forward pass of the most tokens needs beside weights and cache, on one rank.

    The widest moment is an MLP's gate and up beside the residual stream, in the run's format; then logits of
    one position a request in fp32. As many tokens as `batched_tokens`, or one longest request.
    """
    model, layout = serving.model, serving.run.layout
    tokens = serving.batched_tokens or serving.run.seq_len
    wide = model.moe_ffn_hidden_size * model.experts_per_token if model.is_moe else model.ffn_hidden_size
    gates = 2 if model.gated_mlp else 1
    per_token = (3 * model.hidden_size + gates * wide / layout.tensor) * KV_FORMATS[serving.dtype]
    logits = 4.0 * serving.run.micro_batch * model.vocab_size
    return tokens * per_token + logits


@dataclass(frozen=True)
class KVCapacity:
    """What fits into one replica of a server, in blocks of `block_size` tokens; bytes are of one rank."""

    model: str
    bytes_per_token: float
    room_bytes: float
    weight_bytes: float
    workspace_bytes: float
    block_size: int

    @property
    def blocks(self) -> int:
        """Whole blocks that fit."""
        return max(0, int(self.room_bytes // (self.bytes_per_token * self.block_size)))

    @property
    def tokens(self) -> int:
        """Tokens of all requests together."""
        return self.blocks * self.block_size

    def requests(self, tokens_each: int) -> int:
        """Requests of so many tokens each that fit at once."""
        check_positive("tokens_each", tokens_each)
        return self.blocks // -(-tokens_each // self.block_size)

    def __str__(self) -> str:
        return (
            f"{self.tokens:,} tokens of {self.model} fit ({self.blocks:,} blocks of {self.block_size}): "
            f"{self.bytes_per_token / 1024:,.1f} KiB a token, {max(0.0, self.room_bytes) / 1e9:.1f} GB of "
            f"room beside {self.weight_bytes / 1e9:.1f} GB of weights on each rank"
        )


def kv_capacity(serving: Serving) -> KVCapacity:
    """Tokens and requests that fit into one replica.

    The share of memory counts the context and everything else; a model that does not fit leaves no block.
    """
    cluster, layout = serving.run.cluster, serving.run.layout
    weights, workspace = rank_weight_bytes(serving), workspace_bytes(serving)
    memory = cluster.memory_per_rank(layout.world_size) * serving.memory_share
    layers = -(-(serving.kv_layers or serving.model.num_layers) // layout.pipeline)
    return KVCapacity(
        serving.model.name,
        kv_bytes_per_token(serving.model, serving.kv, layout.tensor, layers),
        memory - weights - workspace - CONTEXT_BYTES,
        weights,
        workspace,
        serving.block_size,
    )
