"""DDP's reducer, in Python: the same buckets, the same bytes, the same order of all_reduces.

`DistributedDataParallel` is Python around a C++ class, `Reducer`, which reaches into the memory of tensors
and so refuses those that have none. Only that class is replaced; `DistributedDataParallel` itself runs
unchanged (`no_sync`, buffers, communication hooks, static graphs).

What the reducer does (Li et al., "PyTorch Distributed", VLDB 2020, arXiv:2006.15704):

* gradients are copied into flat buckets of about 25 MiB, the first of 1 MiB, in reverse order of the
  parameters;
* a bucket is all_reduced as soon as its last gradient is there, but never before the buckets in front of it;
* after the first backward the buckets are built again, once, in the order in which the gradients really came;
* with `find_unused_parameters` the ranks then reduce a map of the parameters that took part;
* at the end the averages are copied back into the gradients, unless those are views of the buckets.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from workshop.measure.swap import swap


class _Bucket:
    """A flat tensor and the gradients that live in it. Looks like a `GradBucket` to a communication hook."""

    def __init__(self, indices: list[int], parameters: list[torch.Tensor]) -> None:
        self.indices = indices
        self._parameters = [parameters[i] for i in indices]
        first = self._parameters[0]
        total = sum(p.numel() for p in self._parameters)
        self.flat = torch.zeros(total, dtype=first.dtype, device=first.device)
        self.views: dict[int, torch.Tensor] = {}
        offset = 0
        for index, parameter in zip(indices, self._parameters, strict=True):
            self.views[index] = self.flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
        self.waiting = len(indices)
        self.result: Any = None
        self.number = 0
        self.last = False

    def buffer(self) -> torch.Tensor:
        """The flat gradients."""
        return self.flat

    def set_buffer(self, tensor: torch.Tensor) -> None:
        """Replace the flat gradients."""
        self.flat = tensor

    def gradients(self) -> list[torch.Tensor]:
        """The gradients, as views."""
        return list(self.views.values())

    def parameters(self) -> list[torch.Tensor]:
        """The parameters whose gradients these are."""
        return self._parameters

    def index(self) -> int:
        """The bucket's place in the order of reduction."""
        return self.number

    def is_last(self) -> bool:
        """Whether no bucket comes after this one."""
        return self.last


class PythonReducer:
    """Stands in for `torch.distributed.Reducer`; takes the same arguments."""

    on_bucket: Callable[[torch.Tensor], None] = staticmethod(lambda flat: None)

    def __init__(
        self,
        parameters: list[torch.Tensor],
        bucket_indices: list[list[int]],
        bucket_limits: list[int],
        process_group: dist.ProcessGroup,
        *rest: Any,
    ) -> None:
        _expect_sparse, bucket_bytes_cap, find_unused_parameters, gradient_as_bucket_view, *named = rest
        _names, first_bucket_bytes_cap, *_ = named
        self._parameters = list(parameters)
        self._group = process_group
        self._limits = [first_bucket_bytes_cap, bucket_bytes_cap]
        self._find_unused = find_unused_parameters
        self._views = gradient_as_bucket_view
        self._hook: Callable[[Any, Any], Any] | None = None
        self._hook_state: Any = None
        self._ready_order: list[int] = []
        self._rebuilt = False
        self._static = False
        self._expecting = False
        self._next = 0
        self._buckets: list[_Bucket] = []
        self._used = [  # which parameters took part, here and on the device that reduces
            torch.zeros(len(self._parameters), dtype=torch.int32, device=device)
            for device in (torch.device("cpu"), self._parameters[0].device)
            if find_unused_parameters
        ]
        self._make_buckets(bucket_indices)
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._on_gradient(index))

    def _make_buckets(self, bucket_indices: list[list[int]]) -> None:
        self._buckets = []
        self._bucket_of: dict[int, _Bucket] = {}
        for number, indices in enumerate(bucket_indices):
            bucket = _Bucket(list(indices), self._parameters)
            bucket.number, bucket.last = number, number == len(bucket_indices) - 1
            self._buckets.append(bucket)
            self.on_bucket(bucket.flat)
            self._bucket_of.update(dict.fromkeys(indices, bucket))

    def _rebuild_buckets(self) -> bool:
        """Once, before the second forward: buckets in the order in which gradients became ready."""
        if self._rebuilt or not self._ready_order or (self._find_unused and not self._static):
            return False
        order = [self._parameters[i] for i in self._ready_order]
        groups, _ = dist._compute_bucket_assignment_by_size(order, self._limits, [], self._ready_order)
        self._make_buckets(groups)
        self._rebuilt = True
        return True

    def prepare_for_forward(self) -> None:
        """A forward pass begins."""

    def prepare_for_backward(self, outputs: list[torch.Tensor]) -> None:
        """A synchronising backward pass will follow; with outputs given, find the parameters they do not
        use."""
        self._expecting = True
        self._next = 0
        for bucket in self._buckets:
            bucket.waiting, bucket.result = len(bucket.indices), None
        if outputs and self._find_unused:
            used = _parameters_behind(outputs)
            for index, parameter in enumerate(self._parameters):
                if parameter not in used:
                    self._mark_ready(index)

    def _on_gradient(self, index: int) -> Callable[[torch.Tensor], None]:
        def ready(parameter: torch.Tensor) -> None:
            if not self._expecting:
                return
            if not self._rebuilt:
                self._ready_order.append(index)
            view = self._bucket_of[index].views[index]
            if parameter.grad is not view:
                assert parameter.grad is not None
                view.copy_(parameter.grad)
                if self._views:
                    parameter.grad = view
            if self._hook is None:
                view.div_(self._group.size())
            self._mark_ready(index)

        return ready

    def _mark_ready(self, index: int) -> None:
        self._bucket_of[index].waiting -= 1
        while self._next < len(self._buckets) and self._buckets[self._next].waiting == 0:
            self._reduce(self._buckets[self._next])
            self._next += 1
        if self._next == len(self._buckets):
            self._expecting = False
            if self._used and not self._static:  # ranks agree on what nobody used
                self._used[1].copy_(self._used[0])
                dist.all_reduce(self._used[1], group=self._group)
            Variable._execution_engine.queue_callback(self._finish)

    def _reduce(self, bucket: _Bucket) -> None:
        if self._hook is None:
            dist.all_reduce(bucket.flat, group=self._group)
        else:
            bucket.result = self._hook(self._hook_state, bucket)

    def _finish(self) -> None:
        """The last callback of backward: hook results into the buckets, averages into the gradients."""
        for bucket in self._buckets:
            if bucket.result is not None:
                reduced = bucket.result.wait() if hasattr(bucket.result, "wait") else bucket.result
                reduced = reduced[0] if isinstance(reduced, (list, tuple)) else reduced
                if reduced is not bucket.flat:
                    bucket.flat.copy_(reduced.view_as(bucket.flat))
                bucket.result = None
            if not self._views:
                for index, view in bucket.views.items():
                    gradient = self._parameters[index].grad
                    if gradient is not None:
                        gradient.copy_(view)

    # What DistributedDataParallel asks of a reducer besides.

    def register_hook(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        """A communication hook instead of the all_reduce."""
        self._hook, self._hook_state = hook, state

    def _set_static_graph(self) -> None:
        self._static = True

    def _get_zeros_like_grad_buckets(self) -> list[_Bucket]:
        return self._buckets

    def _delay_all_reduce(self) -> None:
        """The first iteration of a static graph counts gradients; nothing to do here."""

    def set_logger(self, logger: Any) -> None:
        """DDP's logger reads C++ counters that do not exist here."""

    def _set_mixed_precision_param_dtype(self, dtype: torch.dtype) -> None:
        """The dtype of communication follows from the gradients."""

    def _remove_autograd_hooks(self) -> None:
        self._expecting = False

    def _check_reducer_finalized(self) -> None:
        """Always finished when backward has returned."""

    def _reset_state(self) -> None:
        self._expecting = False


class SilentLogger:
    """Stands in for `torch.distributed.Logger`, which reads the C++ reducer's counters."""

    def __init__(self, reducer: PythonReducer) -> None:
        self._data: dict[str, Any] = {}

    def _get_ddp_logging_data(self) -> Any:
        """Frameworks ask at their end whether the graph was static, say; nothing was counted."""
        return types.SimpleNamespace(strs_map={}, ints_map={})

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def _parameters_behind(outputs: list[torch.Tensor]) -> set[torch.Tensor]:
    """The leaves of the autograd graph that produced `outputs`."""
    leaves: set[torch.Tensor] = set()
    seen = set()
    todo: list[Any] = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(node.variable)
        todo.extend(next_node for next_node, _ in node.next_functions)
    return leaves


def install(on_bucket: Callable[[torch.Tensor], None]) -> None:
    """Make DistributedDataParallel use the Python reducer in this process; `on_bucket` hears of every new
    bucket."""
    PythonReducer.on_bucket = staticmethod(on_bucket)
    swap(dist, "Reducer", PythonReducer)
    swap(dist, "Logger", SilentLogger)
    swap(dist, "_verify_params_across_processes", lambda *args, **kwargs: None)
    swap(dist, "_broadcast_coalesced", _broadcast_coalesced)
    swap(dist, "_register_comm_hook", lambda reducer, state, hook: reducer.register_hook(state, hook))
    swap(dist, "_register_builtin_comm_hook", _register_builtin_hook)


def _broadcast_coalesced(
    group: dist.ProcessGroup, tensors: list[torch.Tensor], buffer_size: int, source: int
) -> None:
    """Tensors broadcast in flat buckets of at most `buffer_size` bytes, then copied back."""
    if not tensors:
        return
    for indices in dist._compute_bucket_assignment_by_size(list(tensors), [buffer_size])[0]:
        members = [tensors[i] for i in indices]
        flat = torch._utils._flatten_dense_tensors(members)
        dist.broadcast(flat, group=group, group_src=source)
        for member, value in zip(members, torch._utils._unflatten_dense_tensors(flat, members), strict=True):
            member.copy_(value)


def _register_builtin_hook(reducer: PythonReducer, kind: Any) -> None:
    """The two C++ hooks are the Python ones in another language."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    half = kind == dist.BuiltinCommHookType.FP16_COMPRESS
    hook = default_hooks.fp16_compress_hook if half else default_hooks.allreduce_hook
    reducer.register_hook(reducer._group, hook)
