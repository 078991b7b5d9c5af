"""The stage a program plays on: a fake world, fake tensors, and somebody who writes everything down."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from workshop.facts.units import format_bytes
from workshop.measure.comms import tabulate
from workshop.measure.phases import StepHooks
from workshop.predict.memory.allocator import replay
from workshop.rehearse import gloo, pipeline, readings, reducer, standins, world
from workshop.rehearse.cuda import FakeGpu
from workshop.rehearse.fakemode import RememberingFakeMode
from workshop.rehearse.program import Program
from workshop.rehearse.request import Request
from workshop.rehearse.tracer import StopRehearsal, Tracer
from workshop.rehearse.values import Answers


class PreparedProcess:
    """Everything that must be in place before the program's first line, for one rehearsal in this process."""

    stop = StopRehearsal

    def __init__(self, request: Request, program: Program, notes: dict[str, None]) -> None:
        self._request = request
        answers = Answers(notes, program)
        self.tracer = Tracer(answers, program, request.steps, request.gloo, request.roofline)
        world.set_environment(request)
        world.install(request)
        standins.install(self.tracer, notes)
        self._gpu: FakeGpu | None = None
        if not request.real:
            readings.install(answers)
            if not torch.cuda.is_available():
                self._gpu = FakeGpu(request, program, self.tracer, notes)
                self.tracer.place = self._gpu.place
        pipeline.install(request, notes)
        if request.gloo:
            gloo.hold_copies_of_async_calls()
        if not request.real:
            reducer.install(lambda flat: self.tracer.label(flat.untyped_storage(), "buckets"))
        self._notes = notes

    @contextlib.contextmanager
    def playing(self) -> Iterator[None]:
        """Fake tensors on, watching on."""
        stops = [self.tracer.parts.watch_modules(), self.tracer.parts.watch_fsdp()]
        hooks = StepHooks(self.tracer)
        hooks.install()
        torch.set_num_threads(1)
        fake = contextlib.nullcontext() if self._request.real else RememberingFakeMode()
        try:
            with fake, self.tracer:
                yield
        finally:
            hooks.remove()
            for stop in stops:
                stop()

    def hint(self, message: str) -> str:
        """What may help a program that could not be rehearsed, or left at once."""
        return self._gpu.hint(message) if self._gpu else ""

    def _reserved(self) -> int | None:
        """Of a device's memory, at most; a CPU has no caching allocator."""
        ledger = self.tracer.device_ledger
        return replay(ledger.changes()).peak_reserved if len(ledger) else None

    def answer(self) -> dict[str, Any]:
        """What was seen, as plain data."""
        tracer = self.tracer
        tracer.parts.sweep_modules()
        if not tracer.finished_steps:
            self._notes["no optimizer.step() was seen: traffic and FLOPs are those of the whole program"] = (
                None
            )
        if len(tracer.device_ledger) and len(tracer.host_ledger):
            host = format_bytes(tracer.host_ledger.report().peak_bytes, decimals=3, binary=False)
            self._notes[
                f"memory is the device's; tensors in the host's memory had their own peak of {host}"
            ] = None
        whole = bool(tracer.finished_steps)
        return {
            "rank": self._request.rank,
            "world_size": self._request.world_size,
            "memory": {**asdict(tracer.ledger.report()), "reserved_bytes": self._reserved()},
            "traffic": [asdict(row) for row in tabulate(tracer.last_calls if whole else tracer.calls)],
            "flops": tracer.last_flops if whole else tracer.flops,
            "roofline_seconds": tracer.last_roofline,
            "steps": tracer.finished_steps,
            "operators": tracer.operators,
            "alarms": tracer.alarms(),
        }
