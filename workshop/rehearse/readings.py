"""What Python asks of a tensor without calling an operator: format it, list it, copy it, take it to numpy.

A plain tensor answers these in C++ from its bytes. A fake tensor has none and is a subclass, and so
`f"{loss:.4f}"`, `t.numpy()` and `copy.deepcopy(module)` fail where the real ones work. Here they get the same
answers as `item()` (see `workshop.rehearse.values`), and copies that share what the originals share.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

from workshop.rehearse.known import copy_values
from workshop.rehearse.values import Answers


def install(answers: Answers) -> None:
    """Give fake tensors the Python side of plain ones, in this process."""

    def to_list(self: FakeTensor) -> Any:
        return answers.read(self, "tolist")

    def to_numpy(self: FakeTensor, *, force: bool = False) -> Any:
        if self.requires_grad and not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
            )
        return answers.read(self, "numpy")

    def to_array(self: FakeTensor, dtype: Any = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    for name, function in (
        ("tolist", to_list),
        ("numpy", to_numpy),
        ("__array__", to_array),
        ("__format__", _format),
        ("__deepcopy__", _deepcopy),
    ):
        setattr(FakeTensor, name, function)


def _format(self: FakeTensor, spec: str) -> str:
    return format(self.item(), spec) if spec and self.dim() == 0 else object.__format__(self, spec)


def _deepcopy(self: FakeTensor, memo: dict[int, Any]) -> Any:
    """As torch does it: a parameter is cloned by itself, and other tensors keep sharing what they shared."""
    if id(self) in memo:
        return memo[id(self)]
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
            "moment"
        )
    with torch.no_grad():
        if isinstance(self, torch.nn.Parameter):
            twin: torch.Tensor = torch.nn.Parameter(
                self.detach().clone(memory_format=torch.preserve_format), self.requires_grad
            )
        else:
            twin = _same_view(self, _copied_storage(self, memo)).requires_grad_(self.requires_grad)
    if self.grad is not None and not isinstance(self, torch.nn.Parameter):
        twin.grad = copy.deepcopy(self.grad, memo)
    for name, value in self.__dict__.items():
        if name not in twin.__dict__ and not isinstance(self, torch.nn.Parameter):
            twin.__dict__[name] = copy.deepcopy(value, memo)
    memo[id(self)] = twin
    return twin


def _copied_storage(tensor: FakeTensor, memo: dict[int, Any]) -> torch.UntypedStorage:
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key not in memo:
        bytes_ = torch.empty(storage.nbytes(), dtype=torch.uint8, device=tensor.device)
        memo[key] = bytes_.untyped_storage()
        copy_values(storage, memo[key])
    return memo[key]


def _same_view(tensor: FakeTensor, storage: torch.UntypedStorage) -> FakeTensor:
    elem = torch.empty(0, dtype=tensor.dtype, device="meta")
    with in_kernel_invocation_manager(tensor.fake_mode):
        elem.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return FakeTensor(tensor.fake_mode, elem, tensor.fake_device)
