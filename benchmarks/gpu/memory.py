"""(c) Memory three ways for thirty configurations: closed form, rehearsal, and the allocator's own count.

Rehearsals need no GPU, so they can be made before, on any CPU: ``python -m benchmarks.gpu_day --rehearse``
keeps them in ``data/measurements/gpu/rehearsals.json``, with the torch and the sources that made them. Where
both are those of this machine they are taken; what is missing is rehearsed first, in processes that see no
GPU, several at a time. Then each configuration runs in this process, from an empty allocator, as large as
80 % of the device. ``allocated`` is what both predict; ``reserved`` and ``device`` (all that the driver has
given away) stand beside.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.stage import NotHere, Row, Stage, catalogue_name, row
from benchmarks.gpu.train_once import run_of, train_once
from workshop.rehearse import RehearsalError, rehearse

# layers, hidden, heads, words, tied
SHAPES = {
    "125m": (12, 768, 12, 50304, True),
    "350m": (24, 1024, 16, 50304, True),
    "1.3b": (24, 2048, 32, 50304, False),
    "3b": (26, 3200, 32, 32000, False),
}
# shape, precision, recompute, sequences, tokens. No two have the same peak; the largest is near SHARE of an
# H200.
FULL = [
    *[("125m", "fp32", "none", batch, 1024) for batch in (4, 16, 32)],
    *[("125m", "amp-bf16", "none", batch, 1024) for batch in (4, 16, 32)],
    *[("125m", "amp-bf16", "full", batch, 1024) for batch in (16, 64)],
    *[("125m", "amp-bf16", "none", 6, 4096), ("125m", "bf16", "none", 16, 1024)],
    *[("350m", "amp-bf16", "none", batch, 1024) for batch in (4, 16, 32, 48)],
    *[("350m", "fp32", "none", 8, 1024), ("350m", "amp-bf16", "full", 32, 1024)],
    ("350m", "bf16", "none", 16, 1024),
    *[("1.3b", "amp-bf16", "none", batch, 1024) for batch in (4, 8, 16, 24)],
    *[("1.3b", "amp-bf16", "full", batch, 2048) for batch in (4, 16)],
    *[("1.3b", "fp32", "none", 4, 1024), ("1.3b", "bf16", "none", 8, 2048)],
    *[("3b", "amp-bf16", "none", batch, 1024) for batch in (1, 8, 12)],
    ("3b", "amp-bf16", "full", 32, 2048),
    ("3b", "bf16", "full", 8, 2048),
]  # fmt: skip
TOY = [("toy", "fp32", "none", 2, 32), ("toy", "amp-bf16", "full", 2, 32)]
SHAPES["toy"] = (2, 64, 4, 256, True)
SHARE = 0.8
ROOT = Path(__file__).resolve().parents[2]
REHEARSED = "rehearsals.json"
BEFORE = ROOT / "data" / "measurements" / "gpu" / REHEARSED


def configurations(size: str) -> dict[str, dict[str, Any]]:
    """Keywords of `train_once` by a name that says them."""
    by_name = {}
    for shape, precision, recompute, batch, length in {"full": FULL, "toy": TOY, "ci": TOY[:1]}[size]:
        layers, hidden, heads, words, tied = SHAPES[shape]
        model = {
            "name": f"gpt {shape}",
            "num_layers": layers,
            "hidden_size": hidden,
            "num_heads": heads,
            "vocab_size": words,
            "ffn_hidden_size": 64 * round(8 * hidden / 3 / 64),
            "tied_embeddings": tied,
        }
        by_name[f"{shape} {precision} recompute {recompute} {batch}x{length}"] = {
            "model": model, "precision": precision, "recompute": recompute,
            "micro_batch": batch, "seq_len": length,
        }  # fmt: skip
    return by_name


def run(stage: Stage) -> None:
    """Rehearse all, measure one after the other, and tell the errors of those that are measured by then."""
    chosen = configurations(stage.size)
    stage.record["parts"].pop("errors", None)  # an earlier start had fewer configurations
    known: dict[str, Row] = {}
    for path in {BEFORE, stage.folder / REHEARSED}:
        known |= rehearsed_before(path, chosen)
    missing = {name: keywords for name, keywords in chosen.items() if name not in known}
    workers = stage.sized(8, 2, 1)
    if not stage.part(
        "rehearsals",
        lambda: [*known.values(), *rehearsals(missing, workers, max(10.0, min(120.0, stage.left() - 25)))],
        needs=40 if missing else 1,
    ):
        return
    rehearsed = {line["what"]: line for line in stage.record["parts"]["rehearsals"]["rows"]}
    for name, keywords in chosen.items():
        stage.part(
            name, lambda name=name, keywords=keywords: measured(stage, name, keywords, rehearsed), needs=15
        )
    stage.part("errors", lambda: errors(stage), needs=0)


def rehearsals(chosen: dict[str, dict[str, Any]], workers: int, limit: float) -> list[Row]:
    """Peak bytes of each configuration, and reserved ones; None for one that failed, or had no time left."""
    over = time.monotonic() + limit

    def peaks(keywords: dict[str, Any]) -> tuple[int | None, int | None]:
        left = min(60.0, over - time.monotonic())
        if left <= 0:
            return None, None
        how = {"keywords": keywords, "pretend_cuda": True, "timeout_seconds": left}
        try:
            rehearsal = rehearse(train_once, 1, **how)
        except RehearsalError as error:
            print(str(error)[-800:], flush=True)
            return None, None
        return rehearsal.peak_bytes, rehearsal.reserved_bytes

    with ThreadPoolExecutor(workers) as pool:
        all_peaks = zip(chosen, pool.map(peaks, chosen.values()), strict=True)
        return [row(name, peak, "B rehearsed", reserved=reserved) for name, (peak, reserved) in all_peaks]


def rehearse_before(path: Path, size: str, seconds: float) -> tuple[int, int]:
    """Rehearse all configurations of a size and keep the answers; how many there are, and how many answered.

    What the file has, by the same torch and sources, is not asked again.
    """
    chosen = configurations(size)
    known = rehearsed_before(path, chosen)
    missing = {name: keywords for name, keywords in chosen.items() if name not in known}
    rows = [*known.values(), *rehearsals(missing, len(os.sched_getaffinity(0)), seconds)]
    answered = [line for line in rows if line["measured"] is not None]
    record = {
        "torch": torch_release(),
        "sources": sources(),
        "date": date.today().isoformat(),
        "rows": [{**line, "keywords": chosen[line["what"]]} for line in answered],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return len(chosen), len(answered)


def rehearsed_before(path: Path, chosen: dict[str, dict[str, Any]]) -> dict[str, Row]:
    """What `rehearse_before` kept of these configurations, if the torch and the sources of here made it."""
    if not path.exists():
        return {}
    record = json.loads(path.read_text("utf-8"))
    if (record["torch"], record["sources"]) != (torch_release(), sources()):
        made = f"torch {record['torch']} on {record['date']}"
        print(f"{path} was made by {made}, or by other sources: it is rehearsed again here", flush=True)
        return {}
    rows = [line for line in record["rows"] if chosen.get(line["what"]) == line["keywords"]]
    return {line["what"]: {key: line[key] for key in line if key != "keywords"} for line in rows}


def torch_release() -> str:
    """2.11.0, whatever it is built for: a rehearsal computes nothing."""
    return torch.__version__.split("+")[0]


def sources() -> str:
    """A digest of what a rehearsal is made of: the package, and the program that is rehearsed."""
    digest = sha256()
    for path in [*sorted((ROOT / "workshop").rglob("*.py")), Path(__file__).with_name("train_once.py")]:
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def measured(stage: Stage, name: str, keywords: dict[str, Any], known: dict[str, Row]) -> list[Row]:
    """One configuration: allocated, reserved, each beside rehearsal and closed form; the device's own."""
    from workshop import predict_memory

    cluster = f"1x{catalogue_name()}" if stage.on_gpu else "1xH200"
    prediction = predict_memory(run_of(keywords, cluster))
    allocates, reserves, takes = (
        float(max(one)) for one in (prediction.allocated, prediction.reserved, prediction.device)
    )
    rehearsed, rehearsed_reserved = (known.get(name, {}).get(key) for key in ("measured", "reserved"))
    if not stage.on_gpu:
        train_once(**keywords, steps=1)
        return [row("closed form, H200", allocates, "B"), row("rehearsed", rehearsed, "B")]
    total = torch.cuda.get_device_properties(0).total_memory
    if (rehearsed or allocates) > SHARE * total:
        raise NotHere(f"predicted {allocates / 1e9:.0f} GB: more than {SHARE:.0%} of this GPU")
    torch.cuda.reset_peak_memory_stats()
    train_once(**keywords)
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    free, _ = torch.cuda.mem_get_info()
    # cuBLAS's own, which no rehearsal has; parts are arrays by pipeline stage
    workspace = float(max(prediction.parts["workspace"])) if "workspace" in prediction.parts else 0.0
    return [
        row("allocated, beside the closed form", allocated, "B", allocates),
        row("allocated, beside the rehearsal", allocated, "B", rehearsed and rehearsed + workspace),
        row("reserved, beside the closed form", reserved, "B", reserves),
        row(
            "reserved, beside the rehearsal",
            reserved,
            "B",
            rehearsed_reserved and rehearsed_reserved + workspace,
        ),
        row("device", total - free, "B", takes),
    ]


def errors(stage: Stage) -> list[Row]:
    """Median and worst of predicted over measured, minus one, in per cent."""
    by_what: dict[str, list[float]] = {}
    for part in stage.record["parts"].values():
        for line in part["rows"]:
            if line["predicted"] and line["measured"]:
                by_what.setdefault(line["what"], []).append(
                    abs(line["predicted"] / line["measured"] - 1) * 100
                )
    wanted = {"allocated, beside the rehearsal": (2.0, 5.0), "allocated, beside the closed form": (3.0, None)}
    rows = []
    for what, values in by_what.items():
        median, worst = wanted.get(what, (None, None))
        middle, number = statistics.median(values), len(values)
        rows.append(row(f"median error, {what}", middle, "%", wanted=median, number=number))
        rows.append(row(f"worst error, {what}", max(values), "%", wanted=worst))
    return rows
