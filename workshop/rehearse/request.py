"""What to rehearse: plain data that goes to the child process as JSON. No torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Roofline:
    """The device a rehearsal should be timed on, as a roofline (Williams, Waterman and Patterson 2009).

    Args:
        flops_per_second: by dtype, such as {"bfloat16": 989e12, "float32": 67e12}.
        bytes_per_second: memory bandwidth.
        wire_bytes_per_second: what one rank can send to the others.
    """

    flops_per_second: dict[str, float]
    bytes_per_second: float
    wire_bytes_per_second: float

    def __post_init__(self) -> None:
        rates = {**self.flops_per_second, "memory": self.bytes_per_second, "wire": self.wire_bytes_per_second}
        for name, rate in rates.items():
            if not rate > 0:
                raise ValueError(f"the rate of {name} must be positive, got {rate}")


@dataclass(frozen=True)
class Request:
    """One rehearsal.

    Args:
        source: the program's text (a cell), or "".
        path: the program's file, or "".
        function: a name in that program to call after it has been loaded, or "".
        arguments: positional arguments of the function (JSON values), or the script's command line.
        keywords: keyword arguments of the function (JSON values).
        world_size, rank, local_world_size: the place in the world.
        steps: training steps to run before the program is stopped.
        gloo: count the copies that the gloo backend makes of the tensors it gathers and scatters.
        real: use real tensors (small models only): what DeepSpeed needs.
        roofline: the device to time it on, if any.
        timeout_seconds: after this time the rehearsal ends and names the line it had come to.
        pretend_cuda: tell the program that there are GPUs, `local_world_size` on a node.
        probe: internal; run only until the first pipeline stage announces its output.
    """

    world_size: int
    rank: int = 0
    local_world_size: int = 8
    source: str = ""
    path: str = ""
    function: str = ""
    arguments: list[Any] = field(default_factory=list)
    keywords: dict[str, Any] = field(default_factory=dict)
    steps: int = 2
    gloo: bool = False
    real: bool = False
    roofline: Roofline | None = None
    timeout_seconds: float = 120.0
    pretend_cuda: bool = False
    probe: str = ""

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"world_size is {self.world_size}; a world has at least one rank")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank {self.rank} is not in a world of {self.world_size}: "
                f"ranks are 0 to {self.world_size - 1}"
            )
        if not self.timeout_seconds > 0:
            raise ValueError(f"the time limit is {self.timeout_seconds} s; it must be positive")
        if self.steps < 1:
            raise ValueError(
                f"steps is {self.steps}; rehearse at least one (two, to see the optimizer's state)"
            )
        if bool(self.source) == bool(self.path):
            raise ValueError("give either the program's text or its path")

    def to_json(self) -> str:
        """The request as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        """The inverse of `to_json`."""
        data = json.loads(text)
        if data["roofline"] is not None:
            data["roofline"] = Roofline(**data["roofline"])
        return cls(**data)
