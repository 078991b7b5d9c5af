"""What `measure` costs: seconds of a step with it over seconds without, in the same run, in turns.

    python benchmarks/measure.py

For each model a plain training step and a measured one alternate; the ratio of the medians is printed, for
memory alone, for traffic (collectives and FLOPs) alone, and for both. CPU seconds of the process are
compared, not wall time: the machine may be shared. The profiler's start and stop, and the reading of its
events, are outside the step and given separately.
"""

from __future__ import annotations

import statistics
import time

import torch

from workshop.measure import counter
from workshop.measure.session import measure
from workshop.models.gpt import GPT, GPTConfig

MODELS = {
    "tiny (1 M parameters, 256 tokens)": (GPTConfig(1024, 128, 4, 4, 4, 344), (2, 128)),
    "small (10 M parameters, 1,024 tokens)": (GPTConfig(4096, 320, 6, 5, 5, 864), (4, 256)),
}
KINDS = {"memory": (True, False), "traffic": (False, True), "both": (True, True)}
STEPS = 5
ROUNDS = 3


def run_steps(model: GPT, optimizer: torch.optim.Optimizer, shape: tuple[int, int]) -> float:
    """CPU seconds of the quickest of some steps."""
    seconds = []
    for _ in range(STEPS):
        tokens = torch.randint(0, 1024, shape)
        begun = time.process_time()
        model(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - begun)
    return min(seconds)


def ratio(
    config: GPTConfig, shape: tuple[int, int], memory: bool, traffic: bool
) -> tuple[float, float, float]:
    """(measured over plain, seconds of a plain step, seconds spent outside the steps)."""
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters())
    run_steps(model, optimizer, shape)
    plain, measured, around = [], [], []
    for _ in range(ROUNDS):
        plain.append(run_steps(model, optimizer, shape))
        begun = time.process_time()
        with measure(model, optimizer, memory=memory, traffic=traffic):
            inside = time.process_time()
            measured.append(run_steps(model, optimizer, shape))
            inside = time.process_time() - inside
        around.append(time.process_time() - begun - inside)
    return (
        statistics.median(measured) / statistics.median(plain),
        statistics.median(plain),
        statistics.median(around),
    )


def main() -> None:
    """Print the table."""
    counter.enable()
    torch.set_num_threads(1)
    print(f"{'model':<40} {'measuring':<8} ratio  plain step  outside the steps")
    for name, (config, shape) in MODELS.items():
        for kind, (memory, traffic) in KINDS.items():
            quotient, plain, around = ratio(config, shape, memory, traffic)
            print(f"{name:<40} {kind:<8} {quotient:5.3f} {plain:9.4f} s {around:9.3f} s", flush=True)


if __name__ == "__main__":
    main()
