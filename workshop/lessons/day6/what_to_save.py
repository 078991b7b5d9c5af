"""Exercise: what a checkpoint must hold, so that the run that goes on is the run that was broken off.

Five things change while a model trains, and each is forgotten by somebody. A sixth mistake keeps them all, by
reference: `state_dict()` gives the tensors that training goes on to change.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
`run` has a `model` with dropout, an `optimizer`, a `schedule` of the learning rate, and `data` with a
`position`. Write `state_of(run)`, which returns everything that a run must know to go on, and
`go_on(run, state)`, which puts it into a fresh run. Training goes on between the two, and the losses must
then come out the same to the last bit."""

STUB = '''\
import copy

import torch


def state_of(run) -> dict:
    """Everything that changes while a run trains, as it is now."""
    state = {
        "model": run.model.state_dict(),
        ...: ...,
    }
    return copy.deepcopy(...)


def go_on(run, state: dict) -> None:
    """Make a fresh run the one that was saved."""
    run.model.load_state_dict(state["model"])
    ...
'''

SOLUTION = '''\
import copy

import torch


def state_of(run) -> dict:
    """Everything that changes while a run trains, as it is now."""
    state = {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "position": run.data.position,
        "random": torch.get_rng_state(),
    }
    return copy.deepcopy(state)


def go_on(run, state: dict) -> None:
    """Make a fresh run the one that was saved."""
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.schedule.load_state_dict(state["schedule"])
    run.data.position = state["position"]
    torch.set_rng_state(state["random"])
'''

CHECK_PROGRAM = """\
from workshop.lessons.on_ranks.what_to_save import check_what_to_save
check_what_to_save(state_of, go_on)
"""

MISSING = {
    "weights": "The weights are not those that were saved: the first loss is another one.",
    "optimizer": "The optimizer's moments are lost. The first loss is right, the step after it is not.",
    "schedule": "The schedule begins again: the learning rate of the resumed run is that of its first steps.",
    "position": "The data begin again: the resumed run sees batches that it has seen already.",
    "random": "The random state is another: dropout (`torch.get_rng_state()`) hits other numbers.",
}


def _check(reports: list[dict[str, Any]]) -> str:
    """On every rank: what was saved did not move, every part was taken up, and the losses are equal."""
    for rank, said in enumerate(reports):
        if said["moved"]["weights"]:
            raise Wrong(
                f"On rank {rank} the state moved while training went on: `state_dict()` gives the run's own "
                "tensors. Return a copy."
            )
        lost = [sentence for part, sentence in MISSING.items() if not said["taken_up"][part]]
        if lost:
            raise Wrong(f"On rank {rank}: {' '.join(lost)}")
        if said["resumed"] != said["unbroken"]:
            raise Wrong(
                f"On rank {rank} the losses were {said['unbroken']} and after going on {said['resumed']}."
            )
    return f"{len(reports[0]['unbroken'])} losses on {len(reports)} ranks, equal to the last bit."


def _without(save: str, load: str) -> str:
    return SOLUTION.replace(f"        {save}\n", "").replace(f"    {load}\n", "")


WHAT_TO_SAVE = Exercise(
    name="what_to_save",
    day=6,
    question=QUESTION,
    stub=STUB,
    hints=(
        "What is different after a step from what it was before? Weights are one of five things.",
        "`optimizer` and `schedule` have a `state_dict()`, too; `data` has a `position`; and dropout?",
        "Dropout draws from `torch.get_rng_state()`. Five into `state`; `copy.deepcopy(state)`; load each.",
    ),
    solution=SOLUTION,
    defines=("state_of", "go_on"),
    check=_check,
    shows="Five things, copied: that is what asynchronous saving calls staging.",
    wrong_answers=(
        WrongAnswer(
            "no optimizer",
            _without(
                '"optimizer": run.optimizer.state_dict(),',
                'run.optimizer.load_state_dict(state["optimizer"])',
            ),
            "The optimizer's moments are lost",
        ),
        WrongAnswer(
            "no schedule",
            _without(
                '"schedule": run.schedule.state_dict(),', 'run.schedule.load_state_dict(state["schedule"])'
            ),
            "The schedule begins again",
        ),
        WrongAnswer(
            "no position",
            _without('"position": run.data.position,', 'run.data.position = state["position"]'),
            "The data begin again",
        ),
        WrongAnswer(
            "no random state",
            _without('"random": torch.get_rng_state(),', 'torch.set_rng_state(state["random"])').replace(
                "import copy\n\nimport torch\n", "import copy\n"
            ),
            "dropout",
        ),
        WrongAnswer(
            "no copy",
            SOLUTION.replace("copy.deepcopy(state)", "state").replace("import copy\n\n", ""),
            "Return a copy",
        ),
        WrongAnswer(
            "saved but not loaded",
            SOLUTION.replace('    run.model.load_state_dict(state["model"])\n', ""),
            "The weights are not those",
        ),
    ),
    ranks=2,
    check_program=CHECK_PROGRAM,
)
