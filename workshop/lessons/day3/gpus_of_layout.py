"""Exercise: which axes multiply, and which do not.

Tensor, context, pipeline and data parallelism each cut the world once more. Sequence parallelism lives on
the tensor-parallel ranks (Korthikanti et al., arXiv:2205.05198), experts are spread over ranks that are
already there.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `gpus_of_layout(tensor=1, pipeline=1, data=1, context=1, expert=1, sequence_parallel=False)`: the
number of GPUs of a layout. Sequence parallelism is done by the tensor-parallel ranks; experts are spread
over ranks that the other axes already count."""

STUB = '''\
def gpus_of_layout(
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    context: int = 1,
    expert: int = 1,
    sequence_parallel: bool = False,
) -> int:
    """GPUs, one rank each, of a layout."""
    return ...
'''

SOLUTION = '''\
def gpus_of_layout(
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    context: int = 1,
    expert: int = 1,
    sequence_parallel: bool = False,
) -> int:
    """GPUs, one rank each, of a layout."""
    return tensor * context * pipeline * data
'''

CALLS = (
    Call((), {"tensor": 8, "pipeline": 35, "data": 16}),  # MT-NLG, arXiv:2201.11990
    Call((), {"tensor": 8, "pipeline": 64, "data": 6}),  # Megatron-LM's 1T, arXiv:2104.04473
    Call((), {"tensor": 8, "pipeline": 16, "data": 8, "context": 16, "sequence_parallel": True}),
    Call((), {"tensor": 2, "pipeline": 16, "data": 64, "expert": 64}),
    Call((), {"tensor": 4}),
)


def _product(with_context: bool = True, with_expert: bool = False, with_sequence: bool = False) -> Any:
    def formula(
        tensor: int = 1,
        pipeline: int = 1,
        data: int = 1,
        context: int = 1,
        expert: int = 1,
        sequence_parallel: bool = False,
    ) -> int:
        more = (context if with_context else 1) * (expert if with_expert else 1)
        return tensor * pipeline * data * more * (tensor if with_sequence and sequence_parallel else 1)

    return formula


def _sum(tensor: int = 1, pipeline: int = 1, data: int = 1, context: int = 1, **_: Any) -> int:
    return tensor + pipeline + data + context


MISTAKES = (
    Mistake(
        _product(with_expert=True),
        "Experts need no ranks of their own: they are spread over those of the other axes.",
    ),
    Mistake(_product(with_context=False), "Ranks that share a sequence are ranks too: `context` multiplies."),
    Mistake(
        _product(with_sequence=True),
        "Sequence parallelism is done by the tensor-parallel ranks themselves: it adds none.",
    ),
    Mistake(_sum, "Each axis cuts what the others have cut: sizes multiply, they do not add up."),
    Mistake(
        _product(with_context=False, with_expert=True),
        "Contexts multiply, experts do not: you have it the other way.",
    ),
)


def _check(names: dict[str, Any]) -> str:
    """Two published layouts, one with long sequences, one with experts, and tensor parallelism alone."""
    compare(names["gpus_of_layout"], "gpus_of_layout", CALLS, _product(), MISTAKES)
    return "MT-NLG: 8 x 35 x 16 = 4,480. Megatron-LM's trillion: 8 x 64 x 6 = 3,072."


def _answer(formula: str) -> str:
    return SOLUTION.replace("tensor * context * pipeline * data", formula)


GPUS_OF_LAYOUT = Exercise(
    name="gpus_of_layout",
    day=3,
    question=QUESTION,
    stub=STUB,
    hints=(
        "A rank has one coordinate on each axis that cuts. How many different coordinates are there?",
        "Of the six arguments four are axes of their own. Which two live on ranks that are already counted?",
        "Multiply tensor, context, pipeline and data.",
    ),
    solution=SOLUTION,
    defines=("gpus_of_layout",),
    check=_check,
    shows="A layout is a box of ranks: its sides multiply.",
    wrong_answers=(
        WrongAnswer(
            "experts multiply",
            _answer("tensor * context * pipeline * data * expert"),
            "Experts need no ranks",
        ),
        WrongAnswer("contexts do not", _answer("tensor * pipeline * data"), "`context` multiplies"),
        WrongAnswer(
            "sequence parallelism multiplies",
            _answer("tensor * context * pipeline * data * (tensor if sequence_parallel else 1)"),
            "it adds none",
        ),
        WrongAnswer("a sum", _answer("tensor + context + pipeline + data"), "sizes multiply"),
    ),
)
