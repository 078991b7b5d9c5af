"""How long a step of a run takes: seconds by cause, tokens/s, TFLOP/s, MFU and HFU, with an interval.

The model itself, with its equations, is in `step_arrays`; the constants in `rates`. Here one run goes in and
one answer comes out:

================================================  ===================================================
MFU = model FLOPs / (seconds * ranks * peak)      what the mathematics needs (arXiv 2204.02311, appendix B)
HFU = hardware FLOPs / (seconds * ranks * peak)   recomputation counted as well
================================================  ===================================================

The interval is the device's mean relative error on published rows the constants were not fitted on, both
ways: about six in ten measurements lie within it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workshop.facts.run import Run
from workshop.facts.tabular import preformatted
from workshop.facts.units import format_seconds
from workshop.predict.case import NotPredictable, Setting, setting_of, stack_for
from workshop.predict.flops import step_flops
from workshop.predict.grid import Grid
from workshop.predict.time.rates import Software, software
from workshop.predict.time.step_arrays import CAUSES, StepArrays, predict_steps

__all__ = [
    "CAUSES",
    "NotPredictable",
    "Setting",
    "StepArrays",
    "StepPrediction",
    "predict_step",
    "predict_steps",
    "stack_for",
]


@dataclass(frozen=True, repr=False)
class StepPrediction:
    """A step of one run. `causes` are seconds and sum to `seconds`; `low` and `high` bound the seconds."""

    seconds: float
    low: float
    high: float
    causes: dict[str, float]
    tokens: int
    ranks: int
    model_flops: float
    hardware_flops: float
    peak_flops: float

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks together."""
        return self.tokens / self.seconds

    @property
    def tflops_per_rank(self) -> float:
        """Model TFLOP/s of one rank."""
        return self.model_flops / self.seconds / self.ranks / 1e12

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization, 0 to 1."""
        return self.model_flops / self.seconds / self.ranks / self.peak_flops

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization, 0 to 1."""
        return self.hardware_flops / self.seconds / self.ranks / self.peak_flops

    @property
    def limit(self) -> str:
        """What takes most of the step besides arithmetic, in words."""
        return limit_of(self.causes)

    def __str__(self) -> str:
        rows = sorted(((v, k) for k, v in self.causes.items() if v > 0.001 * self.seconds), reverse=True)
        text = (
            f"{format_seconds(self.seconds)} a step "
            f"({format_seconds(self.low)} to {format_seconds(self.high)}), "
            f"{self.tokens_per_second:,.0f} tokens/s, {self.tflops_per_rank:,.0f} TFLOP/s per rank, "
            f"MFU {self.mfu:.1%}, HFU {self.hfu:.1%}"
        )
        return text + "".join(
            f"\n  {cause:<10} {value / self.seconds:6.1%}  {format_seconds(value)}" for value, cause in rows
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(str(self))


_WORDS = {
    "pointwise": "memory bandwidth (norms, activations, residuals)",
    "recompute": "recomputation",
    "host": "launching kernels: the pieces are too small",
    "tensor": "tensor-parallel communication",
    "expert": "exchanging tokens between experts",
    "context": "context-parallel communication",
    "head": "the output head and its loss",
    "bubble": "the pipeline's bubble and its slowest stage",
    "pipeline": "passing activations between stages",
    "data": "data-parallel communication that nothing hides",
    "optimizer": "the optimizer's step",
    "offload": "the link to the host",
    "skew": "waiting for the slowest rank",
    "attention": "attention",
    "islands": "the slow link between islands",
}


def limit_of(causes: dict[str, float]) -> str:
    """What takes most of a step besides the matrix products, with its share."""
    total = sum(causes.values())
    cause = max((c for c in causes if c != "matmul"), key=lambda c: causes[c])
    return f"{_WORDS[cause]}: {causes[cause] / total:.0%} of the step"


def predict_step(run: Run, stack: str | Software = "") -> StepPrediction:
    """Time of one optimizer step of `run`.

    stack: a training stack of `rates.all_software`, or one of your own; by default what the run's
    implementation is.

    Raises:
        NotPredictable: something about the run that the time model does not have.
        ValueError: the device has no constants, or the cluster no links.
    """
    setting = setting_of(run, software(stack) if isinstance(stack, str) and stack else stack or None)
    rates = setting.rates
    arrays = predict_steps(setting, Grid.of_runs([run]))
    seconds = float(arrays.seconds[0])
    flops = step_flops(run)
    return StepPrediction(
        seconds,
        seconds / (1 + rates.error),
        seconds * (1 + rates.error),
        arrays.at(0),
        run.tokens_per_step,
        run.layout.world_size,
        flops.model,
        flops.hardware,
        run.cluster.device.peak(setting.precision.dtype),
    )


def shares(arrays: StepArrays) -> dict[str, np.ndarray]:
    """Share of each cause in the step, arrays over layouts."""
    total = arrays.seconds
    return {cause: getattr(arrays, cause) / total for cause in CAUSES}
