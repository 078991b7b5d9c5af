"""``workshop predict FILE``: what a run would take, before it is run.

The file is a run of the workshop's own (TOML), or somebody's that `workshop configs read` understands:
torchtitan's TOML, Megatron-LM's command line, NeMo's YAML, an Accelerate YAML, a DeepSpeed JSON. What such a
file does not say (the devices, and for the last two the model and its batches) is given by options.

Memory needs only the file. Time needs to know what the device reaches; where that is not known (a machine
that was never calibrated) the memory is printed all the same, with the reason why there is no time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workshop.cli.counts import count, parse_count, positive
from workshop.cli.named_model import named_model
from workshop.configs.formats.content import content
from workshop.configs.overrides import Overrides
from workshop.configs.reading import read_config
from workshop.facts.run import Run, read_run
from workshop.facts.serving import Serving
from workshop.predict.cost import Terms, TrainingCost, training_cost_of_model
from workshop.predict.memory import MemoryPrediction, predict_memory
from workshop.predict.serving import predict_serving
from workshop.predict.time.step import StepPrediction, predict_step
from workshop.predict.traffic import TrafficPrediction, predict_traffic


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop predict``."""
    parser.description = (
        "Predict bytes by part and pipeline stage, seconds by cause, MFU, and with --tokens the cost of a "
        "whole training. The file is a run (see examples/), a torchtitan TOML, a Megatron-LM command line, "
        "a NeMo YAML, or what `workshop configs read` takes. Exit code 0: it fits, or it is too close to "
        "call; 1: it does not fit; 2: the file is wrong."
    )
    parser.add_argument("run_file", type=Path, metavar="FILE", help="the run, or another program's file")
    parser.add_argument("--model", default="", metavar="NAME", help="where the file does not name it")
    parser.add_argument("--device", default="", metavar="NAME", help="of each rank: H100; or all: 64xH100")
    for name, words in (
        ("num-processes", "ranks, where the file does not say"),
        ("seq-len", "tokens of a sequence, where the file does not say"),
        ("micro-batch", "sequences that pass a rank at once, where the file does not say"),
    ):
        parser.add_argument(f"--{name}", type=count, default=0, metavar="N", help=words)
    _add_serving(parser)
    parser.add_argument("--tokens", metavar="N", help="tokens of the whole training, for example 15T")
    parser.add_argument(
        "--price", type=positive, metavar="P", help="of one device for an hour, with --tokens"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def _add_serving(parser: argparse.ArgumentParser) -> None:
    serving = parser.add_argument_group(
        "serving", "The run as a server: its micro_batch is the requests at once, its seq_len the longest."
    )
    serving.add_argument(
        "--serve",
        type=int,
        nargs=2,
        metavar=("PROMPT", "OUTPUT"),
        help="tokens of each prompt and answer: predict time to first token, between tokens, throughput",
    )
    serving.add_argument("--engine", default="", metavar="NAME", help="who serves (default: vllm)")
    serving.add_argument("--weights", default="", metavar="NAME", help="their format (default: the run's)")
    serving.add_argument("--kv", default="", metavar="NAME", help="format of the cache (default: the run's)")


def run(options: argparse.Namespace) -> int:
    """The command: 0, or 1 where the run does not fit."""
    if not options.run_file.is_file():
        raise ValueError(f"there is no file {options.run_file}")
    if options.price is not None and options.tokens is None:
        raise ValueError("--price needs --tokens: the price of how much training?")
    if options.serve and options.tokens is not None:
        raise ValueError("--tokens is of a training, and --serve asks for a server: one of the two")
    served = [f"--{name}" for name in ("engine", "weights", "kv") if getattr(options, name)]
    if served and not options.serve:
        raise ValueError(f"{', '.join(served)}: of a server; add --serve PROMPT OUTPUT")
    wanted = wanted_run(options)
    if options.serve:
        return _served(wanted, options)
    predicted = Predicted(
        predict_memory(wanted), or_reason(predict_traffic, wanted), or_reason(predict_step, wanted)
    )
    cost = _cost(wanted, predicted.step, options)
    if options.json:
        print(json.dumps(as_json(wanted, predicted, cost), indent=1, allow_nan=False))
    else:
        print(as_text(wanted, predicted, cost))
    return 1 if predicted.memory.interval[0] > predicted.memory.capacity else 0


def _served(wanted: Run, options: argparse.Namespace) -> int:
    """The run as a server: 0, or 1 where its requests do not fit at once."""
    prompt, output = options.serve
    serving = Serving(wanted, options.weights, options.kv)
    prediction = predict_serving(serving, prompt, output, engine=options.engine or "vllm")
    print(json.dumps(prediction.as_json(), indent=1) if options.json else prediction)
    return 0 if prediction.fits else 1


def wanted_run(options: argparse.Namespace) -> Run:
    """The run of the file; notes of a translation go to standard error.

    Raises:
        ValueError: The file is nobody's, or says too little (what is missing is named), or says what is not
            modelled.
    """
    document = content(options.run_file)
    given = {
        name: getattr(options, name)
        for name in ("model", "device", "num_processes", "seq_len", "micro_batch")
    }
    if document.kind == "run":
        extra = ", ".join(f"--{name.replace('_', '-')}" for name, value in given.items() if value)
        if extra:
            raise ValueError(
                f"{extra}: {options.run_file.name} is a run, and says it itself; change the file"
            )
        return read_run(options.run_file)
    model = named_model(given["model"]) if given["model"] else ""
    reading = read_config(options.run_file, Overrides(**{**given, "model": model}))
    if reading.run is None and reading.not_modelled:
        raise ValueError("not modelled here:\n- " + "\n- ".join(reading.not_modelled))
    if reading.run is None:
        raise ValueError(
            f"{options.run_file.name} does not say everything; give also {', '.join(reading.lacking)}"
        )
    for note in reading.parsed.notes:
        print(f"note: {note}", file=sys.stderr)
    if reading.parsed.without_effect:
        print(
            f"without effect on the prediction: {', '.join(reading.parsed.without_effect)}", file=sys.stderr
        )
    for mistake in reading.mistakes:
        print(str(mistake), file=sys.stderr)
    return reading.run


@dataclasses.dataclass(frozen=True)
class Predicted:
    """What is predicted of a run; a sentence in place of what cannot be."""

    memory: MemoryPrediction
    traffic_or_reason: TrafficPrediction | str
    step_or_reason: StepPrediction | str

    @property
    def step(self) -> StepPrediction | None:
        """The step's time, where it is known."""
        return None if isinstance(self.step_or_reason, str) else self.step_or_reason

    @property
    def traffic(self) -> TrafficPrediction | None:
        """The traffic, where it is known."""
        return None if isinstance(self.traffic_or_reason, str) else self.traffic_or_reason


def or_reason(predict: Callable[[Run], Any], wanted: Run) -> Any:
    """A prediction, or why there is none."""
    try:
        return predict(wanted)
    except ValueError as error:
        return str(error)


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


def as_text(wanted: Run, predicted: Predicted, cost: TrainingCost | None) -> str:
    """What a person reads."""
    cuts = [f"{axis} {size}" for axis, size in wanted.layout.sizes().items() if size > 1] or ["one rank"]
    model = f"{wanted.model.name}, {wanted.model.num_params:,} parameters"
    batch = f"{wanted.global_batch:,} sequences of {wanted.seq_len:,} tokens a step"
    each = f"(micro-batch {wanted.micro_batch}, {wanted.accumulation} a rank)"
    time = str(predicted.step or f"time is not predicted: {predicted.step_or_reason}")
    traffic = [str(predicted.traffic_or_reason)] if wanted.layout.world_size > 1 else []
    head = f"{model}, on {wanted.cluster.name}: {', '.join(cuts)}\n{batch} {each}"
    sections = [head, str(predicted.memory), *traffic, time]
    return "\n\n".join([*sections, f"the whole training: {cost}"] if cost else sections)


def as_json(wanted: Run, predicted: Predicted, cost: TrainingCost | None) -> dict[str, Any]:
    """What a program reads. Bytes of memory are lists, one entry for each pipeline stage."""
    memory, step, traffic = predicted.memory, predicted.step, predicted.traffic
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
        "traffic": traffic and traffic_json(traffic),
        "no_traffic_because": "" if traffic else predicted.traffic_or_reason,
        "step": step and step_json(step),
        "no_step_because": "" if step else predicted.step_or_reason,
        "training": cost and {**dataclasses.asdict(cost), "days": cost.days},
    }


def traffic_json(traffic: TrafficPrediction) -> dict[str, Any]:
    """A rank's collectives as plain numbers: every stage's rows, and the busiest stage's sums."""
    return {
        "rows": traffic.to_list(),
        "busiest_stage": traffic.busiest_stage,
        "wire_bytes": traffic.wire_bytes,
        "wire_bytes_by_axis": traffic.by_axis(),
        "wire_bytes_by_collective": traffic.by_collective(),
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
