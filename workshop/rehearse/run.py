"""`rehearse()`: hand a program to a child process and bring its answer back. No torch here."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from workshop.facts import catalogue
from workshop.facts.checks import check_keys
from workshop.facts.device import ClusterSpec
from workshop.facts.short_repr import shortened, writable
from workshop.rehearse.process import REHEARSING, child
from workshop.rehearse.report import Rehearsal, RehearsalError
from workshop.rehearse.request import Request, Roofline

_TORCH_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
_LONGEST_PROBLEM = 10_000  # characters
_GRACE_SECONDS = 15.0  # for a child that cannot run Python while it waits in C
_LIMITS = "--timeout, in Python timeout_seconds"


@dataclass(frozen=True)
class Options:
    """How to rehearse; `rehearse` takes these by keyword.

    steps: training steps (optimizer steps) after which the program is stopped. The optimizer's state is born
        in the first, so the peak is reached in the second. None: 2, or 3 with DeepSpeed, whose ZeRO-3 learns
        the order of its parameters in the first step and checks it with the other ranks in the second.
    gloo: count the copies the gloo backend makes; compare with a laptop, not with GPUs.
    real: use real tensors (the model must fit here). None: only if the program imports deepspeed, whose
        C++-minded engine looks at bytes.
    roofline: a device to time the step on: a `Roofline`, or a name in the catalogue of devices ("H100").
    local_world_size: ranks per node, for LOCAL_RANK.
    timeout_seconds: the rehearsal is ended after this time, and names the line it had come to.
    pretend_cuda: where there is no CUDA device, tell a program that asks that there are `local_world_size`.
        One that does not ask may use "cuda" in any case.
    """

    steps: int | None = None
    gloo: bool = False
    real: bool | None = None
    roofline: Roofline | str | None = None
    local_world_size: int = 8
    timeout_seconds: float = 120.0
    pretend_cuda: bool = False


def rehearse(
    program: str | Path | Callable[..., Any],
    world_size: int,
    rank: int = 0,
    *,
    arguments: tuple[Any, ...] = (),
    keywords: dict[str, Any] | None = None,
    **options: Any,
) -> Rehearsal:
    """Run a program as one rank of a world that is not there, for some training steps.

    Args:
        program: a script's path, a program's text, or a function (its source is sent, so it must be written
            in a file or a notebook cell, and import what it needs itself if it is in a notebook).
        world_size: ranks in the world.
        rank: which of them to be.
        arguments: of the function (JSON values), or the script's command line.
        keywords: of the function (JSON values).
        options: fields of `Options`.

    Raises:
        ValueError: A rank outside the world, no steps, a script that does not exist, an unknown option.
        RehearsalError: The program failed, asked for something that cannot be rehearsed (such as another
            rehearsal), or took too long.
    """
    if os.environ.get(REHEARSING):
        raise RehearsalError(
            "this program is being rehearsed, and asks for a rehearsal itself: each would start another, "
            "without end. A function's file is imported once more in its rehearsal, so call rehearse() below "
            'if __name__ == "__main__":'
        )
    check_keys("rehearse()", options, [field.name for field in fields(Options)])
    chosen = Options(**options)
    text, path, function = _program(program)
    uses_deepspeed = _imports_deepspeed(text or Path(path).read_text())
    request = Request(
        world_size=world_size,
        rank=rank,
        local_world_size=chosen.local_world_size,
        source=text,
        path=path,
        function=function,
        arguments=list(arguments),
        keywords=dict(keywords or {}),
        steps=chosen.steps if chosen.steps is not None else 3 if uses_deepspeed else 2,
        gloo=chosen.gloo,
        real=uses_deepspeed if chosen.real is None else chosen.real,
        roofline=roofline_of(chosen.roofline, world_size)
        if isinstance(chosen.roofline, str)
        else chosen.roofline,
        timeout_seconds=chosen.timeout_seconds,
        pretend_cuda=chosen.pretend_cuda,
    )
    return _ask(request)


def _program(program: str | Path | Callable[..., Any]) -> tuple[str, str, str]:
    """(text, path, function name) of whatever the caller means by a program."""
    if callable(program):
        module = sys.modules.get(program.__module__)
        file = getattr(module, "__file__", None)
        if file and program.__qualname__ == program.__name__:
            return "", str(Path(file).resolve()), program.__name__
        return textwrap.dedent(inspect.getsource(program)), "", program.__name__
    if isinstance(program, str) and "\n" in program:
        return program, "", ""
    path = Path(program)
    if not path.is_file():
        raise ValueError(
            f"there is no script {str(path)!r}; give a path, a function, or a program's text of some lines"
        )
    return "", str(path.resolve()), ""


def _imports_deepspeed(text: str) -> bool:
    return any(
        line.split()[1:2] and line.split()[1].split(".")[0] == "deepspeed" for line in _import_lines(text)
    )


def _import_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith(("import ", "from "))]


def _ask(request: Request) -> Rehearsal:
    with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
        question, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        question.write_text(request.to_json())
        try:
            done = child([str(question), str(answer)], request.timeout_seconds + _GRACE_SECONDS)
        except subprocess.TimeoutExpired as error:
            printed = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else ""
            raise RehearsalError(
                f"the rehearsal did not end within {request.timeout_seconds:g} s, nor could it say where it "
                f"was; a larger time limit may help ({_LIMITS})",
                printed,
            ) from error
        if not answer.exists():
            raise RehearsalError(
                f"the child process died (exit code {done.returncode}) without an answer; its last words:\n"
                f"{done.stderr[-2000:]}",
                done.stdout,
            )
        data = json.loads(answer.read_text())
    problem = data.pop("error")
    if problem is not None:
        if data.pop("late", False):
            problem += f"; fewer micro-batches or a larger time limit may help ({_LIMITS})"
        problem = shortened(writable(problem), _LONGEST_PROBLEM)
        raise RehearsalError(
            f"rank {request.rank} of {request.world_size} could not be rehearsed:\n{problem}", done.stdout
        )
    return Rehearsal.from_dict({**data, "output": done.stdout})


def roofline_of(device: str, world_size: int) -> Roofline:
    """The roofline of one of ``world_size`` devices in nodes as their vendor builds them.

    Raises:
        ValueError: The device is not known, or its peak, its bandwidth or its link is not.
    """
    cluster = catalogue.cluster(device if world_size == 1 else f"{world_size}x{device}")
    spec = cluster.device
    if not spec.peak_flops or not spec.memory_bandwidth:
        raise ValueError(
            f"device {device}: its peak or its memory bandwidth is not known; calibrate() measures them"
        )
    rates = {_TORCH_NAMES[name]: rate for name, rate in spec.peak_flops.items() if name in _TORCH_NAMES}
    return Roofline(rates, spec.memory_bandwidth, _wire(cluster, world_size))


def _wire(cluster: ClusterSpec, world_size: int) -> float:
    """Bytes per second between the ranks: of the slowest link the whole world must use."""
    if world_size == 1:
        return float("inf")
    ends = (0, world_size - 1)
    return cluster.link(ends).bytes_per_second
