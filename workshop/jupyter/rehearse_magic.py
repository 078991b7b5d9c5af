"""``%%rehearse -n WORLD`` and ``%rehearse -n WORLD train.py``: one rank of a world that is never started.

The cell is the program that ``%%torchrun`` would start on every rank; the line form takes a script with its
command line. Here it runs once, in a process of its own, on fake tensors and with a fake process group, and
what comes back is exact where bytes are concerned (see `workshop.rehearse`). This module reads the line,
calls `rehearse`, and shows the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from workshop.facts.short_repr import shortened
from workshop.jupyter.flags import explain_errors, read_flags, show_as_sentence
from workshop.launch.request import check_syntax, literal, select
from workshop.rehearse import Rehearsal, RehearsalError, Rehearsals, parse_ranks, rehearse_ranks

_MOST_PRINTED = 100_000  # characters in a notebook; the Rehearsal has them all


@magics_class
class RehearseMagics(Magics):
    """Registered by ``%load_ext workshop``."""

    shell: Any  # IPython's InteractiveShell

    @explain_errors("%%rehearse")
    @line_cell_magic("rehearse")
    @magic_arguments()
    @argument(
        "-n",
        "--world-size",
        "--nproc-per-node",
        type=int,
        required=True,
        metavar="WORLD",
        help="ranks in the world",
    )
    @argument("--rank", default="0", metavar="R", help="which of them to be; several: 0,7,63 (default: 0)")
    @argument("--steps", type=int, metavar="S", help="optimizer steps after which the program is stopped")
    @argument("--gloo", action="store_true", help="count the copies gloo makes, to compare with a laptop")
    @argument("--device", metavar="NAME", help="a device to time the step on by its roofline: H100")
    @argument("--cuda", action="store_true", help="where there is no GPU: answer a program that asks as if")
    @argument(
        "--into", metavar="NAME", help="variable that gets the Rehearsal (Rehearsals for several ranks)"
    )
    @argument("--pass", dest="variables", metavar="NAMES", help="notebook variables for the cell: lr,layers")
    @argument(
        "--timeout", type=float, default=120.0, metavar="S", help="seconds until the rehearsal is ended"
    )
    @argument(
        "program", nargs="*", metavar="SCRIPT", help="%%rehearse alone: a file, and its arguments after it"
    )
    def rehearse_cell(self, line: str, cell: str | None = None) -> None:
        """Run the cell, or a script, as one rank of any world, on fake tensors: memory, traffic and FLOPs."""
        args = read_flags(self.rehearse_cell, line)
        if args.into is not None and not args.into.isidentifier():
            raise ValueError(f"--into {args.into}: a variable's name, for example --into rehearsed")
        ranks = parse_ranks(args.rank)
        options = {
            "steps": args.steps,
            "gloo": args.gloo,
            "roofline": args.device,
            "pretend_cuda": args.cuda,
            "timeout_seconds": args.timeout,
            "arguments": tuple(args.program[1:]),
        }
        program = self._program(args, line, cell)
        try:
            rehearsed = rehearse_ranks(program, args.world_size, ranks, **options)
        except RehearsalError as error:
            print(shortened(error.output, _MOST_PRINTED), end="", flush=True)
            show_as_sentence(error)
            raise
        self._show(rehearsed.ranks[0] if len(ranks) == 1 else rehearsed, args.into)

    def _program(self, args: Any, line: str, cell: str | None) -> str | Path:
        """The cell's text, or the script's path."""
        script: Any = args.program[0] if args.program else None
        if cell is None and script is None:
            raise ValueError(
                "%rehearse wants a script: %rehearse -n 64 train.py --lr 0.1; a cell begins with %%rehearse"
            )
        if cell is None:
            if args.variables:
                raise ValueError("--pass sets variables of a cell; a script takes arguments, after its name")
            return Path(script).expanduser()
        if script is not None:
            raise ValueError(
                f"%%rehearse runs the cell, and has no place for {script!r}; a script is rehearsed by "
                f"%rehearse with one sign: %rehearse -n {args.world_size} {script}"
            )
        program = as_program(line, cell, select(args.variables or "", self.shell.user_ns))
        check_syntax(program, magic="%%rehearse")
        return program

    def _show(self, rehearsed: Rehearsal | Rehearsals, into: str | None) -> None:
        """What the cell printed (its first rank), then the report; with ``--into`` the report is the
        variable's to show.
        """
        first = rehearsed if isinstance(rehearsed, Rehearsal) else rehearsed.ranks[0]
        print(shortened(first.output, _MOST_PRINTED), end="", flush=True)
        if into:
            self.shell.user_ns[into] = rehearsed
        else:
            display(rehearsed)


def as_program(line: str, cell: str, variables: Mapping[str, Any]) -> str:
    """The cell's text with line 1 as the notebook counts it, which also sets the passed values.

    Raises:
        ValueError: A value cannot be written as Python text: the program runs in another process.
    """
    setters = []
    for name, value in variables.items():
        source = literal(value)
        if source is None:
            raise ValueError(
                f"--pass {name}: a {type(value).__name__} cannot be written as Python text. "
                "Pass the numbers it is made from and build it in the cell."
            )
        setters.append(f"{name} = {source}")
    first = "; ".join(setters)
    return f"{first}{'  ' if first else ''}# %%rehearse {line.strip()}\n{cell}\n"
