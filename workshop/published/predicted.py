"""What we predict for a measured run: seconds in the source's own quantity, bytes, and intervals.

Runs that share model, cluster, stack and format go through the time model as one grid. What a predictor
does not have is refused here with a sentence, and never passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workshop.facts.precision import precision
from workshop.facts.run import Run
from workshop.facts.stack import Software
from workshop.predict.case import NotPredictable, refuse, setting_of
from workshop.predict.flops import forward_flops, megatron_flops
from workshop.predict.interval import Interval, memory_margins, model_doubts, time_interval
from workshop.predict.layouts import Layouts
from workshop.predict.memory import MemoryPrediction, predict_memory, saved_activations
from workshop.predict.time.rates import Rates, rates_of
from workshop.predict.time.step import CAUSES, StepArrays, predict_steps
from workshop.published.record import (
    ACTIVATIONS,
    ALLOCATED,
    HARDWARE,
    MFU,
    OUT_OF_MEMORY,
    SECONDS,
    TIMES,
    TOKENS,
    MeasuredRun,
    Observation,
    Skipped,
)


@dataclass(frozen=True)
class Constants:
    """Constants to use instead of the package's own: by device, and of a stack by its name (fitting does)."""

    rates: Mapping[str, Rates]
    software: Mapping[str, Mapping[str, float]]

    def software_of(self, used: Software) -> Software:
        """A stack with its constants changed."""
        return replace(used, **self.software.get(used.name, {}))  # type: ignore[arg-type]


OWN = Constants({}, {})


def time_gap(run: Run) -> str:
    """What of a run the time model does not have, in a sentence; empty where it has all."""
    try:
        refuse(run)
    except NotPredictable as reason:
        return str(reason)
    return ""


def predict_times(observations: Sequence[Observation], constants: Constants = OWN) -> np.ndarray:
    """Predicted value of each observation of time, in its own quantity.

    Raises ValueError where one of them has a device or a format without constants.
    """
    predicted = np.empty(len(observations))
    for members, layouts, steps in _steps(observations, constants):
        predicted[members] = in_quantity(observations[members[0]], steps.seconds, layouts)
    return predicted


def predict_causes(observations: Sequence[Observation]) -> np.ndarray:
    """Predicted seconds of each observation's step by cause: [observations, causes]."""
    causes = np.empty((len(observations), len(CAUSES)))
    for members, _, steps in _steps(observations, OWN):
        causes[members] = np.stack([getattr(steps, cause) for cause in CAUSES], axis=1)
    return causes


def _steps(
    observations: Sequence[Observation], constants: Constants
) -> Iterator[tuple[list[int], Layouts, StepArrays]]:
    for members in _alike(observations):
        first = observations[members[0]].record
        run = first.run
        layouts = Layouts.of_runs([observations[i].record.run for i in members])
        rates = constants.rates.get(run.cluster.device.name) or rates_of(run.cluster.device.name)
        used = constants.software_of(first.software)
        yield members, layouts, predict_steps(setting_of(run, used, rates), layouts)


def _alike(observations: Sequence[Observation]) -> Iterable[list[int]]:
    groups: dict[object, list[int]] = {}
    for index, one in enumerate(observations):
        run, record = one.record.run, one.record
        cluster = (run.cluster.name, run.cluster.device.name, run.cluster.devices_per_node, run.cluster.inter)
        layout = run.layout
        shape = (run.model, cluster, run.seq_len, run.document_len, layout.precision, one.quantity)
        choices = (run.optimizer, run.adapter, layout.offload, layout.recompute_modules, run.implementation)
        key = (*shape, *choices, record.software)
        counted = (record.megatron_count, record.flops_per_token)
        groups.setdefault((*key, *counted), []).append(index)
    return groups.values()


def in_quantity(one: Observation, seconds: np.ndarray, layouts: Layouts) -> np.ndarray:
    """From seconds of a step to what the source reports."""
    if one.quantity == SECONDS:
        return seconds
    run, device = one.record.run, one.record.run.cluster.device
    tokens = layouts.data * layouts.micro_batch * layouts.accumulation * run.seq_len / layouts.world_size
    rate = tokens / seconds
    if one.quantity == TOKENS:
        return rate
    again = one.quantity == HARDWARE
    if one.record.flops_per_token:
        per_token = one.record.flops_per_token
    elif one.record.megatron_count:
        per_token = megatron_flops(run.model, run.seq_len, 1.0, again)
    else:
        forward = sum(forward_flops(run.model, run.seq_len).values())
        per_token = 3 * forward + (forward if again else 0)
    flops = rate * per_token
    return flops / device.peak("bf16") if one.quantity == MFU else flops / 1e12


def predicted_memory(record: MeasuredRun) -> MemoryPrediction:
    """Bytes of a run by stage."""
    return predict_memory(record.run, record.pass_group)


def memory_value(one: Observation, prediction: MemoryPrediction) -> float:
    """Bytes of what was measured, on the stage where it was; for out_of_memory 1 where it does not fit."""
    if one.quantity == OUT_OF_MEMORY:
        return float(not prediction.fits)
    stage = prediction.worst_stage if one.record.stage is None else one.record.stage
    if one.quantity == ACTIVATIONS:
        return float(saved_activations(one.record.run)[stage])
    return float(getattr(prediction, one.quantity.removeprefix("memory_"))[stage])


def time_predictions(records: Sequence[MeasuredRun]) -> tuple[list[tuple[Observation, float]], list[Skipped]]:
    """Every observation of time beside its prediction, and what has none, with the reason."""
    skipped, known = [], []
    for record in records:
        for one in record.observations(TIMES):
            if gap := time_gap(record.run):
                skipped.append(Skipped(record.table, record.row, gap, "time"))
            else:
                known.append(one)
    answers: list[tuple[Observation, float]] = []
    for members in _alike(known):
        some = [known[i] for i in members]
        try:
            answers += zip(some, map(float, predict_times(some)), strict=True)
        except ValueError as reason:
            skipped += [Skipped(one.table, one.row, str(reason), "time") for one in some]
    return answers, skipped


def interval_of(record: MeasuredRun, quantity: str, predicted: float) -> Interval:
    """From p10 to p90 of what would be measured, in the unit that was measured.

    quantity: one of `TIMES` or of `MEMORIES` in bytes.
    """
    run = record.run
    if quantity in TIMES:
        around = time_interval(run, record.software.name, 1.0)
        if quantity != SECONDS:  # a rate: the longest step is the least of it
            around = Interval(1 / around.upper, 1 / around.lower)
        return around.times(predicted)
    of_model = model_doubts(run.model, precision(run.layout.precision), run.adapter)
    kept, taken = memory_margins(of_model, run.implementation.name, run.layout.pipeline > 1)
    return (kept if quantity == ALLOCATED else taken).times(predicted)
