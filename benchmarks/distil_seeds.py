"""What a teacher is worth: perplexity of a student by labels, soft targets, three losses, three temperatures.

    python -m benchmarks.distil_seeds --json data/measurements/distil_seeds.json

SmolLM2-135M is the teacher; the student is four of its thirty layers, with the words that the text uses. All
runs of a seed see the same windows of the address of 1861 in the same order, for as many steps, from the
same weights, and are scored on that of 1863. Seeds change the order of the windows. Lesson 54 makes one
such run; this is the spread behind its margin.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workshop.assets import language_model, text
from workshop.compress.distill import DistilLoss, Seen, cut_student, keep_words, spread_layers

TRAINED, SCORED = "1861", "1863"
SEQ_LEN, BATCH, LEARNING_RATE = 64, 4, 1e-3
LOSSES = {
    "labels": DistilLoss(soft=0, labels=1, hidden=0),
    "soft targets": DistilLoss(soft=1, labels=0, hidden=0, temperature=1),
    "three losses": DistilLoss(soft=1, labels=0.5, hidden=1, temperature=1),
    "three losses, T = 2": DistilLoss(soft=1, labels=0.5, hidden=1, temperature=2),
    "three losses, T = 4": DistilLoss(soft=1, labels=0.5, hidden=1, temperature=4),
}


def windows(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (windows, SEQ_LEN) each."""
    usable = (len(tokens) - 1) // SEQ_LEN * SEQ_LEN
    return tokens[:usable].view(-1, SEQ_LEN), tokens[1 : usable + 1].view(-1, SEQ_LEN)


def see(model: Any, inputs: Tensor) -> Seen:
    """Logits and last hidden states of some windows."""
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    return Seen(model.lm_head(hidden), hidden)


@torch.no_grad()
def see_all(model: Any, inputs: Tensor) -> Seen:
    """The same, eight windows at a time."""
    parts = [see(model, part) for part in inputs.split(8)]
    return Seen(torch.cat([p.logits for p in parts]), torch.cat([p.hidden for p in parts]))


def perplexity(model: Any, inputs: Tensor, targets: Tensor) -> float:
    """exp of the mean cross-entropy."""
    logits = see_all(model, inputs).logits
    return math.exp(F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item())


class Classroom:
    """The text, the teacher and what it says, once for all runs."""

    def __init__(self, num_tokens: int) -> None:
        self.teacher, tokenizer = language_model.load("smollm2", dtype=torch.float32)
        speeches = text.load("sotu")

        def tokens(year: str, count: int) -> Tensor:
            chosen = next(words for name, words in speeches.items() if name.startswith(year))
            ids = tokenizer(chosen, return_tensors="pt").input_ids[0]
            if len(ids) < count:
                raise ValueError(f"the address of {year} has {len(ids)} tokens, not {count}: take fewer")
            return ids[:count]

        train, held_out = tokens(TRAINED, num_tokens + 1), tokens(SCORED, 1025)
        words = torch.unique(torch.cat((train, held_out)))
        keep_words(self.teacher, words)
        self.num_words = len(words)
        self.inputs, self.targets = windows(torch.searchsorted(words, train))
        self.scored = windows(torch.searchsorted(words, held_out))
        self.said = see_all(self.teacher, self.inputs)

    def run(self, loss: DistilLoss, num_layers: int, steps: int, seed: int) -> float:
        """Train a student, return its perplexity on the speech it has not seen."""
        student: Any = cut_student(self.teacher, spread_layers(30, num_layers)).train()
        optimizer = torch.optim.AdamW(student.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), fused=True)
        generator, order = torch.Generator().manual_seed(seed), []
        for step in range(steps):
            if len(order) < BATCH:
                order = torch.randperm(len(self.inputs), generator=generator).tolist()
            batch = [order.pop() for _ in range(BATCH)]
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min(1, (step + 1) / 5) * (1 - step / steps)
            teacher = Seen(self.said.logits[batch], self.said.hidden[batch])  # type: ignore[index]
            optimizer.zero_grad()
            loss(see(student, self.inputs[batch]), teacher, self.targets[batch]).backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
        return perplexity(student.eval(), *self.scored)


def main() -> None:
    """All losses, all seeds; print as they come, write at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    how = parser.parse_args()
    room = Classroom(how.tokens)
    perplexities: dict[str, list[float]] = {name: [] for name in LOSSES}
    for seed in range(how.seeds):
        for name, loss in LOSSES.items():
            began = time.perf_counter()
            perplexities[name].append(room.run(loss, how.layers, how.steps, seed))
            print(
                f"seed {seed}, {name}: {perplexities[name][-1]:.1f}, {time.perf_counter() - began:.0f} s",
                flush=True,
            )
    ratios = {
        name: [a / b for a, b in zip(values, perplexities["labels"], strict=True)]
        for name, values in perplexities.items()
    }
    for name, values in ratios.items():
        print(
            f"{name}: {statistics.mean(values):.3f} of labels alone, {min(values):.3f} to {max(values):.3f}"
        )
    if how.json:
        record = {
            "date": date.today().isoformat(),
            "command": "python -m benchmarks.distil_seeds --json data/measurements/distil_seeds.json",
            "machine": {
                "cores": os.cpu_count(),
                "cpu": platform.machine(),
                "python": platform.python_version(),
                "versions": {name: version(name) for name in ("torch", "transformers")},
            },
            "setting": {key: getattr(how, key) for key in ("tokens", "layers", "steps", "seeds")}
            | {"words": room.num_words, "dtype": "fp32", "learning_rate": LEARNING_RATE},
            "teacher_perplexity": perplexity(room.teacher, *room.scored),
            "perplexity": perplexities,
            "of_labels": ratios,
        }
        how.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
