"""The test of a planner: runs that already happened, predicted again from facts alone.

    seconds = tokens * FLOPs a token / (devices * rate)

FLOPs a token are counted from the model's shape, attention included (`flops.forward_flops`); where the told
rate counts recomputation, so does the count here (one more forward of the layers). Three kinds of rate:

- told in FLOP/s or in tokens/s of one device: only the counting is tested;
- told as a share of the peak;
- untold: then the share of the peak of an earlier run of the same authors stands in (Llama 2 runs at the
  share that LLaMA-65B had). Here something is predicted that nobody has told.

Published hours hold what no formula knows: stops, restarts, evaluation, experiments. So a prediction of pure
computing should lie below them, and by a few per cent, not by half.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.facts.layout import Layout
from workshop.facts.tabular import Table
from workshop.facts.training_runs import TrainingRun, training_run, training_runs
from workshop.predict.flops import forward_flops, recomputed_flops

DAY = 86400.0


@dataclass(frozen=True)
class Reproduced:
    """One run again. Hours are device hours; ``published_days`` is 0 where only hours were told."""

    run: TrainingRun
    flops_per_token: float
    flops_per_second: float
    device_hours: float

    @property
    def devices(self) -> int:
        """Devices of the run; 1 where the authors did not tell."""
        return self.run.hardware.num_devices

    @property
    def days(self) -> float:
        """Predicted days of computing."""
        return self.device_hours / 24 / self.devices

    @property
    def published_hours(self) -> float:
        """Device hours as told, or the told days times the devices."""
        return self.run.device_hours or self.run.days * 24 * self.devices

    @property
    def deviation(self) -> float:
        """Predicted over published device hours, less one."""
        return self.device_hours / self.published_hours - 1

    @property
    def off_by(self) -> str:
        """The deviation in words: "-10.2%"; never "-0.0%"."""
        return f"{round(self.deviation, 3) + 0.0:+.1%}"

    @property
    def mfu(self) -> float:
        """Share of the bf16 peak that the predicted rate is, in model FLOPs."""
        tokens_per_second = self.flops_per_second / self.flops_per_token
        return tokens_per_second * flops_per_token(self.run, "model") / self.run.hardware.device.peak("bf16")

    @property
    def implied_mfu(self) -> float:
        """Share of the bf16 peak that the published hours leave, in model FLOPs."""
        done = self.run.tokens * flops_per_token(self.run, "model")
        return done / (self.published_hours * 3600 * self.run.hardware.device.peak("bf16"))


def flops_per_token(run: TrainingRun, counts: str = "") -> float:
    """FLOPs of training on one token: three forwards; ``counts="hardware"`` adds a fourth of the layers.

    ``counts`` is the run's own by default. An estimate without a shape has 6 a parameter.
    """
    model = run.spec
    if model is None:
        return 6.0 * run.params
    flops = 3 * sum(forward_flops(model, run.seq_len).values())
    if (counts or run.counts) == "hardware":
        flops += recomputed_flops(model, Layout(recompute="full"), run.seq_len)
    return flops


def flops_per_second(run: TrainingRun) -> float:
    """FLOPs a second of one device, counted as the run counts them."""
    if run.tflops:
        return run.tflops * 1e12
    if run.tokens_per_second:
        return run.tokens_per_second * flops_per_token(run)
    share = run.mfu or reproduce(training_run(run.rate_of)).mfu
    return share * run.hardware.device.peak("bf16")


def reproduce(run: TrainingRun | str) -> Reproduced:
    """One run predicted from its facts. ValueError for an unknown name."""
    run = training_run(run) if isinstance(run, str) else run
    needed, rate = flops_per_token(run), flops_per_second(run)
    return Reproduced(run, needed, rate, run.tokens * needed / rate / 3600)


def reproduce_all() -> tuple[Reproduced, ...]:
    """Every run of the catalogue."""
    return tuple(reproduce(run) for run in training_runs().values())


def reproduced_table(runs: tuple[Reproduced, ...] = ()) -> Table:
    """Predicted beside published, a line for each run."""
    rows = [_cells(again) for again in runs or reproduce_all()]
    return Table(
        ("run", "devices", "tokens", "rate", "predicted", "published", "deviation"),
        rows,
        "Runs that happened, predicted from facts",
        "Published hours hold stops and restarts; a prediction of computing alone should be a little lower.",
    )


def _cells(again: Reproduced) -> list[str]:
    run = again.run
    device = run.hardware.device.name
    with_days = run.days and again.devices > 1
    return [
        run.name,
        f"{again.devices:,} {device}" if again.devices > 1 else device,
        f"{run.tokens / 1e12:.3g}T",
        _rate(run),
        f"{again.days:.1f} days" if with_days else f"{again.device_hours:,.0f} h",
        f"{again.published_hours / 24 / again.devices:.1f} days"
        if with_days
        else f"{run.device_hours:,.0f} h",
        again.off_by,
    ]


def _rate(run: TrainingRun) -> str:
    if run.tflops:
        return f"{run.tflops:.0f} TFLOP/s" + (", hardware" if run.counts == "hardware" else "")
    if run.tokens_per_second:
        return f"{run.tokens_per_second:.0f} tokens/s"
    return f"MFU {run.mfu:.0%}" if run.mfu else f"MFU of {run.rate_of}"
