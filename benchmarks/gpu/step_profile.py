"""What a step of training is made of: the profiler's seconds, kernel by kernel, added up by their purpose.

MFU says what share of the peak a step reaches. Where the rest is, kernels say: products that stay below the
peak, attention, and everything that computes nothing that the model's FLOPs count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch

# The first that fits. What torch calls its kernels, and its operators on a CPU.
KINDS = (
    ("attention", r"sdpa|flash|fmha|cudnn::fusion|scaled_dot_product"),  # these may name cutlass, too
    ("products of matrices", r"nvjet|gemm|cutlass|xmma|aten::(addmm|mm|bmm)$"),
    ("the optimizer", r"FusedOpti|FusedAdam|fused_adam"),
    ("the loss", r"SoftMax|softmax|nll_loss|cross_entropy"),
    ("the rest of the layers, compiled", r"^triton_"),
)
REST = "other kernels"
DRAWN = "distribution_"  # a block begins with a model's weights, and they are no part of a step
LONGEST = 40  # kernels that are kept by name


def by_kind(kernels: Mapping[str, float]) -> dict[str, float]:
    """Seconds by what kernels are for, longest first; of `KINDS`, and of `REST` for all others."""
    kinds: dict[str, float] = {}
    for name, seconds in kernels.items():
        kind = next((kind for kind, pattern in KINDS if re.search(pattern, name)), REST)
        kinds[kind] = kinds.get(kind, 0.0) + seconds
    return dict(sorted(kinds.items(), key=lambda pair: -pair[1]))


def kernel_seconds(block: Callable[[], float], steps: int) -> dict[str, float]:
    """Seconds a step of every kernel of a block of steps (on a CPU: of every operator itself), by its name.

    The first block, which compiles, is not looked at. A range that a program names, such as an optimizer's
    step, is no kernel.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    block()
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as seen:
        block()
        if on_gpu:
            torch.cuda.synchronize()
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    return {
        event.key: (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6 / steps
        for event in seen.key_averages()
        if event.device_type == kind and "#" not in event.key and DRAWN not in event.key
    }
