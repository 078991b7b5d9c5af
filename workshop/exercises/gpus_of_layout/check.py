"""Exercise: which axes multiply, and which do not.

Tensor, context, pipeline and data parallelism each cut the world once more. Sequence parallelism lives on
the tensor-parallel ranks (Korthikanti et al., arXiv:2205.05198), experts are spread over ranks that are
already there.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

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
    Mistake(_product(with_context=False), "Ranks that share a sequence also count: `context` multiplies."),
    Mistake(
        _product(with_sequence=True),
        "Sequence parallelism is done by the tensor-parallel ranks themselves: it adds none.",
    ),
    Mistake(
        _sum, "Each axis cuts the parts that the others have made, so sizes multiply. They do not add up."
    ),
    Mistake(
        _product(with_context=False, with_expert=True),
        "Contexts multiply, experts do not: you have it the other way.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Two published layouts, one with long sequences, one with experts, and tensor parallelism alone."""
    compare(names["gpus_of_layout"], "gpus_of_layout", CALLS, _product(), MISTAKES)
    return "MT-NLG: 8 x 35 x 16 = 4,480. Megatron-LM's trillion: 8 x 64 x 6 = 3,072."
