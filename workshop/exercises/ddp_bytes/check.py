"""Exercise: the bytes a rank must hold to train P parameters under DistributedDataParallel with AdamW.

Weights, gradients and AdamW's two moments (Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter,
arXiv:1711.05101), and the buckets in which DDP sends gradients: a second copy of them, unless
``gradient_as_bucket_view=True`` lets the gradients live in the buckets (Li et al., arXiv:2006.15704, and
the documentation of torch.nn.parallel.DistributedDataParallel). AdamW's step counters, four bytes a
tensor, are left out, and so are activations: this is what is there before the first sample.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare


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
    Mistake(
        _copies(3, 4), "One value per parameter is missing: the gradients, or one of AdamW's two moments."
    ),
    Mistake(_copies(4, 4), "Without bucket views, DDP keeps the gradients a second time."),
    Mistake(_copies(5, 5), "With bucket views, the gradients are stored in the buckets, and not twice."),
    Mistake(_copies(1, 1), "That is only the weights."),
    *(
        Mistake(
            lambda *args, ranks=ranks, **kwargs: _copies(4, 5)(*args, **kwargs) / ranks,
            "Adding ranks does not divide the memory: under DDP every rank holds all of it.",
        )
        for ranks in (2, 4, 8)
    ),
)


def check(names: dict[str, Any]) -> str:
    """Five calls against four values a parameter, five without bucket views."""
    compare(names["ddp_bytes"], "ddp_bytes", CALLS, _copies(4, 5), MISTAKES)
    return (
        "16 bytes per parameter in fp32: 51.4 GB on every rank for Llama 3.2 3B (3,212,749,824 parameters)."
    )
