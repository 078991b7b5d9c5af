"""``%%rehearse -n WORLD``: the cell as one rank of a world that is never started.

The cell is the program that ``%%torchrun`` would start on every rank. Here it runs once, in a process of
its own, on fake tensors and with a fake process group, and what comes back is exact where bytes are
concerned (see `workshop.rehearse`). This module reads the line, calls `rehearse`, and shows the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from workshop.facts import catalogue
from workshop.facts.device import ClusterSpec
from workshop.jupyter.usage import explain_errors, show_as_sentence
from workshop.launch.passing import literal, select
from workshop.launch.script import check_syntax
from workshop.rehearse import Rehearsal, RehearsalError, Roofline, rehearse

_TORCH_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}


@magics_class
class RehearseMagics(Magics):
    """Registered by ``%load_ext workshop``."""

    shell: Any  # IPython's InteractiveShell

    @explain_errors("%%rehearse")
    @cell_magic("rehearse")
    @magic_arguments()
    @argument("-n", "--world-size", type=int, required=True, metavar="WORLD", help="ranks in the world")
    @argument("--rank", type=int, default=0, metavar="R", help="which of them to be (default: 0)")
    @argument("--steps", type=int, metavar="S", help="optimizer steps after which the cell is stopped")
    @argument("--gloo", action="store_true", help="count the copies gloo makes, to compare with a laptop")
    @argument("--device", metavar="NAME", help="a device to time the step on by its roofline: H100")
    @argument("--into", metavar="NAME", help="variable that gets the Rehearsal")
    @argument("--pass", dest="passing", metavar="NAMES", help="notebook variables for the cell: lr,layers")
    @argument(
        "--timeout", type=float, default=120.0, metavar="S", help="seconds until the rehearsal is ended"
    )
    def rehearse_cell(self, line: str, cell: str) -> None:
        """Run the cell as one rank of any world, on fake tensors: memory, traffic and FLOPs of a step."""
        args = parse_argstring(self.rehearse_cell, line)
        if args.into is not None and not args.into.isidentifier():
            raise ValueError(f"--into {args.into}: a variable's name, for example --into rehearsed")
        program = as_program(line, cell, select(args.passing or "", self.shell.user_ns))
        check_syntax(program)
        roofline = roofline_of(args.device, args.world_size) if args.device else None
        try:
            found = rehearse(
                program, args.world_size, args.rank, steps=args.steps, gloo=args.gloo, roofline=roofline,
                timeout_seconds=args.timeout,
            )  # fmt: skip
        except RehearsalError as error:
            show_as_sentence(error)
            raise
        self._show(found, args.into)

    def _show(self, found: Rehearsal, into: str | None) -> None:
        """What the cell printed, then the report; with ``--into`` the report is the variable's to show."""
        print(found.output, end="", flush=True)
        if into:
            self.shell.user_ns[into] = found
        else:
            display(found)


def as_program(line: str, cell: str, passing: Mapping[str, Any]) -> str:
    """The cell's text with line 1 as the notebook counts it, which also sets the passed values.

    Raises
    ------
    ValueError
        A value cannot be written as Python text: the program runs in another process.
    """
    setters = []
    for name, value in passing.items():
        source = literal(value)
        if source is None:
            raise ValueError(
                f"--pass {name}: a {type(value).__name__} cannot be written as Python text. "
                "Pass the numbers it is made from and build it in the cell."
            )
        setters.append(f"{name} = {source}")
    first = "; ".join(setters)
    return f"{first}{'  ' if first else ''}# %%rehearse {line.strip()}\n{cell}\n"


def roofline_of(device: str, world_size: int) -> Roofline:
    """The roofline of one of ``world_size`` devices in nodes as their vendor builds them.

    Raises
    ------
    ValueError
        The device is not known, or its bandwidth or link is not.
    """
    cluster = catalogue.cluster(device if world_size == 1 else f"{world_size}x{device}")
    spec = cluster.device
    if not spec.peak_flops or not spec.memory_bandwidth:
        raise ValueError(
            f"--device {device}: its peak or its memory bandwidth is not known; calibrate() measures them"
        )
    rates = {_TORCH_NAMES[name]: rate for name, rate in spec.peak_flops.items() if name in _TORCH_NAMES}
    return Roofline(rates, spec.memory_bandwidth, _wire(cluster, world_size))


def _wire(cluster: ClusterSpec, world_size: int) -> float:
    """Bytes per second between the ranks: of the slowest link the whole world must use."""
    if world_size == 1:
        return float("inf")
    ends = (0, world_size - 1)
    return cluster.link(ends).bytes_per_second
