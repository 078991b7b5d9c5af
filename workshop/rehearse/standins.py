"""Small replacements for library functions that look at bytes a fake tensor does not have, or do something at
a cost that grows with a world that is not there. Each says what it replaces and why; none changes what is
allocated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from workshop.measure.swap import swap
from workshop.rehearse.refusal import NotRehearsableError
from workshop.rehearse.tracer import Tracer


def apply_in_place(
    self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> nn.Module:
    """`nn.Module._apply`, which `.to()`, `.bfloat16()` and `to_empty()` use.

    On fake tensors the original swaps tensors under their identity and refuses when anything else, such as
    our ledger, holds a weak reference. With real ones it keeps the `Parameter` and gives it other data: an
    optimizer made before `.to()` steps the same objects after it, and tied weights stay tied. So it is here.
    Coming from the meta device, real torch makes a new `Parameter`; that too is the same here.
    """
    if recurse:
        for child in self.children():
            child._apply(fn)
    for name, parameter in self._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            moved = fn(parameter)
            gradient = fn(parameter.grad) if parameter.grad is not None else None
        if moved is parameter:
            continue
        parameter.grad = None
        if isinstance(parameter, DTensor):
            torch.utils.swap_tensors(parameter, nn.Parameter(moved, parameter.requires_grad))
        elif (parameter.device.type == "meta") != (moved.device.type == "meta"):
            parameter = self._parameters[name] = nn.Parameter(moved, parameter.requires_grad)
        else:
            parameter.data = moved
        parameter.grad = gradient
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


class LazyChunks:
    """The chunks of a tensor along a dimension, cut when asked for.

    `fully_shard` makes a list of `world_size` chunks of every parameter to read one or two of them: 172 s for
    a 1B model on 8,192 ranks.
    """

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int = 0) -> None:
        self._tensor, self._num, self._dim = tensor, num_chunks, dim
        self._size = -(-tensor.size(dim) // num_chunks)

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int) -> torch.Tensor:
        index = range(self._num)[index]
        begin = min(index * self._size, self._tensor.size(self._dim))
        end = min(begin + self._size, self._tensor.size(self._dim))
        if begin < end:
            return self._tensor.narrow(self._dim, begin, end - begin)
        return self._tensor.new_empty(0)


def install(tracer: Tracer, notes: dict[str, None]) -> None:
    """Put every stand-in in place, in this process."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    swap(nn.Module, "_apply", apply_in_place)
    swap(nn.init, "_no_grad_trunc_normal_", _draw_once)
    swap(DataLoader, "_get_iterator", _iterate_here(tracer))
    _write_no_files(notes)
    for kinds in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        kinds.append(FakeTensor)  # on a GPU optimizers take the foreach way
    swap(_fsdp_param, "_chunk_with_empty", LazyChunks)
    _note_random_states(tracer)
    _always_step_scaler()
    _mark_compile(notes)


def _draw_once(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None
) -> torch.Tensor:
    """`trunc_normal_` draws again for as long as any number lies outside, which nobody can see here."""
    with torch.no_grad():
        drawn = tensor.normal_(mean, std, generator=generator)
        torch.where((drawn < a) | (drawn > b), torch.empty_like(drawn), drawn)
    return tensor


def _iterate_here(tracer: Tracer) -> Callable[[DataLoader[Any]], Any]:
    """A loader's workers are processes that hand over shared memory; fake tensors cannot travel. Batches of a
    loader with workers are made here, and as in the real run none of their bytes come from torch's allocator.
    """

    class HereIterator(_SingleProcessDataLoaderIter):
        def _next_data(self) -> Any:
            with tracer.elsewhere():
                return super()._next_data()

    def get_iterator(self: DataLoader[Any]) -> Any:
        if not self.num_workers:
            return _SingleProcessDataLoaderIter(self)
        alone = object.__new__(type(self))
        alone.__dict__.update(self.__dict__, num_workers=0, timeout=0)
        return HereIterator(alone)

    return get_iterator


def _write_no_files(notes: dict[str, None]) -> None:
    """A checkpoint of tensors without bytes would overwrite a real one with nothing."""

    def save(*_: Any, **__: Any) -> None:
        notes["torch.save wrote nothing: a rehearsal has no values to keep"] = None

    swap(torch, "save", save)


def install_for_imports(name: str) -> None:
    """Called when the program has imported a library that needs a stand-in of its own."""
    if name == "transformers":
        _plain_masks()
    elif name == "bitsandbytes":
        _refuse_few_bits()
    elif name == "safetensors.torch":
        _read_what_was_saved(sys.modules[name])
    elif name == "accelerate.data_loader":  # ranks that agree on their random numbers
        swap(sys.modules[name], "synchronize_rng_states", lambda *_, **__: None)


def _read_what_was_saved(safetensors: Any) -> None:
    """`save_file` writes nothing, as `torch.save`; a program that reads its own file gets its own tensors."""
    saved: dict[str, dict[str, torch.Tensor]] = {}
    load_file = safetensors.load_file

    def save(tensors: dict[str, torch.Tensor], filename: Any, *_: Any, **__: Any) -> None:
        saved[str(filename)] = dict(tensors)

    def load(filename: Any, device: Any = "cpu") -> dict[str, torch.Tensor]:
        if str(filename) not in saved:
            return load_file(filename, device)
        return {name: tensor.to(device, copy=True) for name, tensor in saved[str(filename)].items()}

    swap(safetensors, "save_file", save)
    swap(safetensors, "load_file", load)


def _refuse_few_bits() -> None:
    """Its layers are refused when one is made: peft and transformers import the library in any case."""
    from bitsandbytes import functional
    from bitsandbytes import nn as layers

    def refuse(*_: Any, **__: Any) -> None:
        raise NotRehearsableError(
            "bitsandbytes keeps 4-bit weights in kernels that need real memory, so its layers cannot be "
            "rehearsed. Rehearse the model with plain bf16 weights and LoRA, then replace the bytes of the "
            "frozen weights: 4.127 bits each with double quantization (arXiv:2305.14314, section 3)"
        )

    swap(functional, "quantize_4bit", refuse)
    swap(layers.Linear4bit, "__init__", refuse)
    swap(layers.Linear8bitLt, "__init__", refuse)


def _note_random_states(tracer: Tracer) -> None:
    """`get_rng_state` draws its 5 kB tensor in C++, unseen by any mode; checkpointing keeps one per
    region."""
    inner = torch.random.get_rng_state

    def noted() -> torch.Tensor:
        state = inner()
        tracer.note(state)
        return state

    swap(torch.random, "get_rng_state", noted)
    swap(torch, "get_rng_state", noted)


def _always_step_scaler() -> None:
    """GradScaler reads from a tensor whether a gradient overflowed. Here none did."""

    def step(self: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    swap(torch.amp.GradScaler, "_maybe_opt_step", step)


def _mark_compile(notes: dict[str, None]) -> None:
    """A compiled function frees and fuses what eager code keeps: rehearsed eagerly, and said so."""

    def note(caller: str) -> None:
        if (
            "site-packages" not in caller
        ):  # libraries compile helpers of their own; that is not the program's doing
            notes[
                "torch.compile was left out: memory and time are those of eager code, an upper estimate"
            ] = None

    def compile_(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        note(sys._getframe(1).f_code.co_filename)
        return model if model is not None else (lambda inner: inner)

    def compile_module(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        note(sys._getframe(1).f_code.co_filename)

    swap(torch, "compile", compile_)
    swap(nn.Module, "compile", compile_module)


def _plain_masks() -> None:
    """transformers takes a fake tensor for a traced one, and then builds attention masks that a real run
    finds it can do without."""
    from transformers.utils import import_utils

    swap(import_utils, "is_fake_tensor", lambda _: False)
