"""`torch.autocast("cuda")` on a machine without CUDA: which operators run in which dtype.

Autocast is a layer of the dispatcher: for some two hundred operators it casts the arguments and calls on.
Its CUDA layer is in every build of torch, but looks whether a tensor is on a GPU, and a rehearsed one only
says so. So the layer's kernels are registered again here, from the same lists (`ATen/autocast_mode.h`,
which the tests compare): products in the lower precision, what loses digits in fp32, some in the widest
type of their inputs.

Weights that were cast once are kept until the outermost autocast region ends, as torch keeps them; a step's
peak depends on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from workshop.measure.swap import swap

LOWER = frozenset(
    "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d "
    "convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm "
    "chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell "
    "rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention".split()
)
WIDEST = frozenset(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add".split()
)
RESULT_IN_FP32 = frozenset(
    "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum".split()
)
_LEFT_ALONE = frozenset(("norm", "binary_cross_entropy", "cudnn_convolution", "cudnn_convolution_transpose"))
_KEY = "AutocastCUDA"


class FakeGpuAutocast:
    """Registers the kernels in this process, for as long as the object lives."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        inside = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
        self._below = functools.partial(torch._C._ExcludeDispatchKeyGuard, inside)
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, _KEY):
                self._register(name.removeprefix("aten::"))
        clear = torch.clear_autocast_cache

        def clear_both() -> None:
            self._kept.clear()
            clear()

        swap(torch, "clear_autocast_cache", clear_both)

    def _register(self, name: str) -> None:
        base, _, overload = name.partition(".")
        if base in _LEFT_ALONE:
            return
        func = getattr(getattr(torch.ops.aten, base), overload or "default")
        cast: Callable[..., Any] = self._in_fp32
        if base in RESULT_IN_FP32:
            names = [argument.name for argument in func._schema.arguments]
            cast = functools.partial(_result_in_fp32, names.index("dtype"))
        elif base in LOWER:
            cast = self._lower
        elif base in WIDEST:
            cast = self._widest

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with self._below():
                args, kwargs = cast(args, kwargs)
                return func(*args, **kwargs)

        self._library.impl(name, kernel, _KEY, allow_override=True)

    def _lower(self, args: Any, kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cuda")
        return tree_map_only(torch.Tensor, lambda tensor: self._cast(tensor, dtype), (args, kwargs))

    def _in_fp32(self, args: Any, kwargs: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda tensor: self._cast(tensor, torch.float32), (args, kwargs))

    def _widest(self, args: Any, kwargs: Any) -> Any:
        dtypes = [leaf.dtype for leaf in tree_leaves((args, kwargs)) if _eligible(leaf)]
        widest = torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cuda")
        return tree_map_only(torch.Tensor, lambda tensor: self._cast(tensor, widest), (args, kwargs))

    def _cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not _eligible(tensor) or tensor.dtype is dtype:
            return tensor
        keep = (
            tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and tensor.dtype is torch.float32
            and dtype is torch.get_autocast_dtype("cuda")
            and torch.is_autocast_cache_enabled()
        )
        if not keep:
            return tensor.to(dtype)
        if id(tensor) not in self._kept:
            self._kept[id(tensor)] = (tensor, tensor.to(dtype))
        return self._kept[id(tensor)][1]


def _result_in_fp32(place: int, args: Any, kwargs: Any) -> Any:
    """Sums and softmaxes take the dtype of their result as an argument."""
    if not _eligible(args[0]):
        return args, kwargs
    if place >= len(args):
        return args, {**kwargs, "dtype": kwargs.get("dtype") or torch.float32}
    return (*args[:place], args[place] or torch.float32, *args[place + 1 :]), kwargs


def _eligible(tensor: Any) -> bool:
    """As torch judges it: on the GPU, a float, and no double."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.device.type == "cuda"
        and tensor.dtype.is_floating_point
        and tensor.dtype is not torch.float64
    )
