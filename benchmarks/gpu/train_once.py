"""A few steps of our GPT on one device, written as anyone would: measured on a GPU, rehearsed from this file.

To rehearse it: ``rehearse(train_once, 1, keywords={...}, pretend_cuda=True)``. A rehearsal answers "is there
a GPU?" to the program itself and to nobody else, so the program moves its model by itself.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn

from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.models.from_spec import gpt_of


def run_of(keywords: dict[str, Any], cluster: str) -> Run:
    """The same run for the predictors."""
    layout = Layout(precision=keywords["precision"], recompute=keywords["recompute"])
    return Run(
        ModelSpec(**keywords["model"]),
        cluster,
        layout,
        micro_batch=keywords["micro_batch"],
        seq_len=keywords["seq_len"],
        implementation="workshop",
    )


def train_once(
    model: dict[str, Any], precision: str, recompute: str, micro_batch: int, seq_len: int, steps: int = 3
) -> None:
    """Steps on random words: what they say does not matter to memory."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with torch.device(device):  # a CPU draws its numbers one by one: seconds for each billion
        gpt = gpt_of(ModelSpec(**model))
    gpt.model.recompute = recompute == "full"
    gpt = gpt.to(device, torch.bfloat16 if precision == "bf16" else torch.float32)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-4)
    for _ in range(steps):
        words = torch.randint(0, model["vocab_size"], (micro_batch, seq_len + 1), device=device)
        inside = (
            torch.autocast(device, torch.bfloat16)
            if precision.startswith("amp-")
            else contextlib.nullcontext()
        )
        with inside:
            loss = gpt(words[:, :-1], words[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
