"""The model that arguments of Megatron-LM describe.

Defaults are those of github NVIDIA/Megatron-LM, megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py: GPT-2's layers (biases, LayerNorm, learned positions, dropout
of 0.1), ``ffn = 4 * hidden``, with SwiGLU ``int(4 * hidden * 2 / 3 / 64) * 64``.
"""

from __future__ import annotations

import re
from typing import Any

from workshop.configs.formats.settings import Settings

VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "Llama2Tokenizer": 32000,
}
"""Of tokenizers that always have the same."""
"""Of tokenizers that always have the same."""

FAMILY_VOCABULARIES = {"gpt": 50257, "bert": 30522, "t5": 28996}
GATED, UNGATED = ("--swiglu", "--quick-geglu"), ("--squared-relu", "--openai-gelu", "--onnx-safe")


def shape_of(settings: Settings, family: str, layers: int) -> dict[str, Any]:
    """Fields of `ModelSpec`; ``vocab_size`` is 0 where only the tokenizer knows it."""
    hidden, heads = settings.size("--hidden-size", 0), settings.size("--num-attention-heads", 0)
    gates = [settings.flag(name) for name in GATED]  # each is asked
    gated = any(gates)
    for name in UNGATED:
        settings.value(name)
    bias = not settings.flag("--disable-bias-linear")
    groups = settings.size("--num-query-groups", 1)
    latent = _latent(settings)
    positions, rows = _positions(settings, bool(latent))
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    qk_norm = settings.flag("--qk-layernorm") and not latent
    shape: dict[str, Any] = {
        "name": f"megatron-{family}-{layers}x{hidden}",
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "ffn_hidden_size": settings.size("--ffn-hidden-size", usual),
        "num_kv_heads": groups if settings.flag("--group-query-attention") else heads,
        "head_dim": settings.size("--kv-channels", 0) or (hidden // heads if heads else 0),
        "positions": positions,
        "max_positions": rows,
        "norm": _norm(settings),
        "gated_mlp": gated,
        "qkv_bias": settings.flag("--add-qkv-bias") or bias,
        "attention_out_bias": bias,
        "mlp_bias": bias,
        "tied_embeddings": not settings.flag("--untie-embeddings-and-output-weights"),
        "qk_norm": "head" if qk_norm else "none",
        "num_mtp_layers": settings.number("--mtp-num-layers", 0),
        "dropout": True,
        **latent,
        **_experts(settings, layers),
        **_stacks(settings, family),
    }
    return shape | {"vocab_size": _vocabulary(settings, family)}


def _norm(settings: Settings) -> str:
    settings.value("--apply-layernorm-1p")
    named = settings.word("--normalization", "LayerNorm", ("LayerNorm", "RMSNorm"))
    return "rmsnorm" if named == "RMSNorm" else "layernorm"


def _positions(settings: Settings, latent: bool) -> tuple[str, int]:
    """Kind of positions and rows of a learned table."""
    sequence = settings.size("--seq-length", 0)
    rows = settings.size("--max-position-embeddings", 0) or sequence
    named = settings.word(
        "--position-embedding-type", "learned_absolute", ("learned_absolute", "rope", "yarn", "mrope", "none")
    )
    rotates, has_none = (
        settings.flag(name) for name in ("--use-rotary-position-embeddings", "--no-position-embedding")
    )
    if named in ("rope", "yarn", "mrope") or rotates or latent:
        return "rotary", 0
    if named == "none" or has_none:
        return "none", 0
    return "learned", rows


def _latent(settings: Settings) -> dict[str, int]:
    """Widths of multi-head latent attention; empty for other attention."""
    widths = {
        "q_lora_rank": settings.size("--q-lora-rank", 512),
        "kv_lora_rank": settings.size("--kv-lora-rank", 512),
        "qk_nope_head_dim": settings.size("--qk-head-dim", 128),
        "qk_rope_head_dim": settings.size("--qk-pos-emb-head-dim", 64),
        "v_head_dim": settings.size("--v-head-dim", 128),
    }
    if not settings.flag("--multi-latent-attention"):
        return {}
    return widths | {"head_dim": widths["v_head_dim"]}


def moe_layers(pattern: str, num_layers: int) -> tuple[int, int]:
    """``--moe-layer-freq``, a number or a list such as ``"([0]*1+[1]*15)"``, as (dense layers first, then
    every n-th).

    Raises:
        ValueError: Dense layers after the first with experts.
    """
    if pattern.isdecimal():
        return 0, int(pattern)
    flags: list[int] = []
    for value, repeat in re.findall(r"\[([01])\](?:\s*\*\s*(\d+))?", pattern):
        flags += [int(value)] * int(repeat or 1)
    first = flags.index(1) if 1 in flags else num_layers
    if len(flags) != num_layers or 0 in flags[first:]:
        raise ValueError(f"--moe-layer-freq {pattern!r}: only dense layers first, then experts, are modelled")
    return first, 1


def _experts(settings: Settings, layers: int) -> dict[str, Any]:
    """Fields of a mixture of experts; empty for a dense model."""
    number, visited = settings.size("--num-experts", 0, also=(0,)), settings.size("--moe-router-topk", 2)
    width = settings.size("--moe-ffn-hidden-size", 0)
    shared = settings.number("--moe-shared-expert-intermediate-size", 0)
    pattern = settings.word("--moe-layer-freq", "1")
    gate = settings.flag("--moe-shared-expert-gate")
    if not number:
        return {}
    if settings.has("--moe-expert-capacity-factor"):
        settings.note(
            "--moe-expert-capacity-factor: experts are predicted as evenly visited, and no token dropped"
        )
    first, every = moe_layers(pattern, layers)
    return {
        "num_experts": number,
        "experts_per_token": visited,
        "moe_ffn_hidden_size": width,
        "shared_ffn_hidden_size": shared,
        "shared_expert_gate": gate,
        "first_dense_layers": first,
        "moe_every": every,
    }


def _stacks(settings: Settings, family: str) -> dict[str, Any]:
    """What BERT and T5 have that a GPT has not."""
    no_second_head, encoder = (
        settings.flag("--bert-no-binary-head"),
        settings.size("--encoder-num-layers", 0),
    )
    if family == "bert":
        token_types = 0 if no_second_head else 2
        return {"causal": False, "num_token_types": token_types, "head_transform": True, "head_bias": True}
    return {"num_encoder_layers": encoder} if family == "t5" else {}


def _vocabulary(settings: Settings, family: str) -> int:
    """Words; 0 where only the tokenizer knows, which is not in the file."""
    extra = settings.number("--vocab-extra-ids", 0)
    given = settings.size("--vocab-size", 0)
    kind = settings.word("--tokenizer-type", "")
    if given:
        return given
    if kind and kind not in VOCABULARIES:
        settings.note(
            f"{kind} knows how many words there are, the arguments do not: add --vocab-size, or give the "
            "model"
        )
        return 0
    words = VOCABULARIES.get(kind, FAMILY_VOCABULARIES[family])
    return words + (extra if family == "t5" else 0)
