"""Counting floating-point operations: what the model needs, and what the hardware does.

A linear map of w weights does one multiplication and one addition per weight and token: 2 w FLOPs forward.
Backward it does twice that, once for the gradient of its input and once for that of its weights. So a dense
model costs about 6 FLOPs per parameter and token (Kaplan et al., arXiv 2001.08361, section 2.1), and to be
exact

==============  ================================================  ===============================
forward(token)  2 * (weights of all linear maps a token passes)   projections, MLP or experts, head
                + 2 * L * s * (q_width + v_width)                 scores and their use: s keys each
step            3 * forward * tokens                              model FLOPs
==============  ================================================  ===============================

`causal=True` counts only the half of the scores that a causal mask leaves. Most published MFU figures do not
(PaLM, arXiv 2204.02311, appendix B; Megatron-LM, arXiv 2104.04473, equation 3), so False is the default, and
two tables can only be compared if they count alike. In layers with a window
(`ModelSpec.attention_window`) it takes the place of s. The embedding is a look-up and costs nothing.

**Hardware FLOPs** add what is computed twice: full recomputation runs the layers' forward again (4 instead
of 3 forwards), selective recomputation only the core of attention (Korthikanti et al., arXiv 2205.05198,
section 5). MFU = model FLOPs / (seconds * peak), HFU = hardware FLOPs / (seconds * peak).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run

PARTS = ("attention_projections", "attention_core", "mlp", "router", "experts", "shared_experts", "head")


def _part(name: str, attention: frozenset[str]) -> str:
    if name in attention:
        return "attention_projections"
    for prefix, part in (("router", "router"), ("expert_", "experts"), ("shared_", "shared_experts")):
        if name.startswith(prefix):
            return part
    return "mlp"


@cache
def forward_flops(model: ModelSpec, seq_len: int, causal: bool = False) -> dict[str, float]:
    """FLOPs of one token's forward through the whole model, by part (`PARTS`), in a sequence of `seq_len`."""
    parts = dict.fromkeys(PARTS, 0.0)
    attention = frozenset(linear.name for linear in model.attention_linears())
    kinds = model.layer_kinds()
    for kind in set(kinds):
        for linear in model.linears(kind):
            parts[_part(linear.name, attention)] += kinds.count(kind) * 2.0 * linear.weights * linear.active
    narrow = model.windowed_layers
    parts["attention_core"] = (model.num_layers - narrow) * attention_core_flops(model, seq_len, causal)
    parts["attention_core"] += narrow * windowed_core_flops(model, seq_len, causal)
    parts["head"] = 2.0 * model.hidden_size * model.vocab_size
    if model.num_encoder_layers:
        layer = sum(2.0 * linear.weights for linear in model.linears()) + attention_core_flops(
            model, seq_len, False
        )
        cross = sum(2.0 * x.weights for x in model.attention_linears()) + attention_core_flops(
            model, seq_len, False
        )
        parts["mlp"] += model.num_encoder_layers * layer + model.num_layers * cross
    return parts


def attention_core_flops(model: ModelSpec, seq_len: int, causal: bool = False) -> float:
    """FLOPs of scores and weighted sum of one layer for one token: 2 s (q_width + v_width), halved if
    causal.
    """
    full = 2.0 * seq_len * (model.q_width + model.attention_width)
    return full / 2 if causal and model.causal else full


def windowed_core_flops(model: ModelSpec, seq_len: int, causal: bool = False) -> float:
    """The same of a layer with a window of w keys: no more than w; causal, w - w^2 / 2s on average."""
    window = min(model.attention_window, seq_len)
    seen = seen_keys(window, seq_len) if causal else window
    return 2.0 * seen * (model.q_width + model.attention_width)


def seen_keys(window: float, seq_len: float) -> float:
    """Keys that a query sees on average, where it sees itself and those before it, `window` at most.

    The first `window` queries see half of it, all others the whole.
    """
    return window - window**2 / (2 * seq_len)


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one optimizer step over all ranks: needed by the model, and done by the hardware."""

    model: float
    hardware: float
    by_part: dict[str, float]


def step_flops(run: Run, causal: bool = False) -> StepFlops:
    """FLOPs of a step of `run`: three forwards per token, and what its recompute policy repeats."""
    keys = run.document_len or run.seq_len
    forward = forward_flops(run.model, keys, causal)
    tokens = run.tokens_per_step
    by_part = {part: 3 * tokens * flops for part, flops in forward.items()}
    model = sum(by_part.values())
    return StepFlops(model, model + tokens * recomputed_flops(run.model, run.layout, keys, causal), by_part)


def recomputed_flops(model: ModelSpec, layout: Layout, seq_len: int, causal: bool = False) -> float:
    """FLOPs per token that are done again in the backward pass under the layout's recompute policy."""
    forward = forward_flops(model, seq_len, causal)
    if layout.recompute == "none":
        return 0.0
    again = (
        forward["attention_core"]
        if layout.recompute == "selective"
        else sum(forward.values()) - forward["head"]
    )
    if layout.recompute_layers:
        stage = -(-model.num_layers // layout.pipeline)
        again *= min(1.0, layout.recompute_layers / stage)
    return again


def megatron_flops(model: ModelSpec, seq_len: int, tokens: float, recompute: bool = False) -> float:
    """Megatron-LM's published count, F = 72 B s L h^2 (1 + s/6h + V/12Lh), times 4/3 with recomputation.

    arXiv 2104.04473, equation 3 (there with recomputation: 96 B s L h^2 ...). It assumes plain MHA and a 4h
    MLP; it stands here because tables of TFLOP/s quote it.
    """
    h, layers = model.hidden_size, model.num_layers
    shape = 1 + seq_len / (6 * h) + model.vocab_size / ((16 if recompute else 12) * layers * h)
    return (96 if recompute else 72) * tokens * layers * h * h * shape
