"""(c) Memory three ways for thirty configurations: closed form, rehearsal, and the allocator's own count.

Rehearsals need no GPU: they run first, in processes that see none, several at a time. Then each configuration
runs in this process, from an empty allocator, as large as 80 % of the device. ``allocated`` is what both
predict; ``reserved`` and ``device`` (all that the driver has given away) stand beside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from benchmarks.gpu.stage import NotHere, Row, Stage, catalogue_name, row
from benchmarks.gpu.train_once import run_of, train_once

# layers, hidden, heads, words, tied
SHAPES = {
    "125m": (12, 768, 12, 50304, True),
    "350m": (24, 1024, 16, 50304, True),
    "1.3b": (24, 2048, 32, 50304, False),
    "3b": (26, 3200, 32, 32000, False),
}
# shape, precision, recompute, sequences, tokens
FULL = [
    *[("125m", "fp32", "none", batch, 1024) for batch in (4, 16, 32)],
    *[("125m", "amp-bf16", "none", batch, 1024) for batch in (4, 16, 32)],
    *[("125m", "amp-bf16", "full", batch, 1024) for batch in (16, 64)],
    *[("125m", "amp-bf16", "none", 4, 4096), ("125m", "bf16", "none", 16, 1024)],
    *[("350m", "amp-bf16", "none", batch, 1024) for batch in (4, 16, 32)],
    *[("350m", "fp32", "none", 8, 1024), ("350m", "amp-bf16", "full", 32, 1024)],
    *[("350m", "amp-bf16", "full", 8, 4096), ("350m", "bf16", "none", 16, 1024)],
    *[("1.3b", "amp-bf16", "none", batch, 1024) for batch in (1, 4, 8, 16)],
    *[("1.3b", "amp-bf16", "full", batch, 2048) for batch in (4, 16)],
    *[("1.3b", "fp32", "none", 4, 1024), ("1.3b", "bf16", "none", 8, 2048)],
    *[("3b", "amp-bf16", "none", batch, 1024) for batch in (1, 4)],
    *[("3b", "amp-bf16", "full", batch, 2048) for batch in (2, 8)],
    ("3b", "bf16", "full", 8, 2048),
]  # fmt: skip
TOY = [("toy", "fp32", "none", 2, 32), ("toy", "amp-bf16", "full", 2, 32)]
SHAPES["toy"] = (2, 64, 4, 256, True)
SHARE = 0.8
REHEARSE = """
import json, sys
from benchmarks.gpu.train_once import train_once
from workshop.rehearse import rehearse
for line in sys.stdin:
    told = rehearse(train_once, 1, keywords=json.loads(line), pretend_cuda=True, timeout_seconds=240)
    print(json.dumps({"peak": told.peak_bytes}), flush=True)
"""


def configurations(stage: Stage) -> dict[str, dict[str, Any]]:
    """Keywords of `train_once` by a name that says them."""
    found = {}
    for shape, precision, recompute, batch, length in stage.sized(FULL, TOY, TOY[:1]):
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
        found[f"{shape} {precision} recompute {recompute} {batch}x{length}"] = {
            "model": model, "precision": precision, "recompute": recompute,
            "micro_batch": batch, "seq_len": length,
        }  # fmt: skip
    return found


def run(stage: Stage) -> None:
    """Rehearse all, then measure one after the other."""
    chosen = configurations(stage)
    stage.part("rehearsals", lambda: rehearsals(chosen, workers=stage.sized(8, 2, 1)), needs=120)
    known = {line["what"]: line["measured"] for line in stage.record["parts"]["rehearsals"]["rows"]}
    for name, keywords in chosen.items():
        stage.part(
            name, lambda name=name, keywords=keywords: measured(stage, name, keywords, known), needs=25
        )
    stage.part("errors", lambda: errors(stage))


def rehearsals(chosen: dict[str, dict[str, Any]], workers: int) -> list[Row]:
    """Peak bytes of each configuration, rehearsed where no GPU is seen (as on any laptop)."""
    without = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    shares = [list(chosen.items())[start::workers] for start in range(workers)]

    def share(items: list[tuple[str, dict[str, Any]]]) -> list[Row]:
        lines = "".join(json.dumps(keywords) + "\n" for _, keywords in items)
        told = subprocess.run(
            [sys.executable, "-c", REHEARSE], input=lines, capture_output=True, text=True, env=without
        )
        peaks = [json.loads(line)["peak"] for line in told.stdout.splitlines() if line.startswith("{")]
        if len(peaks) < len(items):
            print(told.stderr[-800:], flush=True)
        peaks += [None] * (len(items) - len(peaks))
        return [row(name, peak, "B rehearsed") for (name, _), peak in zip(items, peaks, strict=True)]

    with ThreadPoolExecutor(workers) as pool:
        return [line for lines in pool.map(share, filter(None, shares)) for line in lines]


def measured(stage: Stage, name: str, keywords: dict[str, Any], known: dict[str, float | None]) -> list[Row]:
    """One configuration: allocated beside the rehearsal and the closed form; reserved; the device's own."""
    from workshop import predict_memory

    cluster = f"1x{catalogue_name()}" if stage.on_gpu else "1xH200"
    told = predict_memory(run_of(keywords, cluster))
    allocates, reserves, takes = (float(max(one)) for one in (told.allocated, told.reserved, told.device))
    if not stage.on_gpu:
        train_once(**keywords, steps=1)
        return [row("closed form, H200", allocates, "B"), row("rehearsed", known.get(name), "B")]
    total = torch.cuda.get_device_properties(0).total_memory
    if (known.get(name) or allocates) > SHARE * total:
        raise NotHere(f"predicted {allocates / 1e9:.0f} GB: more than {SHARE:.0%} of this GPU")
    torch.cuda.reset_peak_memory_stats()
    train_once(**keywords)
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    free, _ = torch.cuda.mem_get_info()
    rehearsed = known.get(name)
    workspace = float(told.parts.get("workspace", 0))  # cuBLAS's own, which no rehearsal has
    return [
        row("allocated, beside the closed form", allocated, "B", allocates),
        row("allocated, beside the rehearsal", allocated, "B", rehearsed and rehearsed + workspace),
        row("reserved", reserved, "B", reserves),
        row("device", total - free, "B", takes),
    ]


def errors(stage: Stage) -> list[Row]:
    """Median and worst of predicted over measured, minus one, in per cent."""
    found: dict[str, list[float]] = {}
    for part in stage.record["parts"].values():
        for line in part["rows"]:
            if line["predicted"] and line["measured"] and line["what"] != "errors":
                found.setdefault(line["what"], []).append(abs(line["predicted"] / line["measured"] - 1) * 100)
    wanted = {"allocated, beside the rehearsal": (2.0, 5.0), "allocated, beside the closed form": (3.0, None)}
    rows = []
    for what, values in found.items():
        median, worst = wanted.get(what, (None, None))
        ordered = sorted(values)
        rows.append(row(f"median error, {what}", ordered[len(ordered) // 2], "%", median))
        rows.append(row(f"worst error, {what}", ordered[-1], "%", worst))
    return rows
