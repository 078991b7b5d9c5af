"""What a rank says to the others in a step: calls and bytes of every collective, by axis.

The rule behind every line is short. Tensor parallelism speaks once or twice in every layer of every
micro-batch, about activations; pipelines pass activations on; data parallelism speaks about parameters, once
a step, unless they are sharded (then for every micro-batch). How often, and in which pieces, differs between
libraries: `workshop.predict.traffic.torch` writes down what PyTorch's own modules do, and
`workshop.predict.traffic.megatron` what Megatron-LM does.

Two numbers for each line, as in `workshop.measure.comms`: the *payload* is the full, unsharded side of the
collective, summed over the calls; the *wire* bytes are what the rank sends when it runs as a ring
(`workshop.predict.collectives.wire_bytes`), and what `predict_step` divides by the links' rates.

A group of all ranks is called `world`, as PyTorch calls it. Not counted: what is no training (barriers,
logged losses), and buffers that DDP broadcasts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from workshop.facts.run import Run
from workshop.facts.tabular import Table
from workshop.facts.traffic import Traffic
from workshop.facts.units import format_bytes
from workshop.predict.case import NotPredictable, check_run
from workshop.predict.collectives import wire_bytes
from workshop.predict.layouts import Layouts, layers_on_rank
from workshop.predict.memory.states import params_held
from workshop.predict.traffic.megatron import megatron_calls
from workshop.predict.traffic.stage import Calls, Stage
from workshop.predict.traffic.torch import torch_calls


@dataclass(frozen=True, repr=False)
class TrafficPrediction:
    """Traffic of one rank of every pipeline stage.

    ``stages``: rows by stage. ``traffic``: those of the stage that sends most, which is what
    `show.traffic_table` shows.
    """

    stages: tuple[tuple[Traffic, ...], ...]

    @property
    def busiest_stage(self) -> int:
        """The stage that puts most bytes on the wire."""
        return max(range(len(self.stages)), key=lambda i: sum(row.wire_bytes for row in self.stages[i]))

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """Rows of the busiest stage."""
        return self.stages[self.busiest_stage]

    def on_stage(self, stage: int) -> TrafficPrediction:
        """The same for one stage alone; ValueError if there is none of that number."""
        if not 0 <= stage < len(self.stages):
            raise ValueError(f"there is no stage {stage}: the pipeline has {len(self.stages)}, from 0")
        return TrafficPrediction((self.stages[stage],))

    @property
    def wire_bytes(self) -> int:
        """Bytes a rank of the busiest stage sends in a step."""
        return sum(row.wire_bytes for row in self.traffic)

    def by_axis(self) -> dict[str, int]:
        """Wire bytes of the busiest stage by axis."""
        return _summed((row.axis, row.wire_bytes) for row in self.traffic)

    def by_collective(self) -> dict[str, int]:
        """Wire bytes of the busiest stage by collective."""
        return _summed((row.name, row.wire_bytes) for row in self.traffic)

    def to_list(self) -> list[dict[str, Any]]:
        """Rows as plain dicts, with the stage each belongs to."""
        return [{"stage": i, **asdict(row)} for i, rows in enumerate(self.stages) for row in rows]

    def table(self) -> Table:
        """The busiest stage's rows."""
        lines = [
            [row.name, row.axis, f"{row.group_size:,}", f"{row.count:,}"]
            + [format_bytes(size, decimals=3, binary=False) for size in (row.payload_bytes, row.wire_bytes)]
            for row in self.traffic
        ]
        where = f", stage {self.busiest_stage}" if len(self.stages) > 1 else ""
        head = ["collective", "axis", "ranks", "calls", "payload", "on the wire"]
        total = format_bytes(self.wire_bytes, decimals=3, binary=False)
        return Table(head, lines, f"predicted traffic of one rank in one step{where}", f"{total} on the wire")

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _summed(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for key, size in pairs:
        sums[key] = sums.get(key, 0) + size
    return sums


def predict_traffic(run: Run) -> TrafficPrediction:
    """Calls and bytes by axis and collective that a rank of each pipeline stage makes in a step of `run`.

    Raises:
        NotPredictable: what has no closed form here: adapters, offload, schedules that fold the pipeline,
            encoder-decoders, Muon on sharded state, recomputed modules that communicate.
    """
    _refuse(run)
    layouts = Layouts.of_stages(run)
    layers, held = layers_on_rank(run.model, layouts), params_held(run.model, run.implementation, layouts)
    stages = []
    for i in range(run.layout.pipeline):
        counts = {kind: int(number[i]) for kind, number in layers.items()}
        params = float(held.dense[i]), float(held.expert[i])
        stages.append(_rows(run, Stage(run, i, counts, params)))
    return TrafficPrediction(tuple(stages))


def _refuse(run: Run) -> None:
    check_run(run)
    layout = run.layout
    reasons = {
        "an adapter": run.adapter is not None,
        f"offload of {run.layout.offload}": run.layout.offload != "none",
        f"the schedule {run.layout.schedule!r}, which folds the pipeline": run.layout.schedule
        in ("zbv", "dualpipe"),
        "an encoder": bool(run.model.num_encoder_layers),
        "muon on sharded state, whose matrices each library gathers in its own way": run.optimizer == "muon"
        and layout.zero > 0
        and layout.shard * layout.context > 1,
        "a recomputed module that communicates": layout.recompute == "selective"
        and bool(set(layout.recompute_modules) & {"mlp", "moe", "attention_out"})
        and (layout.tensor > 1 or layout.expert > 1),
    }
    for reason, applies in reasons.items():
        if applies:
            raise NotPredictable(
                f"traffic is not predicted for a run with {reason}; rehearse it (workshop.rehearse)"
            )


def _rows(run: Run, stage: Stage) -> tuple[Traffic, ...]:
    from_library = run.implementation.buffers == "contiguous"
    calls: list[Calls] = (megatron_calls if from_library else torch_calls)(stage)
    sums: dict[tuple[str, str, int], tuple[float, float]] = {}
    for call in calls:
        if call.ranks > 1 and call.times:
            axis = "world" if call.ranks == run.layout.world_size else call.axis
            count, size = sums.get((call.name, axis, call.ranks), (0, 0.0))
            sums[call.name, axis, call.ranks] = count + call.times, size + call.times * call.num_bytes
    return tuple(_row(*key, *total) for key, total in sums.items())


def _row(name: str, axis: str, ranks: int, count: float, payload: float) -> Traffic:
    wire = 0.0 if name == "recv" else float(wire_bytes(name, payload, ranks))
    return Traffic(name, axis, ranks, round(count), round(payload), round(wire))
