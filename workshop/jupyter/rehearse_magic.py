"""`%%rehearse -n WORLD`: run the cell as one rank of a world that is not there.

The cell a learner just ran with `%%torchrun -n 4` is run, unchanged, as one chosen rank of 8,192, here and in
seconds, and answers with memory, traffic and FLOPs. The notebook's own process only hands the text over:
torch, fake or real, lives in the child process of `workshop.rehearse`.
"""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from workshop.rehearse import Rehearsal, rehearse


@magics_class
class RehearseMagics(Magics):
    """Registered by `%load_ext workshop`."""

    shell: Any  # IPython's InteractiveShell

    @cell_magic("rehearse")
    @magic_arguments()
    @argument("-n", "--world-size", type=int, required=True, metavar="WORLD", help="ranks in the world")
    @argument("--rank", type=int, default=0, metavar="R", help="which of them to be; 0 if not said")
    @argument(
        "--steps", type=int, default=None, metavar="S", help="optimizer steps until the cell is stopped; 2"
    )
    @argument("--nproc-per-node", type=int, default=8, metavar="N", help="ranks per node, for LOCAL_RANK")
    @argument("--gloo", action="store_true", help="count the copies gloo makes: compare with this machine")
    @argument(
        "--real",
        action="store_true",
        help="real tensors in a fake world, for small models; DeepSpeed's default",
    )
    @argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="end the rehearsal after this time"
    )
    @argument("--into", default="", metavar="NAME", help="variable that gets the Rehearsal")
    @argument("--quiet", action="store_true", help="do not show what the cell printed")
    def rehearse_cell(self, line: str, cell: str) -> None:
        """Run the cell as one rank of WORLD, on fake tensors, and show memory, traffic and FLOPs."""
        args = parse_argstring(self.rehearse_cell, line)
        if args.into and not args.into.isidentifier():
            raise ValueError(f"--into {args.into}: not a name a variable can have")
        result = self._rehearse(args, cell)
        if result.output.strip() and not args.quiet:
            print(result.output.rstrip())
        if args.into:
            self.shell.user_ns[args.into] = result
        display(result)

    def _rehearse(self, args: Any, cell: str) -> Rehearsal:
        """The cell's text with the magics of IPython already undone, and a newline so that it is no path."""
        return rehearse(
            self.shell.transform_cell(cell) + "\n",
            args.world_size,
            args.rank,
            steps=args.steps,
            gloo=args.gloo,
            real=True if args.real else None,
            local_world_size=args.nproc_per_node,
            timeout_seconds=args.timeout,
        )
