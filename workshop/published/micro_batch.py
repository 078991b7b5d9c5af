"""The micro-batch of a run whose source shows its best and does not say it: the fastest that fits.

A vendor's table has runs that were tuned, so a micro-batch is taken as somebody would who tunes: of those
that divide a rank's sequences and are predicted to fit, the one whose step is predicted to be the shortest.
What was measured is not looked at.
"""

from __future__ import annotations

from dataclasses import replace

from workshop.facts.run import Run
from workshop.facts.stack import Software
from workshop.predict.case import NotPredictable, setting_of
from workshop.predict.layouts import Layouts
from workshop.predict.memory import predict_memory
from workshop.predict.time.step import predict_steps

ASSUMED = "the fastest that is predicted to fit: not in the table"


def fastest_that_fits(run: Run, used: Software) -> Run:
    """``run``, with its sequences in micro-batches of another size; of one where nothing fits.

    Args:
        run: with micro-batches of one.
        used: the stack that takes its time.
    """
    sequences, best = run.micro_batch * run.accumulation, run
    least = float("inf")
    for micro in (size for size in range(1, sequences + 1) if sequences % size == 0):
        one = replace(run, micro_batch=micro, accumulation=sequences // micro, global_batch=0)
        try:
            if not predict_memory(one).fits:
                break
            (seconds,) = predict_steps(setting_of(one, used), Layouts.of_runs([one])).seconds
        except NotPredictable:  # a schedule that needs more micro-batches than that
            continue
        if seconds < least:
            best, least = one, seconds
    return best
