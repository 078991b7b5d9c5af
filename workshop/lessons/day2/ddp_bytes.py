"""Exercise: the bytes a rank must hold to train P parameters under DistributedDataParallel with AdamW.

Weights, gradients and AdamW's two moments (Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter,
arXiv:1711.05101), and the buckets in which DDP sends gradients: a second copy of them, unless
``gradient_as_bucket_view=True`` lets the gradients live in the buckets (Li et al., arXiv:2006.15704, and
the documentation of torch.nn.parallel.DistributedDataParallel). AdamW's step counters, four bytes a
tensor, are left out, and so are activations: this is what is there before the first sample.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `ddp_bytes(num_parameters, bytes_per_value=4, bucket_view=True)`: the bytes each rank holds to train
with AdamW under DistributedDataParallel, before any activation. Count weights, gradients and AdamW's two
moments. DDP sends gradients from buckets; with `bucket_view=False` these are a second copy of the
gradients."""

STUB = '''\
def ddp_bytes(num_parameters: int, bytes_per_value: int = 4, bucket_view: bool = True) -> int:
    """Bytes a rank holds for weights, gradients, moments and gradient buckets."""
    return ...
'''

SOLUTION = '''\
def ddp_bytes(num_parameters: int, bytes_per_value: int = 4, bucket_view: bool = True) -> int:
    """Bytes a rank holds for weights, gradients, moments and gradient buckets."""
    weights = gradients = num_parameters * bytes_per_value
    moments = 2 * num_parameters * bytes_per_value
    buckets = 0 if bucket_view else gradients
    return weights + gradients + moments + buckets
'''


def _answer(formula: str, more: str = "") -> str:
    return (
        f"def ddp_bytes(num_parameters, bytes_per_value=4, bucket_view=True{more}):\n    return {formula}\n"
    )


def _copies(view: int, no_view: int) -> Any:
    """A formula that holds so many values a parameter, with and without bucket views."""
    return lambda p, bytes_per_value=4, bucket_view=True: (
        p * bytes_per_value * (view if bucket_view else no_view)
    )


CALLS = (
    Call((1000,)),
    Call((1000,), {"bucket_view": False}),
    Call((3_212_749_824,)),  # Llama 3.2 3B
    Call((1000,), {"bytes_per_value": 2}),
    Call((1000, 8, False)),
)

MISTAKES = (
    Mistake(_copies(2, 3), "AdamW's two moments are missing: for every weight it remembers two more values."),
    Mistake(_copies(3, 4), "One value a parameter is missing: the gradients, or one of AdamW's two moments."),
    Mistake(_copies(4, 4), "Without bucket views DDP keeps the gradients a second time."),
    Mistake(_copies(5, 5), "With bucket views the gradients live in the buckets: they are not there twice."),
    Mistake(_copies(1, 1), "That is the weights alone."),
    *(
        Mistake(
            lambda *args, ranks=ranks, **kwargs: _copies(4, 5)(*args, **kwargs) / ranks,
            "Adding ranks does not divide the memory: under DDP every rank holds all of it.",
        )
        for ranks in (2, 4, 8)
    ),
)


def _check(names: dict[str, Any]) -> str:
    """Five calls against four values a parameter, five without bucket views."""
    compare(names["ddp_bytes"], "ddp_bytes", CALLS, _copies(4, 5), MISTAKES)
    return "16 bytes a parameter in fp32: 51.4 GB on every rank for Llama 3.2 3B (3,212,749,824 parameters)."


DDP_BYTES = Exercise(
    name="ddp_bytes",
    day=2,
    question=QUESTION,
    stub=STUB,
    hints=(
        "How many values does training keep for one parameter? Begin with the weight itself.",
        "One weight, one gradient, two moments: four values a parameter. And the buckets?",
        "`(4 if bucket_view else 5) * num_parameters * bytes_per_value`. The number of ranks is not in it.",
    ),
    solution=SOLUTION,
    defines=("ddp_bytes",),
    check=_check,
    shows="The number of ranks does not occur: data parallelism divides the work, never the memory.",
    wrong_answers=(
        WrongAnswer(
            "forgets the moments",
            _answer("(2 if bucket_view else 3) * num_parameters * bytes_per_value"),
            "two moments are missing",
        ),
        WrongAnswer(
            "forgets the gradients",
            _answer("(3 if bucket_view else 4) * num_parameters * bytes_per_value"),
            "the gradients, or one of",
        ),
        WrongAnswer(
            "divides by the ranks",
            _answer(
                "(4 if bucket_view else 5) * num_parameters * bytes_per_value / world_size",
                more=", world_size=4",
            ),
            "Adding ranks does not divide the memory",
        ),
        WrongAnswer(
            "forgets the buckets",
            _answer("4 * num_parameters * bytes_per_value"),
            "gradients a second time",
        ),
    ),
)
