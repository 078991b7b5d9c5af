"""Longer sweeps behind lesson 18: a scaling law, learning rates over widths, steps against batch size.

    python -m benchmarks.scale_the_recipe law --seeds 0 1 --json data/measurements/scaling_law.json
    python -m benchmarks.scale_the_recipe rates --seeds 0 1 2 --json data/measurements/rate_transfer.json
    python -m benchmarks.scale_the_recipe batches --seeds 0 1 2 --json data/measurements/critical_batch.json

All of them train the lessons' `GPT` at several widths, with heads of 8 dims and the rates of muP (Yang et al.
2022, arXiv 2203.03466, table 3) over a base of 32.

- ``law``: the loss on held-out text, for each width and number of tokens. The rate is constant, and before
  each number of tokens is reached a copy goes on with a rate that falls to zero over the last fifth: one run
  gives the loss of several lengths (Haegele et al. 2024, arXiv 2405.18392). The text is the State of the
  Union addresses, so that no page comes twice. The blind width was trained, once, after the exponents of
  lesson 18 had been chosen and its loss had been predicted.
- ``rates``: the mean loss of the last ten of 40 steps for each rate, under muP and with one rate for all
  parameters.
- ``batches``: the steps to a loss of 3.0, for each batch size at each rate.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workshop.assets import text
from workshop.models.gpt import GPT, TINY, GPTConfig
from workshop.models.text import TextBatches

BASE_WIDTH = 32
RATE, BATCH, SEQ_LEN, WARMUP, DECAY = 0.008, 16, 64, 50, 0.2  # of the scaling law
FITTED, HELD_OUT, BLIND = (16, 24, 32, 48, 64), 96, 128
LENGTHS, HELD_OUT_LENGTHS, BLIND_LENGTHS = (2**18, 2**19, 2**20, 2**21), (2**20, 2**21, 2**22), (2**22,)
RATES = tuple(0.128 / 2**halvings for halvings in range(9))
WIDTHS = (32, 64, 128, 256)
BATCHES, BATCH_RATES, TARGET = (2, 4, 8, 16, 32, 64), (0.008, 0.016, 0.032), 3.0


def shape(width: int) -> GPTConfig:
    """TINY at another width, with as many heads of 8 dims as that has room for."""
    heads = replace(TINY, hidden_size=width, num_heads=width // 8, num_kv_heads=width // 16)
    return replace(heads, intermediate_size=3 * width)


def fresh(width: int, seed: int) -> GPT:
    """A model whose matrices keep the size of what they are given, and whose head begins at zero."""
    torch.manual_seed(seed)
    model = GPT(shape(width))
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    nn.init.normal_(model.model.embed_tokens.weight)
    nn.init.zeros_(model.lm_head.weight)
    return model


def optimizer_of(model: GPT, rate: float, mup: bool = True) -> torch.optim.AdamW:
    """AdamW with the rates of muP, or with one rate for all."""
    narrow: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (narrow if mup and parameter.ndim == 2 and "embed" not in name else rest).append(parameter)
    share = BASE_WIDTH / model.config.hidden_size
    groups = [{"params": group, "lr": lr} for group, lr in ((narrow, rate * share), (rest, rate)) if group]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=True)


def step(
    model: GPT, optimizer: torch.optim.AdamW, batch: tuple[Tensor, Tensor], share: float = 1.0
) -> Tensor:
    """One step at a share of each group's rate; the loss before it."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * share
    loss = model(*batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return loss.detach()


class Addresses:
    """Windows of the State of the Union addresses; the last twentieth is held out."""

    def __init__(self, seed: int) -> None:
        self.bytes = torch.frombuffer(
            bytearray("\n\n".join(text.load("sotu").values()).encode()), dtype=torch.uint8
        )
        self.num_train = len(self.bytes) * 19 // 20
        order = torch.randperm(self.num_train // SEQ_LEN - 1, generator=torch.Generator().manual_seed(seed))
        self.starts = order * SEQ_LEN

    def rows(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and targets of the windows that begin there."""
        window = self.bytes[starts[:, None] + torch.arange(SEQ_LEN + 1)].long()
        return window[:, :-1], window[:, 1:]

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """The batch of a step; no window comes twice."""
        return self.rows(self.starts[number * BATCH : (number + 1) * BATCH])

    def held_out(self) -> tuple[Tensor, Tensor]:
        """512 windows, evenly spread over what is held out."""
        room = len(self.bytes) - self.num_train - SEQ_LEN - 1
        return self.rows(self.num_train + torch.arange(512) * int(room // 512))


def lengths_of_a_run(width: int, seed: int, lengths: tuple[int, ...]) -> Iterator[tuple[int, float]]:
    """(tokens, loss) for each length: a copy of the constant run, cooled down over the last fifth."""
    addresses, model = Addresses(seed), fresh(width, seed)
    optimizer = optimizer_of(model, RATE)
    per_step = BATCH * SEQ_LEN
    done, held = 0, addresses.held_out()
    for tokens in lengths:
        end = tokens // per_step
        turn = round(end * (1 - DECAY))
        for number in range(done, turn):
            step(model, optimizer, addresses.batch(number), min(1.0, (number + 1) / WARMUP))
        done = turn
        cooled = copy.deepcopy(model)
        cooler = optimizer_of(cooled, RATE)
        cooler.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for number in range(turn, end):
            step(cooled, cooler, addresses.batch(number), (end - number) / (end - turn))
        with torch.no_grad():
            yield tokens, cooled(*held).item()


def law(seeds: list[int]) -> dict[str, Any]:
    """Losses of the five widths that a law is fitted to, of the sixth, and once of the blind one."""
    runs = []
    for seed in seeds:
        blind = (BLIND,) if seed == seeds[0] else ()
        for width in (*FITTED, HELD_OUT, *blind):
            began = time.perf_counter()
            lengths = {HELD_OUT: HELD_OUT_LENGTHS, BLIND: BLIND_LENGTHS}.get(width, LENGTHS)
            losses = list(lengths_of_a_run(width, seed, lengths))
            num_params = sum(p.numel() for p in GPT(shape(width)).parameters())
            runs.append({"width": width, "num_params": num_params, "seed": seed, "losses": losses})
            words = ", ".join(f"{tokens:,}: {loss:.3f}" for tokens, loss in losses)
            print(f"seed {seed}, width {width}: {words} ({time.perf_counter() - began:.0f} s)", flush=True)
    return {
        "setting": {
            "rate": RATE,
            "batch": BATCH,
            "seq_len": SEQ_LEN,
            "warmup": WARMUP,
            "decay": DECAY,
            "fitted": FITTED,
            "held_out": HELD_OUT,
            "blind": BLIND,
        },
        "runs": runs,
    }


def last_loss(width: int, rate: float, seed: int, mup: bool) -> float:
    """The mean loss of the last ten of 40 steps on the manual."""
    batches, model = TextBatches(seq_len=32, global_batch=8, seed=seed), fresh(width, seed)
    optimizer = optimizer_of(model, rate, mup)
    losses = [step(model, optimizer, next(batches.step(number))) for number in range(40)]
    return torch.stack(losses[-10:]).mean().item()


def rates(seeds: list[int]) -> dict[str, Any]:
    """Losses by parametrisation, width and rate, one for each seed."""
    by_parametrisation: dict[str, dict[str, list[list[float]]]] = {}
    for name, mup in (("standard", False), ("mup", True)):
        for width in WIDTHS:
            rows = [[last_loss(width, rate, seed, mup) for seed in seeds] for rate in RATES]
            by_parametrisation.setdefault(name, {})[str(width)] = rows
            print(name, width, [f"{sum(row) / len(row):.3f}" for row in rows], flush=True)
    return {"setting": {"steps": 40, "batch": 8, "seq_len": 32, "rates": RATES}, "losses": by_parametrisation}


def steps_to_target(batch: int, rate: float, seed: int, most: int = 300) -> int:
    """Steps until 64 sequences that are not trained on have a mean loss below the target."""
    batches, model = TextBatches(seq_len=32, global_batch=batch, seed=seed), fresh(64, seed)
    optimizer = optimizer_of(model, rate)
    held = next(TextBatches(seq_len=32, global_batch=64, seed=seed).step(200))
    for number in range(most):
        step(model, optimizer, next(batches.step(number)))
        with torch.no_grad():
            if model(*held).item() < TARGET:
                return number + 1
    return most


def batches(seeds: list[int]) -> dict[str, Any]:
    """Steps to the target by batch size and rate, one for each seed."""
    by_batch: dict[str, list[list[int]]] = {}
    for batch in BATCHES:
        by_batch[str(batch)] = [
            [steps_to_target(batch, rate, seed) for seed in seeds] for rate in BATCH_RATES
        ]
        print(batch, by_batch[str(batch)], flush=True)
    setting = {"width": 64, "seq_len": 32, "target": TARGET, "rates": BATCH_RATES}
    return {"setting": setting, "steps": by_batch}


def main() -> None:
    """One sweep, printed as it comes and written at the end."""
    sweeps = {"law": law, "rates": rates, "batches": batches}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sweep", choices=sweeps)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    how = parser.parse_args()
    torch.set_num_threads(1)
    sweep = sweeps[how.sweep](how.seeds)
    record = {
        "date": date.today().isoformat(),
        "command": f"python -m benchmarks.scale_the_recipe {' '.join(sys.argv[1:])}",
        "machine": {
            "cores": os.cpu_count(),
            "cpu": platform.machine(),
            "python": platform.python_version(),
            "versions": {"torch": version("torch")},
        },
        "seeds": how.seeds,
        **sweep,
    }
    if how.json:
        how.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
