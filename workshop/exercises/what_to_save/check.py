"""Exercise: what a checkpoint must hold, so that the run that goes on is the run that was broken off.

Five things change while a model trains, and each is forgotten by somebody. A sixth mistake keeps them all, by
reference: `state_dict()` gives the tensors that training goes on to change. Where there is an accelerator,
the random state has two parts: the small model draws from the CPU's, the lesson's own run from the other.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong

MISSING = {
    "weights": "The weights are not those that were saved: the first loss is different.",
    "optimizer": "The optimizer's moments are lost. The first loss is right, the step after it is not.",
    "schedule": "The schedule begins again: the learning rate of the resumed run is that of its first steps.",
    "position": "The data begin again: the resumed run sees batches that it has seen already.",
    "random": "The random state is lost: dropout drops different numbers. It is `torch.get_rng_state()`, "
    "and with an accelerator also that of `torch.get_device_module()`.",
}


def check(reports: list[dict[str, Any]]) -> str:
    """On every rank: what was saved did not move, every part was taken up, and the losses are equal."""
    for rank, report in enumerate(reports):
        if report["moved"]["weights"]:
            raise Wrong(
                f"On rank {rank} the state moved while training went on: `state_dict()` gives the run's own "
                "tensors. Return a copy."
            )
        lost = [sentence for part, sentence in MISSING.items() if not report["taken_up"][part]]
        if lost:
            raise Wrong(f"On rank {rank}: {' '.join(lost)}")
        if report["resumed"] != report["unbroken"]:
            raise Wrong(
                f"On rank {rank} the losses were {report['unbroken']}, after the restart {report['resumed']}."
            )
    return f"{len(reports[0]['unbroken'])} losses on {len(reports)} ranks, equal to the last bit."
