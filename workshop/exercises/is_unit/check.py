"""Exercise: find the wrong wrap. Which modules FSDP should gather at once.

Everything in one unit is there at once, and nothing but state was saved. Every matrix in a unit of its own
sends many small messages, each with its start-up time. What lies in no unit belongs to the root, and is
borrowed for the whole step (Zhao et al. 2023, arXiv 2304.11277, section 3.2.1).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits


def check(reports: list[dict[str, Any]]) -> str:
    """It ran; no gather is larger than a layer; there are not too many."""
    nobody_waits([report["waited_at"] for report in reports], "`is_unit` must say the same on every rank.")
    report = reports[0]
    if report["error"]:
        raise Wrong(report["error"])
    layers, layer, model = report["num_layers"], report["layer_bytes"], report["model_bytes"]
    gathers, largest, rest = report["num_gathers"], report["largest_bytes"], report["root_bytes"]
    if largest > layer and largest == rest:
        raise Wrong(
            f"The largest gather is the root's: {largest / model:.0%} of the model. What lies in no unit "
            "belongs to the root and stays gathered for the whole step: put all parts of a layer in units."
        )
    if largest > layer:
        raise Wrong(
            f"One gather brings {largest / model:.0%} of the model, but a layer is {layer / model:.0%}: a "
            "unit that contains several layers needs room for all of them at once."
        )
    if gathers > 2 * layers + 1:
        raise Wrong(
            f"A step makes {gathers} gathers for {layers} layers, the smallest of "
            f"{report['smallest_bytes']:,} bytes. Each pays for its start. "
            f"At most {2 * layers + 1} are needed."
        )
    return f"{gathers} gathers a step, the largest {largest / model:.0%} of the model: a layer at a time."
