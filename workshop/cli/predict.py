"""``workshop predict RUN.toml``: what a run would take, before it is run.

Memory needs only the file. Time needs to know what the device reaches; where that is not known (a machine
that was never calibrated) the memory is printed all the same, with the reason why there is no time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

import numpy as np

from workshop.cli.counts import parse_count
from workshop.facts.run import Run, read_run
from workshop.predict.cost import Terms, TrainingCost, training_cost_of_model
from workshop.predict.memory import MemoryPrediction, predict_memory
from workshop.predict.step import StepPrediction, predict_step


def run(options: argparse.Namespace) -> int:
    """The command: 0, or 1 where the run does not fit."""
    if not options.run_file.is_file():
        raise ValueError(f"there is no file {options.run_file}")
    if options.price is not None and options.tokens is None:
        raise ValueError("--price needs --tokens: the price of how much training?")
    wanted = read_run(options.run_file)
    memory = predict_memory(wanted)
    step, reason = _time(wanted)
    cost = _cost(wanted, step, options)
    if options.json:
        print(json.dumps(as_json(wanted, memory, step, reason, cost), indent=1))
    else:
        print(as_text(wanted, memory, step, reason, cost))
    return 1 if memory.interval[0] > memory.capacity else 0


def _time(wanted: Run) -> tuple[StepPrediction | None, str]:
    """The step's time, or why there is none."""
    try:
        return predict_step(wanted), ""
    except ValueError as error:
        return None, str(error)


def _cost(wanted: Run, step: StepPrediction | None, options: argparse.Namespace) -> TrainingCost | None:
    if options.tokens is None or step is None:
        return None
    tokens, _ = parse_count(options.tokens, "--tokens")
    price: Any = options.price
    return training_cost_of_model(
        wanted.model,
        wanted.seq_len,
        tokens,
        wanted.cluster,
        step.mfu,
        Terms(dtype=_dtype(wanted), price_per_hour=price),
    )


def _dtype(wanted: Run) -> Any:
    from workshop.facts.precision import precision

    return precision(wanted.layout.precision).dtype


def as_text(
    wanted: Run, memory: MemoryPrediction, step: StepPrediction | None, reason: str, cost: TrainingCost | None
) -> str:
    """What a person reads."""
    cuts = [f"{axis} {size}" for axis, size in wanted.layout.sizes().items() if size > 1] or ["one rank"]
    model = f"{wanted.model.name}, {wanted.model.num_params:,} parameters"
    batch = f"{wanted.global_batch:,} sequences of {wanted.seq_len:,} tokens a step"
    each = f"(micro-batch {wanted.micro_batch}, {wanted.accumulation} a rank)"
    time = str(step) if step else f"time is not predicted: {reason}"
    head = f"{model}, on {wanted.cluster.name}: {', '.join(cuts)}\n{batch} {each}"
    sections = [head, str(memory), time]
    return "\n\n".join([*sections, f"the whole training: {cost}"] if cost else sections)


def as_json(
    wanted: Run, memory: MemoryPrediction, step: StepPrediction | None, reason: str, cost: TrainingCost | None
) -> dict[str, Any]:
    """What a program reads. Bytes are lists, one entry for each pipeline stage."""
    return {
        "run": {
            "model": wanted.model.name,
            "parameters": wanted.model.num_params,
            "cluster": wanted.cluster.name,
            "layout": dataclasses.asdict(wanted.layout),
            "micro_batch": wanted.micro_batch,
            "accumulation": wanted.accumulation,
            "global_batch": wanted.global_batch,
            "seq_len": wanted.seq_len,
        },
        "memory": {
            "parts": {part: _whole(sizes) for part, sizes in memory.parts.items()},
            "allocated_bytes": _whole(memory.allocated),
            "reserved_bytes": _whole(memory.reserved),
            "device_bytes": _whole(memory.device),
            "peak_moment": memory.moment,
            "worst_stage": memory.worst_stage,
            "device_bytes_interval": list(memory.interval),
            "capacity_bytes": memory.capacity,
            "fits": memory.fits,
            "verdict": memory.verdict,
        },
        "step": step and step_json(step),
        "no_step_because": reason,
        "training": cost and {**dataclasses.asdict(cost), "days": cost.days},
    }


def step_json(step: StepPrediction) -> dict[str, Any]:
    """A step's time as plain numbers."""
    return {
        "seconds": step.seconds,
        "interval_seconds": [step.low, step.high],
        "causes_seconds": step.causes,
        "tokens_per_second": step.tokens_per_second,
        "tflops_per_rank": step.tflops_per_rank,
        "mfu": step.mfu,
        "hfu": step.hfu,
        "limited_by": step.limit,
    }


def _whole(sizes: Any) -> list[int]:
    return [round(size) for size in np.atleast_1d(sizes).tolist()]
