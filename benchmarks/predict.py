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
from typing import Any

import numpy as np

from workshop.facts import catalogue
from workshop.facts.precision import precision
from workshop.predict.flops import megatron_flops
from workshop.predict.grid import Grid
from workshop.predict.plan import Search, plan
from workshop.predict.plan_candidates import Limits, candidates
from workshop.predict.rates import rates_of, software
from workshop.predict.search import search_seconds
from workshop.predict.setting import Setting
from workshop.predict.step import predict_step
from workshop.predict.validate import memory
from workshop.predict.validate.cases import SECONDS, Case, _cluster, _in_quantity, _whole, predict_cases
from workshop.predict.validate.tables import READERS, read_table

EFFICIENCIES = (0.3, 0.4, 0.5, 0.6, 0.7)


def cases_of(folder: Path) -> list[Case]:
    """Every row whose time can be predicted, of a dense model."""
    return [
        case
        for path in sorted(folder.glob("*.csv"))
        if path.stem in READERS
        for case in read_table(path)[0]
        if not case.model.is_moe
    ]


def row_of(case: Case) -> dict[str, Any]:
    """A case in plain numbers, for tools that do not know this package."""
    c, model, cluster = case.column, case.model, _cluster(case.cluster, case.inter)
    device = cluster.device
    return {
        "layers": model.num_layers,
        "heads": model.num_heads,
        "hidden": model.hidden_size,
        "vocab": model.vocab_size,
        "kv_heads": model.num_kv_heads,
        "ffn": model.ffn_hidden_size,
        "gated": model.gated_mlp,
        "seq_len": case.seq_len,
        "tensor": int(c.get("tensor", 1)),
        "pipeline": int(c.get("pipeline", 1)),
        "data": int(c.get("shard", 1) * c.get("replicate", 1)),
        "zero": int(c.get("zero", 0)),
        "sequence_parallel": bool(c.get("sequence_parallel", 0)),
        "micro_batch": int(c.get("micro_batch", 1)),
        "accumulation": int(c.get("accumulation", 1)),
        "recompute": {0: 0, 1: 1, 2: 2}[int(c.get("recompute", 0))],
        "flash": software(case.stack).attention != "unfused",
        "memory_gb": device.memory_bytes / 1e9,
        "memory_gb_s": device.memory_bandwidth / 1e9,
        "peak_tflops": device.peak(case.dtype or "fp16") / 1e12,
        "link_gb_s": cluster.intra.bytes_per_second / 1e9 if cluster.intra else 1.0,
        "network_gb_s": cluster.inter.bytes_per_second / 1e9 if cluster.inter else 1.0,
    }


def in_quantity(case: Case, seconds: float | None) -> float:
    """Seconds in the unit that the case was measured in."""
    if seconds is None:
        return float("nan")
    grid = Grid.of_columns(**{name: _whole(value) for name, value in case.columns})
    return float(_in_quantity(case, np.array([seconds]), grid, _cluster(case.cluster, case.inter))[0])


def formula_seconds(case: Case, efficiency: float) -> float:
    """Megatron-LM's published FLOPs over devices, peak and one efficiency (arXiv 2104.04473, equations 3 and
    4).
    """
    c, cluster = case.column, _cluster(case.cluster, case.inter)
    sequences = c.get("shard", 1) * c.get("replicate", 1) * c.get("micro_batch", 1) * c.get("accumulation", 1)
    flops = megatron_flops(
        case.model, case.seq_len, sequences * case.seq_len, int(c.get("recompute", 0)) == 2
    )
    return flops / cluster.num_devices / cluster.device.peak(case.dtype or "fp16") / efficiency


def best_by_table(cases: list[Case], answers: dict[str, list[float]]) -> dict[str, float]:
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


def ask_peers(python: str, cases: list[Case], runs: list[memory.MemoryResult]) -> dict[str, Any]:
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


def memory_row(result: memory.MemoryResult) -> dict[str, Any]:
    """What the memory estimators ask for: parameters on a model-parallel rank, data-parallel ranks, ZeRO
    stage.
    """
    run = result.case.run
    cut = run.layout.tensor * run.layout.pipeline
    return {
        "params": int(run.model.num_params / cut),
        "data": run.layout.data_parallel,
        "zero": run.layout.zero,
        "largest": int(run.model.vocab_size * run.model.hidden_size),
    }


def show_time(cases: list[Case], peers: dict[str, Any]) -> None:
    """Errors by table: ours, the formula, llm-analysis."""
    ours = {"ours": [float(x) for x in predict_cases(cases)]}
    formula = {
        f"{e}": [in_quantity(c, formula_seconds(c, e)) for c in cases] for e in np.arange(0.2, 0.8, 0.02)
    }
    llm = {
        name: [in_quantity(c, s) for c, s in zip(cases, found["answers"], strict=True)]
        for name, found in peers.items()
        if name.startswith("llm") and "answers" in found
    }
    columns = {"ours": best_by_table(cases, ours), "formula": best_by_table(cases, formula)}
    if llm:
        columns["llm-analysis"] = best_by_table(cases, llm)
    print(f"{'time: mean error':<42} {'rows':>5} " + " ".join(f"{name:>13}" for name in columns))
    for table in columns["ours"]:
        count = sum(case.table == table for case in cases)
        print(f"{table:<42} {count:>5} " + " ".join(f"{found[table]:>13.1%}" for found in columns.values()))


def show_memory(runs: list[memory.MemoryResult], peers: dict[str, Any]) -> None:
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
    for name, found in peers.items():
        if "ms" in found:
            print(f"  {name}: {found['ms']:.2f} ms")
    model, cluster = catalogue.model("mt-nlg-530b"), catalogue.cluster("2520xA100-80GB")
    grid = candidates(model, cluster, 1920, 2048, Limits())
    grid = grid.take(np.resize(np.arange(len(grid)), 1_000_000))
    start = time.perf_counter()
    setting = Setting(
        model, cluster, 2048, precision("megatron-bf16"), rates_of("A100-80GB"), software("megatron-core")
    )
    search_seconds(setting, grid)
    print(f"search: {len(grid) / (time.perf_counter() - start):,.0f} layouts a second")
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
    runs = [r for r in memory.results(options.tables)[0] if r.fitted]
    peers = ask_peers(options.peers, cases, runs) if options.peers else {}
    for name, found in peers.items():
        if "missing" in found:
            print(f"not compared: {name} ({found['missing']})")
    show_time(cases, peers)
    show_memory(runs, peers)
    show_speed(peers)
    assert all(case.quantity == SECONDS or case.measured > 0 for case in cases)


if __name__ == "__main__":
    main()
