"""Attention on a GPU that is not there: heads that no fused kernel takes as they are.

Flash attention wants heads of a multiple of 8 numbers. On CUDA PyTorch pads others with zeros and cuts the
result (aten/src/ATen/native/transformers/attention.cpp: pad_last_dim<8>, post_process_flash_output), so that
padded tensors are kept for backward, and the cut output is copied once more. A CPU's kernel pads nothing, and
it is the one that a rehearsal runs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workshop.measure.swap import swap

MULTIPLE, WIDEST = 8, 256  # of a head, for flash attention, which takes no mask but the causal one
SHORT = (torch.float16, torch.bfloat16)


def pad_heads_as_a_gpu_does() -> None:
    """From now on tensors on "cuda" are padded for attention as CUDA's build of PyTorch pads them."""
    attend = F.scaled_dot_product_attention

    def padded(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        width = query.shape[-1]
        zeros, dtype = -width % MULTIPLE, query.dtype
        if query.device.type == "cuda" and torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
        is_flash = dtype in SHORT and width <= WIDEST and not (args or kwargs.get("attn_mask") is not None)
        if query.device.type != "cuda" or not zeros or not is_flash or value.shape[-1] != width:
            return attend(query, key, value, *args, **kwargs)
        kwargs["scale"] = kwargs.get("scale") or width**-0.5
        query, key, value = (F.pad(one.to(dtype), (0, zeros)) for one in (query, key, value))
        return attend(query, key, value, *args, **kwargs)[..., :width]

    swap(F, "scaled_dot_product_attention", padded)
