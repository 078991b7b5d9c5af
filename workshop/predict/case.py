"""What a prediction is asked about, besides how the work is cut: model, cluster, formats, stack, choices.

A `Setting` stays the same while layouts vary, so that one of it goes with `Layouts` of a million.
`setting_of` makes it from a `Run`, and refuses there what the time model does not have (`NotPredictable`):
a run's field is modelled or it is refused, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from workshop.facts.catalogue import device
from workshop.facts.device import ClusterSpec
from workshop.facts.implementation import Implementation
from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision, precision
from workshop.facts.run import Adapter, Run
from workshop.facts.stack import Software, stacks
from workshop.predict.collectives import Wires
from workshop.predict.pipeline.closed import impossible
from workshop.predict.time.rates import Rates, rates_for


@dataclass(frozen=True)
class Policy:
    """What is recomputed (``name`` and ``modules`` as in ``Layout``) and what is trained.

    ``trained`` names the linear maps that get an adapter; ``None`` means that everything is trained.
    """

    name: str = "none"
    modules: tuple[str, ...] = ()
    trained: tuple[str, ...] | None = None
    adapter: str = ""
    quantized: bool = False


@dataclass(frozen=True)
class TrainingConfig:
    """What `Layouts` leaves out; one configuration goes with many of them."""

    model: ModelSpec
    how: Implementation
    numbers: Precision
    policy: Policy = field(default_factory=Policy)
    schedule: str = "1f1b"
    optimizer: str = "adamw"
    adapter: Adapter | None = None
    recompute_every: int = 1
    recompute_layers: int = 0
    offload: str = "none"
    target_len: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of layers the model has."""
        return tuple(dict.fromkeys(self.model.layer_kinds()))


def is_fsdp2(how: Implementation, numbers: Precision) -> bool:
    """Whether stage 2 is FSDP2's, which keeps shards of the weights and gathers them for every micro-batch.

    Recipes with master weights are DeepSpeed's and Megatron's, whose stage 2 keeps the 16-bit weights whole.
    """
    return how.buffers == "freed" and not numbers.master


def config_of(run: Run) -> TrainingConfig:
    """The choices of a run that are names rather than numbers."""
    layout = run.layout
    return TrainingConfig(
        run.model,
        run.implementation,
        precision(layout.precision),
        policy_of(run),
        layout.schedule,
        run.optimizer,
        run.adapter,
        layout.recompute_every,
        layout.recompute_layers,
        layout.offload,
        run.target_len,
    )


def check_run(run: object) -> None:
    """Raise ``ValueError`` for what is no `Run`, such as the name of a model."""
    if not isinstance(run, Run):
        raise ValueError(
            f"this asks for a Run, such as Run('llama-3-8b', '8xH100', Layout(shard=8, zero=3)), not {run!r}"
        )


def policy_of(run: Run) -> Policy:
    """What is recomputed, and which linear maps are trained (a frozen one need not keep its input)."""
    trained = None
    if run.adapter is not None:
        trained = tuple(
            linear.name
            for kind in set(run.model.layer_kinds())
            for linear in run.adapter.targeted(run.model, kind)
        )
    return Policy(
        run.layout.recompute,
        run.layout.recompute_modules,
        trained,
        run.adapter.method if run.adapter else "",
        bool(run.adapter and run.adapter.base_bits < 16),
    )


class NotPredictable(ValueError):
    """A run that a model has no answer for; the sentence says why, and what would do."""


@dataclass(frozen=True)
class Machine:
    """A device as the layer sees it: reachable FLOP/s, bytes/s, and the wires."""

    rates: Rates
    matmul: float  # reachable FLOP/s of linear maps, in the run's format
    attention: float  # reachable FLOP/s in 16 bits, of which fused attention gets a share
    bandwidth: float  # bytes/s of pointwise kernels
    memory_bandwidth: float  # bytes/s of the sheet
    feed: float  # bytes/s at which products read and write
    wires: Wires
    timed_share: float = 1.0  # of the rates of kernels timed on its relative (`Rates.timed`), that it keeps
    element_bytes: float = 2.0  # of what a product reads and writes
    cast_bytes: float = (
        0.0  # moved per element to quantize an input (FP8: read 2, write 1, and its transpose)
    )
    activation_bytes: float = 2.0  # of what kernels between products read and write, and of messages


@dataclass(frozen=True)
class Setting:
    """Everything a step's time depends on but the layout and the batch.

    dtype: the format of linear maps, where it is not that of `precision`.
    recompute_modules: what selective recomputation repeats; empty: what the stack usually does. document_len:
    tokens of a packed document; 0: one a sequence. sharded_each_pass: gradients that ZeRO-2 divides are
    reduced, and its weights gathered, for every micro-batch (FSDP2), not once a step. reduces_once: not so
    under a pipeline (`Implementation.reduces_once`). vocab_multiple: to a multiple of which the vocabulary is
    padded for the head. config: the run's choices as the memory model has them; offloaded activations ask it
    for their bytes.
    """

    model: ModelSpec
    cluster: ClusterSpec
    precision: Precision
    rates: Rates
    stack: Software
    dtype: str = ""
    optimizer: str = "adamw"
    adapter: Adapter | None = None
    offload: str = "none"
    recompute_modules: tuple[str, ...] = ()
    document_len: int = 0
    sharded_each_pass: bool = False
    reduces_once: bool = False
    vocab_multiple: int = 1
    config: TrainingConfig | None = None

    @cached_property
    def machine(self) -> Machine:
        """The device of the cluster as the layer model sees it."""
        own, rates, dtype = self.cluster.device, self.rates, self.dtype or self.precision.dtype
        sixteen = "bf16" if "bf16" in own.peak_flops else "fp16"
        eight = dtype in ("fp8", "fp4")
        return Machine(
            rates,
            reachable(self.cluster, dtype, rates.timed)
            * (rates.sustained_fp8 * rates.matmul_fp8 if eight else rates.sustained * rates.matmul),
            reachable(self.cluster, sixteen if eight else dtype, rates.timed)
            * rates.sustained
            * rates.matmul,
            own.memory_bandwidth * (rates.pointwise or rates.memory),
            own.memory_bandwidth,
            own.memory_bandwidth * rates.matmul_memory,
            Wires.of(self.cluster, rates, self.stack.adapters, self.stack.library).between_nodes_at(
                self.stack.network_share
            ),
            timed_share=rates.sustained
            * reachable(self.cluster, sixteen, rates.timed)
            / timed_flops(rates.timed),
            element_bytes=1.0 if eight else self.precision.compute,
            cast_bytes=self.precision.cast if eight else 0.0,
            activation_bytes=self.precision.compute,
        )

    @cached_property
    def trained_precision(self) -> Precision:
        """Widths of what is trained: an adapter may keep its weights wider than the model's."""
        if self.adapter is None or not self.adapter.weight_bytes:
            return self.precision
        return replace(self.precision, params=self.adapter.weight_bytes)

    @property
    def gathered_bytes(self) -> float:
        """Bytes of a weight as it is gathered over the ranks that shard it: frozen ones as they are kept, and
        those of a map in 8 bits so where the stack's weights are.
        """
        if self.adapter is not None and self.adapter.base_bits < 16:
            return self.adapter.base_bits / 8
        if self.stack.gathers_quantized and (self.dtype or self.precision.dtype) == "fp8":
            return 1.0
        return min(self.precision.compute, self.precision.params)


@cache
def timed_flops(name: str) -> float:
    """Best matmul rate in 16 bits of the device whose kernels were timed; 1 where there is none."""
    if not name:
        return 1.0
    timed = device(name)
    return timed.reachable_flops.get("bf16") or timed.reachable_flops.get("fp16") or timed.peak("fp16") * 0.85


POWER = 0.24
"""A chip that may draw p times the power reaches p^POWER times the rate: the A100 with 300 W 252.9 TFLOP/s,
that with 400 W 271.2 (`facts/data/devices.toml`). Rate follows the clock, power its third or fourth power.
"""


def reachable(cluster: ClusterSpec, dtype: str, timed: str = "") -> float:
    """Best matmul rate known for a format; for one never measured, its peak times the share 16 bits reach.

    timed: the device that a device on which nobody measured anything takes after: the share of the peak is
    its, less what a lower limit of power costs.
    """
    own = cluster.device
    if dtype in own.reachable_flops:
        return own.reachable_flops[dtype]
    relative = device(timed) if timed and not own.reachable_flops else own
    known = [d for d in (dtype, "bf16", "fp16") if d in relative.reachable_flops]
    if not known:
        return own.peak(dtype) * 0.85
    power = own.power_watts / relative.power_watts if own.power_watts and relative.power_watts else 1.0
    return own.peak(dtype) * relative.reachable_flops[known[0]] / relative.peak(known[0]) * power**POWER


def stack_for(run: Run) -> Software:
    """The training stack that a run's implementation stands for, with the choices that it states.

    Raises:
        NotPredictable: an implementation whose kernels nobody has counted.
    """
    how = run.implementation
    if how.name not in stacks():
        raise NotPredictable(
            f"no training stack is known for the implementation {how.name!r} (known: {', '.join(stacks())}); "
            "name one: predict_step(run, stack=...)"
        )
    stack = stacks()[how.name].software
    if how.compile and f"{stack.name}-compile" in stacks():
        stack = stacks()[f"{stack.name}-compile"].software
    if how.attention == "unfused" and stack.attention != "unfused":
        stack = replace(stack, attention="unfused")
    return stack


def setting_of(run: Run, stack: Software | None = None, rates: Rates | None = None) -> Setting:
    """What a run's time depends on besides its layout and batch.

    Args:
        run: what is to be predicted.
        stack: a training stack in place of the implementation's own.
        rates: constants in place of those known of the device.

    Raises:
        NotPredictable: something about the run that the time model does not have.
    """
    refuse(run)
    layout = run.layout
    return Setting(
        run.model,
        run.cluster,
        precision(layout.precision),
        rates or rates_for(run.cluster.device),
        stack or stack_for(run),
        optimizer=run.optimizer,
        adapter=run.adapter,
        offload=layout.offload,
        recompute_modules=layout.recompute_modules or ("core_attn",),
        document_len=run.document_len,
        sharded_each_pass=is_fsdp2(run.implementation, precision(layout.precision)),
        reduces_once=run.implementation.reduces_once,
        vocab_multiple=run.implementation.vocab_multiple,
        config=config_of(run) if layout.offload == "activations" else None,
    )


def refuse(run: Run) -> None:
    """Raise NotPredictable for a run whose time has no model here."""
    check_run(run)
    layout, reasons = run.layout, []
    if run.model.num_encoder_layers:
        reasons.append(f"{run.model.name} has an encoder; the time model has decoders and single stacks only")
    if run.adapter is not None and run.adapter.method == "adapter":
        reasons.append("the adapter 'adapter' attends to prompts whose number a run does not say; use 'lora'")
    if layout.offload != "none" and run.cluster.device.name == "cpu":
        reasons.append(f"offload of {layout.offload} from a CPU: the host is the device; use offload='none'")
    reasons += impossible(layout.schedule, layout.pipeline, run.accumulation, layout.virtual_stages)
    if reasons:
        raise NotPredictable("the time of this run is not predicted: " + "; ".join(reasons))
