"""Exercise: what a rank reads in a step, told by the step's number alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "rank_batch"
SAMPLES, BATCH, SEED = 30, 4, 5  # an epoch ends within a step
STEPS = 45  # of 4 samples: six epochs of 30


def _read(function: Any, step: int, rank: int, world_size: int, seed: int = SEED) -> list[int]:
    """The samples of one call, as whole numbers."""
    made = Call((step, rank, world_size, SAMPLES, BATCH, seed))
    value, written = call(function, NAME, made), made.written(NAME)
    if value is None:
        raise Wrong(f"`{written}` gave nothing (None). Is a `return` missing?")
    try:
        samples = [int(sample) for sample in value] if isinstance(value, Iterable) else None
    except (TypeError, ValueError):
        samples = None
    if samples is None:
        raise Wrong(f"`{written}` gave {shown(value)}; wanted a list of whole numbers.")
    if outside := [sample for sample in samples if not 0 <= sample < SAMPLES]:
        raise Wrong(f"`{written}` holds {outside[0]}: there are samples 0 to {SAMPLES - 1}.")
    if len(samples) != BATCH // world_size:
        raise Wrong(
            f"`{written}` holds {len(samples)} samples; wanted {BATCH // world_size}: "
            f"of a batch of {BATCH} every rank reads as many."
        )
    return samples


def _step(function: Any, step: int, world_size: int, seed: int = SEED) -> list[int]:
    """What all ranks read in a step, sorted."""
    ranks = range(world_size)
    return sorted(sample for rank in ranks for sample in _read(function, step, rank, world_size, seed))


def check(names: dict[str, Any]) -> str:
    """Six epochs on one rank, the same on two and four, asked for in any order, with two seeds."""
    function = names[NAME]
    late = _step(function, 40, 2)
    steps = [_step(function, step, 1) for step in range(STEPS)]
    if _step(function, 40, 2) != late or [_step(function, step, 1) for step in (3, 17)] != [
        steps[3],
        steps[17],
    ]:
        raise Wrong(
            "A step that was asked again gave different samples: a restarted run would read something else."
        )
    _check_ranks(function, steps)
    _check_epochs(steps)
    if all(_step(function, step, 1, SEED + 1) == steps[step] for step in range(7)):
        raise Wrong("It reads the same samples whatever the seed is.")
    return f"{STEPS} steps, {STEPS * BATCH // SAMPLES} epochs, the same on 1, 2 and 4 ranks"


def _check_ranks(function: Any, steps: list[list[int]]) -> None:
    on_two = [_step(function, step, 2) for step in range(SAMPLES // BATCH)]
    read = Counter(sample for step in on_two for sample in step)
    on_one = Counter(sample for step in steps[: len(on_two)] for sample in step)
    if max(read.values()) > 1 and max(on_one.values()) == 1:
        sample = max(read, key=lambda one: read[one])
        raise Wrong(
            f"In the first epoch two ranks read sample {sample} {read[sample]} times: an epoch has the same "
            "order on every rank, and each rank takes different places of it."
        )
    for world_size in (2, 4):
        for step in (0, 1, 7, 8, 29):
            together = _step(function, step, world_size)
            if together != steps[step]:
                raise Wrong(
                    f"Step {step} reads {steps[step]} on one rank and {together} on {world_size}: what a "
                    "step reads must not depend on the number of ranks."
                )


def _check_epochs(steps: list[list[int]]) -> None:
    read: Counter[int] = Counter()
    for number, samples in enumerate(steps):
        read.update(samples)
        epochs = (number + 1) * BATCH // SAMPLES
        if min(read[sample] for sample in range(SAMPLES)) < epochs:
            missed = next(sample for sample in range(SAMPLES) if read[sample] < epochs)
            raise Wrong(
                f"After {number + 1} steps of {BATCH}, {epochs} epochs have ended, and sample {missed} was "
                f"read {read[missed]} times: an epoch reads every sample once, also the last ones."
            )
    if all(step == list(range(step[0], step[0] + BATCH)) for step in steps[:7]):
        raise Wrong("The samples come in the order of the file: they are not shuffled.")
    first, third = ([s for step in steps[a:b] for s in step] for a, b in ((0, 7), (15, 22)))
    if first == third:
        raise Wrong("The third epoch reads like the first. Each epoch has an order of its own.")
