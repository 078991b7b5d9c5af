"""From a row of Megatron-LM's tests to the model that its arguments describe.

Defaults are those of ``megatron/training/arguments.py`` and
``megatron/core/transformer/transformer_config.py`` of NVIDIA/Megatron-LM: GPT-2's vocabulary of 50,257 words,
``ffn = 4 * hidden`` (with SwiGLU ``int(4 * hidden * 2 / 3 / 64) * 64``), layers with biases, LayerNorm,
learned positions.  BERT's cases use the uncased vocabulary (30,522), T5's the cased one (28,996, and 100
sentinels).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from workshop.facts.model import ModelSpec
from workshop.predict.case import NotPredictable
from workshop.published.cells import flag, text
from workshop.published.cells import whole as count
from workshop.published.record import Row

GPT2_VOCAB, BERT_VOCAB, T5_VOCAB = 50257, 30522, 28996


def arguments(row: Row) -> dict[str, Any]:
    """The arguments that have no column of their own."""
    arguments_by_name = json.loads(text(row, "other_args_json") or "{}")
    if not isinstance(arguments_by_name, dict):
        raise NotPredictable(f"other_args_json is {arguments_by_name!r}, not arguments by name")
    return arguments_by_name


def option(extra: Mapping[str, Any], name: str, default: float) -> float:
    """A number among the arguments."""
    try:
        return type(default)(extra.get(name, default))
    except (TypeError, ValueError):
        raise NotPredictable(f"{name} is {extra[name]!r}") from None


def moe_layers(pattern: Any, num_layers: int) -> tuple[int, int]:
    """``--moe-layer-freq``, a number or a list such as ``"([0]*1+[1]*15)"``, as (dense layers first, then
    every n-th).
    """
    if isinstance(pattern, int) or str(pattern).isdigit():
        return 0, int(pattern)
    flags: list[int] = []
    for value, repeat in re.findall(r"\[([01])\](?:\s*\*\s*(\d+))?", str(pattern)):
        flags += [int(value)] * int(repeat or 1)
    first = flags.index(1) if 1 in flags else num_layers
    if len(flags) != num_layers or 0 in flags[first:]:
        raise NotPredictable(f"--moe-layer-freq is {pattern!r}")
    return first, 1


def latent_attention(extra: Mapping[str, Any]) -> dict[str, int]:
    """Widths of multi-head latent attention; empty for other attention."""
    if not extra.get("--multi-latent-attention"):
        return {}
    value = int(option(extra, "--v-head-dim", 128))
    return {
        "q_lora_rank": int(option(extra, "--q-lora-rank", 512)),
        "kv_lora_rank": int(option(extra, "--kv-lora-rank", 512)),
        "qk_nope_head_dim": int(option(extra, "--qk-head-dim", 128)),
        "qk_rope_head_dim": int(option(extra, "--qk-pos-emb-head-dim", 64)),
        "v_head_dim": value,
        "head_dim": value,
    }


def experts(row: Row, extra: Mapping[str, Any], num_layers: int) -> dict[str, int]:
    """Fields of a mixture of experts; empty for a dense model."""
    if not count(row, "num_experts", 0):
        return {}
    first, every = moe_layers(extra.get("--moe-layer-freq", 1), num_layers)
    return {
        "num_experts": count(row, "num_experts"),
        "experts_per_token": count(row, "moe_topk", 2),
        "moe_ffn_hidden_size": count(row, "moe_ffn_hidden_size", 0),
        "shared_ffn_hidden_size": int(option(extra, "--moe-shared-expert-intermediate-size", 0)),
        "first_dense_layers": first,
        "moe_every": every,
    }


def model_of(row: Row) -> ModelSpec:
    """The model of a row: a GPT, dense or with experts, a BERT or a T5."""
    extra, hidden, family = arguments(row), count(row, "hidden_size"), text(row, "family")
    if any("hybrid" in name or "mamba" in name for name in (*extra, family)):
        raise NotPredictable("state-space layers are not modelled")
    layers = count(row, "num_layers", int(option(extra, "--decoder-num-layers", 0)))
    heads, gated = count(row, "attention_heads"), flag(row, "swiglu")
    bias = "--disable-bias-linear" not in extra
    usual_ffn = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    latent = latent_attention(extra)
    rotary = bool(latent) or extra.get("--position-embedding-type", "learned_absolute") == "rope"
    fields: dict[str, Any] = {
        "ffn_hidden_size": count(row, "ffn_hidden_size", usual_ffn),
        "num_kv_heads": count(row, "kv_groups", heads),
        "head_dim": int(option(extra, "--kv-channels", 0)),
        "positions": "rotary" if rotary else "learned",
        "max_positions": int(option(extra, "--max-position-embeddings", 0)) or count(row, "seq_len_tokens"),
        "norm": "rmsnorm" if extra.get("--normalization") == "RMSNorm" else "layernorm",
        "gated_mlp": gated,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "mlp_bias": bias,
        "tied_embeddings": not flag(row, "untie_embeddings"),
        "qk_norm": "head" if "--qk-layernorm" in extra and not latent else "none",
        "num_mtp_layers": int(option(extra, "--mtp-num-layers", 0)),
        "dropout": True,  # of 0.1, unless the row's arguments set it to nothing
    }
    fields |= latent | experts(row, extra, layers) | stacks(family, extra)
    vocab = count(row, "vocab_size", fields.pop("vocab", GPT2_VOCAB))
    return ModelSpec(text(row, "test_case"), layers, hidden, heads, vocab, **fields)


def stacks(family: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """What BERT and T5 have that a GPT has not."""
    if family == "bert":
        return {
            "vocab": BERT_VOCAB,
            "causal": False,
            "num_token_types": 0 if "--bert-no-binary-head" in extra else 2,
            "head_transform": True,
            "head_bias": True,
        }
    if family == "t5":
        return {
            "vocab": T5_VOCAB + int(option(extra, "--vocab-extra-ids", 0)),
            "num_encoder_layers": int(option(extra, "--encoder-num-layers", 0)),
        }
    return {}
