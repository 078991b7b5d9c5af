"""Exercise: find the wrong wrap. Which modules FSDP should gather at once.

Everything in one unit is there at once, and nothing but state was saved. Every matrix in a unit of its own
sends many small messages, each with its start-up time. What lies in no unit belongs to the root, and is
borrowed for the whole step (Zhao et al. 2023, arXiv 2304.11277, section 3.2.1).
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong, nobody_waits
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
`shard_model(model, wrap=is_unit)` asks `is_unit(module)` about every module of our GPT: shall it be a unit,
gathered before it computes and freed after? The one below says yes to the wrong ones. Write `is_unit(module)`
so that no gather brings more than one layer's weights, and a step needs no more than two gathers a layer and
one for the rest. `print(model)` names the classes: GPT, Decoder, Layer, Attention, MLP, Linear, RMSNorm."""

STUB = '''\
def is_unit(module) -> bool:
    """Whether a module of our GPT is a unit of its own."""
    kind = type(module).__name__
    return ...  # this was: kind in ("Attention", "Linear")
'''

SOLUTION = '''\
def is_unit(module) -> bool:
    """Whether a module of our GPT is a unit of its own."""
    kind = type(module).__name__
    return kind == "Layer"
'''


def _answer(kinds: str) -> str:
    return SOLUTION.replace('kind == "Layer"', f"kind in {kinds}")


CHECK_PROGRAM = """\
from workshop.lessons.on_ranks.is_unit import check_is_unit
check_is_unit(is_unit)
"""


def _check(reports: list[dict[str, Any]]) -> str:
    """It ran; no gather is larger than a layer; there are not too many."""
    nobody_waits([report["waited_at"] for report in reports], "`is_unit` must say the same on every rank.")
    said = reports[0]
    if said["error"]:
        raise Wrong(said["error"])
    layers, layer, model = said["num_layers"], said["layer_bytes"], said["model_bytes"]
    gathers, largest, rest = said["num_gathers"], said["largest_bytes"], said["root_bytes"]
    if largest > layer and largest == rest:
        raise Wrong(
            f"The largest gather is the root's: {largest / model:.0%} of the model. What lies in no unit "
            "belongs to the root and is there for the whole step: put all of a layer in units."
        )
    if largest > layer:
        raise Wrong(
            f"One gather brings {largest / model:.0%} of the model, a layer is {layer / model:.0%}: a unit "
            "that holds several layers needs room for all of them at once."
        )
    if gathers > 2 * layers + 1:
        raise Wrong(
            f"A step makes {gathers} gathers for {layers} layers, the smallest of {said['smallest_bytes']:,} "
            f"bytes. Each pays for its start. Wanted at most {2 * layers + 1}."
        )
    return f"{gathers} gathers a step, the largest {largest / model:.0%} of the model: a layer at a time."


IS_UNIT = Exercise(
    name="is_unit",
    day=2,
    question=QUESTION,
    stub=STUB,
    hints=(
        "Attention and MLP together are nearly all of a layer. Which class holds both, and only one of each?",
        "A unit inside a unit splits it: with Attention a unit, its Layer gathers only what is left.",
        '`return kind == "Layer"`',
    ),
    solution=SOLUTION,
    defines=("is_unit",),
    check=_check,
    shows="Wrap the repeated layer: large enough for the wire, a small part of the model.",
    wrong_answers=(
        WrongAnswer("as it was", _answer('("Attention", "Linear")'), "Each pays for its start"),
        WrongAnswer("the whole decoder", _answer('("Decoder",)'), "needs room for all of them at once"),
        WrongAnswer("half of each layer", _answer('("Attention",)'), "The largest gather is the root's"),
        WrongAnswer("nothing", _answer("()"), "said yes to no module"),
        WrongAnswer("the list", _answer('("ModuleList",)'), "ModuleList"),
    ),
    ranks=2,
    check_program=CHECK_PROGRAM,
)
