"""Days, device hours, money and energy of a training run.

    FLOPs   = 6 * parameters * tokens                        (flops.forward_flops counts them exactly)
    seconds = FLOPs / (devices * peak * MFU)

70 billion parameters on 15 trillion tokens with 1,024 H100 at half of their 989 TFLOP/s: 6.3e24 / 5.06e17 =
144 days. The rest follows: device hours are devices times hours, money is device hours times a price, energy
is device hours times power and the overhead of the building (PUE, 1.1 to 1.6). A share of the time is lost
to failures and restarts: Llama 3 405B was interrupted 466 times in 54 days and kept above 90 per cent (arXiv
2407.21783, section 3.3.4).

Prices change, so none is built in.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.facts.device import ClusterSpec
from workshop.facts.model import ModelSpec
from workshop.predict.flops import forward_flops


@dataclass(frozen=True, repr=False)
class TrainingCost:
    """What a training run takes. `money` is None without a price, `energy_kwh` None where no power is
    known.
    """

    seconds: float
    device_hours: float
    flops: float
    energy_kwh: float | None = None
    money: float | None = None

    @property
    def days(self) -> float:
        """Days from start to end."""
        return self.seconds / 86400

    def __str__(self) -> str:
        text = f"{self.days:,.1f} days, {self.device_hours:,.0f} device hours"
        if self.energy_kwh is not None:
            text += f", {self.energy_kwh / 1000:,.0f} MWh"
        return text + (f", {self.money:,.0f} of the price's currency" if self.money is not None else "")

    __repr__ = __str__


@dataclass(frozen=True)
class Terms:
    """What a device hour stands for: price, power drawn, and time lost.

    dtype: the format whose peak an MFU refers to. lost: share of the time lost to failures and restarts.
    price_per_hour: of one device. pue: the building's power over the devices'. load: mean power as a share
    of the device's limit.
    """

    dtype: str = "bf16"
    lost: float = 0.0
    price_per_hour: float | None = None
    pue: float = 1.2
    load: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.lost < 1:
            raise ValueError(f"lost is {self.lost}; it is a share of the time, from 0 to below 1")


def training_cost(
    params: float,
    tokens: float,
    cluster: ClusterSpec,
    mfu: float,
    terms: Terms | None = None,
    flops_per_token: float | None = None,
) -> TrainingCost:
    """Cost of training `params` parameters on `tokens` tokens at a given model FLOPs utilization.

    params: parameters a token passes (active ones, for a mixture of experts), 6 FLOPs each, unless
        `flops_per_token` says how many exactly. mfu: share of the peak, 0 to 1.
    Raises ValueError for an impossible share or a count that is not positive.
    """
    terms = terms or Terms()
    for name, value in (("params", params), ("tokens", tokens)):
        if not value > 0:
            raise ValueError(f"{name} is {value}; it must be positive")
    if not 0 < mfu <= 1:
        hint = f" (did you mean {mfu / 100}?)" if 1 < mfu <= 100 else ""
        raise ValueError(f"mfu is {mfu}; it is a share of the peak between 0 and 1{hint}")
    flops = (6.0 * params if flops_per_token is None else flops_per_token) * tokens
    seconds = flops / (cluster.num_devices * cluster.device.peak(terms.dtype) * mfu) / (1 - terms.lost)
    return cost_of_seconds(seconds, cluster, flops, terms)


def cost_of_seconds(
    seconds: float, cluster: ClusterSpec, flops: float = 0.0, terms: Terms | None = None
) -> TrainingCost:
    """Cost of keeping a cluster for so many seconds."""
    terms = terms or Terms()
    hours = seconds / 3600 * cluster.num_devices
    watts = cluster.device.power_watts
    energy = hours * watts / 1000 * terms.pue * terms.load if watts else None
    price = terms.price_per_hour
    return TrainingCost(seconds, hours, flops, energy, None if price is None else hours * price)


def training_cost_of_model(
    model: ModelSpec,
    seq_len: int,
    tokens: float,
    cluster: ClusterSpec,
    mfu: float,
    terms: Terms | None = None,
) -> TrainingCost:
    """As `training_cost`, with the model's FLOPs counted exactly, attention included."""
    per_token = 3 * sum(forward_flops(model, seq_len).values())
    return training_cost(model.num_active_params, tokens, cluster, mfu, terms, per_token)
