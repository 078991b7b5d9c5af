"""What was measured, in a form that outlives the program: records that go to JSON and back.

Memory needs three numbers, because people mix them: *allocated* (bytes of live tensors), *reserved* (what the
caching allocator took from the device, allocated and idle blocks alike) and *device* (reserved, and the
driver's context, kernels, communication buffers: what ``nvidia-smi`` shows).  A measurement carries those it
has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from workshop.facts.checks import check_keys
from workshop.facts.traffic import Traffic


@dataclass(frozen=True)
class Measurement:
    """One rank's measured step.  Zero or an empty mapping means "not measured".

    ``parts`` is the peak's bytes by part; ``phases`` seconds of a step by phase; ``setting`` whatever a
    reader needs to run it again (device, versions, layout).
    """

    rank: int = 0
    world_size: int = 1
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    device_bytes: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)
    step_seconds: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    flops: float = 0.0
    traffic: tuple[Traffic, ...] = ()
    setting: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The record as JSON text."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """The inverse of :meth:`to_json`; unknown keys are refused, naming the nearest."""
        entry = json.loads(text)
        check_keys("measurement", entry, [f.name for f in fields(cls)])
        traffic = tuple(Traffic(**item) for item in entry.pop("traffic", ()))
        return cls(**entry, traffic=traffic)

    def save(self, path: str | Path) -> None:
        """Write the record to a file."""
        Path(path).write_text(self.to_json() + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Measurement:
        """Read a record from a file."""
        return cls.from_json(Path(path).read_text("utf-8"))
