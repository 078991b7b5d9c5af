"""Predictions of this package and of other tools, on the same published rows, in the same run.

    python benchmarks/predict.py --tables published [--peers /path/to/python]

`--peers` names the interpreter of an environment with llm-analysis, deepspeed and accelerate; without it
only ours and the formulas are shown. Fairness: a tool with one efficiency constant gets the best one for
each table, chosen *on that table*, which ours does not. Errors are mean absolute relative errors.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workshop.facts import catalogue
from workshop.facts.precision import precision
from workshop.facts.stack import software
from workshop.predict.case import Setting
from workshop.predict.flops import megatron_flops
from workshop.predict.layouts import RECOMPUTE, Layouts
from workshop.predict.plan import Search, plan
from workshop.predict.plan.candidates import SearchSpace, candidates
from workshop.predict.time.rates import rates_of
from workshop.predict.time.search import search_seconds
from workshop.predict.time.step import predict_step
from workshop.published.predicted import in_quantity as in_the_quantity
from workshop.published.predicted import memory_value, predict_times, predicted_memory, time_gap
from workshop.published.record import ACTIVATIONS, MEMORIES, OUT_OF_MEMORY, SECONDS, TIMES, Observation
from workshop.published.tables import read_folder

EFFICIENCIES = (0.3, 0.4, 0.5, 0.6, 0.7)


def cases_of(folder: Path) -> list[Observation]:
    """Every row whose time can be predicted, of a dense model."""
    return [
        case
        for record in read_folder(folder)[0]
        if not record.run.model.is_moe and not time_gap(record.run)
        for case in record.observations(TIMES)
    ]


class Memory(NamedTuple):
    """What a row measured of memory, and the bytes that we predict for it."""

    case: Observation
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.case.measured - 1


def memories_of(folder: Path) -> list[Memory]:
    """Every row whose memory was measured, of a run that did not fail."""
    return [
        Memory(case, memory_value(case, predicted_memory(record)))
        for record in read_folder(folder)[0]
        for case in record.observations(MEMORIES)
        if case.quantity not in (OUT_OF_MEMORY, ACTIVATIONS)
    ]


def row_of(case: Observation) -> dict[str, Any]:
    """A case in plain numbers, for tools that do not know this package."""
    run, layout, model, cluster = case.record.run, case.record.run.layout, case.model, case.record.run.cluster
    device, recipe = cluster.device, precision(run.layout.precision)
    return {
        "layers": model.num_layers,
        "heads": model.num_heads,
        "hidden": model.hidden_size,
        "vocab": model.vocab_size,
        "kv_heads": model.num_kv_heads,
        "ffn": model.ffn_hidden_size,
        "gated": model.gated_mlp,
        "seq_len": run.seq_len,
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "data": layout.data_parallel,
        "zero": layout.zero,
        "sequence_parallel": layout.sequence_parallel,
        "micro_batch": run.micro_batch,
        "accumulation": run.accumulation,
        "recompute": RECOMPUTE.index(layout.recompute),
        "flash": case.record.software.attention != "unfused",
        "memory_gb": device.memory_bytes / 1e9,
        "memory_gb_s": device.memory_bandwidth / 1e9,
        "peak_tflops": device.peak(recipe.dtype) / 1e12,
        "link_gb_s": cluster.intra.bytes_per_second / 1e9 if cluster.intra else 1.0,
        "network_gb_s": cluster.inter.bytes_per_second / 1e9 if cluster.inter else 1.0,
    }


def in_quantity(case: Observation, seconds: float | None) -> float:
    """Seconds in the unit that the case was measured in."""
    if seconds is None:
        return float("nan")
    return float(in_the_quantity(case, np.array([seconds]), Layouts.of_runs([case.record.run]))[0])


def formula_seconds(case: Observation, efficiency: float) -> float:
    """Megatron-LM's published FLOPs over devices, peak and one efficiency (arXiv 2104.04473, equations 3 and
    4).
    """
    run = case.record.run
    recompute = run.layout.recompute == "full"
    flops = megatron_flops(case.model, run.seq_len, run.tokens_per_step, recompute)
    peak = run.cluster.device.peak(precision(run.layout.precision).dtype)
    return flops / run.cluster.num_devices / peak / efficiency


def best_by_table(cases: list[Observation], answers: dict[str, list[float]]) -> dict[str, float]:
    """Per table, the smallest mean error over the variants of one tool."""
    best: dict[str, float] = {}
    for table in dict.fromkeys(case.table for case in cases):
        mine = [i for i, case in enumerate(cases) if case.table == table]
        errors = [
            np.array([abs(values[i] / cases[i].measured - 1) for i in mine]) for values in answers.values()
        ]
        means = [float(np.nanmean(e)) for e in errors if np.isfinite(e).any()]
        best[table] = min(means) if means else float("nan")
    return best


def ask_peers(python: str, cases: list[Observation], runs: list[Memory]) -> dict[str, Any]:
    """The other tools' answers, from their own interpreter."""
    ask = {
        "time": [row_of(case) for case in cases],
        "memory": [memory_row(r) for r in runs],
        "efficiencies": EFFICIENCIES,
    }
    done = subprocess.run(
        [python, str(Path(__file__).with_name("predict_peers.py"))],
        input=json.dumps(ask),
        text=True,
        capture_output=True,
        timeout=580,
        check=False,
    )
    if "ANSWER" not in done.stdout:
        raise SystemExit(f"the peers' interpreter gave no answer:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.split("ANSWER", 1)[1])
    return answer


def memory_row(result: Memory) -> dict[str, Any]:
    """What the memory estimators ask for: parameters on a model-parallel rank, data-parallel ranks, ZeRO
    stage.
    """
    run = result.case.record.run
    cut = run.layout.tensor * run.layout.pipeline
    return {
        "params": int(run.model.num_params / cut),
        "data": run.layout.data_parallel,
        "zero": run.layout.zero,
        "largest": int(run.model.vocab_size * run.model.hidden_size),
    }


def show_time(cases: list[Observation], peers: dict[str, Any]) -> None:
    """Errors by table: ours, the formula, llm-analysis."""
    ours = {"ours": [float(x) for x in predict_times(cases)]}
    formula = {
        f"{e}": [in_quantity(c, formula_seconds(c, e)) for c in cases] for e in np.arange(0.2, 0.8, 0.02)
    }
    llm = {
        name: [in_quantity(c, s) for c, s in zip(cases, peer["answers"], strict=True)]
        for name, peer in peers.items()
        if name.startswith("llm") and "answers" in peer
    }
    columns = {"ours": best_by_table(cases, ours), "formula": best_by_table(cases, formula)}
    if llm:
        columns["llm-analysis"] = best_by_table(cases, llm)
    print(f"{'time: mean error':<42} {'rows':>5} " + " ".join(f"{name:>13}" for name in columns))
    for table in columns["ours"]:
        count = sum(case.table == table for case in cases)
        print(f"{table:<42} {count:>5} " + " ".join(f"{errors[table]:>13.1%}" for errors in columns.values()))


def show_memory(runs: list[Memory], peers: dict[str, Any]) -> None:
    """Errors of memory by table: ours and the estimators'."""
    names = [n for n in ("deepspeed", "accelerate") if "answers" in peers.get(n, {})]
    print(f"\n{'memory: mean error':<42} {'rows':>5} " + " ".join(f"{n:>13}" for n in ("ours", *names)))
    for table in dict.fromkeys(r.case.table for r in runs):
        mine = [i for i, r in enumerate(runs) if r.case.table == table]
        values = [np.mean([abs(runs[i].error) for i in mine])]
        values += [
            np.mean([abs(peers[n]["answers"][i] / runs[i].case.measured - 1) for i in mine]) for n in names
        ]
        print(f"{table:<42} {len(mine):>5} " + " ".join(f"{v:>13.1%}" for v in values))


def show_speed(peers: dict[str, Any]) -> None:
    """Milliseconds a prediction, layouts a second, seconds a plan."""
    run = plan("llama-2-7b", "16xA100-80GB", 128, 4096, Search(top=1)).best.run
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(200):
        predict_step(run)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"\none prediction, warm: {wall / 200 * 1e3:.2f} ms ({cpu / 200 * 1e3:.2f} ms of processor time)")
    for name, peer in peers.items():
        if "ms" in peer:
            print(f"  {name}: {peer['ms']:.2f} ms")
    model, cluster = catalogue.model("mt-nlg-530b"), catalogue.cluster("2520xA100-80GB")
    layouts = candidates(model, cluster, 1920, 2048, SearchSpace())
    layouts = layouts.take(np.resize(np.arange(len(layouts)), 1_000_000))
    start = time.perf_counter()
    setting = Setting(
        model, cluster, precision("megatron-bf16"), rates_of("A100-80GB"), software("megatron-core")
    )
    search_seconds(setting, layouts)
    print(f"search: {len(layouts) / (time.perf_counter() - start):,.0f} layouts a second")
    for name, where, batch, seq in (
        ("mt-nlg-530b", "5128xA100-80GB", 1920, 2048),
        ("llama-3.1-405b", "16384xH100", 2048, 8192),
    ):
        start = time.perf_counter()
        best = plan(name, where, batch, seq_len=seq).best
        print(f"plan {name} on {where}: {time.perf_counter() - start:.2f} s; {best}")


def main() -> None:
    """Print errors and speed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, default=Path("data/published"))
    parser.add_argument(
        "--peers", default="", help="python of an environment with llm-analysis, deepspeed, accelerate"
    )
    options = parser.parse_args()
    cases = cases_of(options.tables)
    runs = memories_of(options.tables)
    peers = ask_peers(options.peers, cases, runs) if options.peers else {}
    for name, peer in peers.items():
        if "missing" in peer:
            print(f"not compared: {name} ({peer['missing']})")
    show_time(cases, peers)
    show_memory(runs, peers)
    show_speed(peers)
    assert all(case.quantity == SECONDS or case.measured > 0 for case in cases)


if __name__ == "__main__":
    main()
