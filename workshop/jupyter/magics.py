"""The parallel cells: ``%%torchrun``, ``%torchrun``, ``%%ranks`` and ``%ranks``.

Each magic reads its line, calls `workshop.launch`, and shows the result; there is no logic of
launching here. Flags have torchrun's own names where torchrun has them.

One display is made when a cell starts (`LiveView`); it holds the first line ("4 ranks on CPU, gloo") and,
while the ranks run, what they have printed so far (`launch.output`). At the end it shrinks to the first line
again and the final text is printed below it, so that a saved notebook holds plain text for nbval to compare.

On a live page (`show.page`) there is more: tabs while a cell takes longer (`rank_tabs`), and what they showed
stays, folded away behind the first line; a cell that fails marks its line (`failing_line`). What is executed
to be stored has none of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from workshop.jupyter import nsys_cell, rank_tabs
from workshop.jupyter.failing_line import FailingLine
from workshop.jupyter.flags import (
    counted,
    explain_errors,
    gpus_here,
    live_output,
    node_flags,
    nodes_of,
    rank_list,
    read_flags,
    refuse_with_replicas,
    shared_flags,
    start_flags,
    staying_node_flags,
)
from workshop.launch import (
    Cell,
    Limits,
    Module,
    RankFailed,
    RankInterrupted,
    Ranks,
    Script,
    replicas,
    torchrun,
)
from workshop.launch import script as program_file
from workshop.launch.nodes.ranks import nodes_of_this_allocation
from workshop.launch.output import Transcript
from workshop.launch.request import CellSyntaxError, cell_source, check_syntax, select
from workshop.show.page import is_live
from workshop.site.current import current_site

_ACTIONS = ("start", "status", "stop", "restart", "interrupt")
_ACTIONS_HELP = "start, status, stop, restart or interrupt; nothing is status"

_LIVE_LINES = 40
_ON_A_PAGE = is_live()
_TABS_SECONDS = 1.0  # a cell shorter than this needs no tabs
_TABS_EVERY = 0.25  # seconds between two looks at them


class _Plain:
    """An object that shows itself as this text, without quotes; on a page as ``html`` where that is given."""

    def __init__(self, text: str, html: str = ""):
        self.text = text
        self.html = html

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str | None:
        return self.html or None


@contextlib.contextmanager
def _without_a_flush(publisher: Any) -> Iterator[None]:
    """A block in which ipykernel sends no printed text before what it shows, where none is waiting.

    It asks its thread to send what stands in stdout, then in stderr, and waits for that twice: a fifth of a
    short cell, for nothing where nothing was printed.
    """
    waiting = any(getattr(stream, "_flush_pending", True) for stream in (sys.stdout, sys.stderr))
    if waiting or not hasattr(publisher, "_flush_streams"):
        yield
        return
    publisher._flush_streams = lambda: None
    try:
        yield
    finally:
        del publisher._flush_streams


class LiveView:
    """The display of one parallel cell. Outside Jupyter it prints the end result only."""

    def __init__(self, ip: Any):
        self.ip = ip
        self.handle: Any = None
        self.sentence = ""
        self.updated = False
        self.tabs: rank_tabs.RankTabs | None = None
        self.transcript: Transcript | None = None
        self._began = self._tabs_shown = time.monotonic()

    def __call__(self, sentence: str, text: str) -> None:
        """Show the first line at once, and the text so far as often as this is called."""
        self.begin(sentence)
        if self.handle is None or not text:
            return
        self.updated = True
        if _ON_A_PAGE and self.transcript is not None and time.monotonic() - self._began > _TABS_SECONDS:
            self._show_tabs(self.transcript, text)
            return
        shown = text.splitlines()[-_LIVE_LINES:]
        self.handle.update(_Plain("\n".join([sentence, *shown])))

    def watch(self, transcript: Transcript) -> None:
        """What the ranks have printed, for more views than the one that is shown."""
        self.transcript = transcript

    def _show_tabs(self, transcript: Transcript, text: str) -> None:
        now = time.monotonic()
        if self.tabs is not None and now - self._tabs_shown < _TABS_EVERY:
            return
        self._tabs_shown, others = now, rank_tabs.views(transcript)
        if self.tabs is None:
            self.tabs = rank_tabs.RankTabs(list(others))
            self.handle.update(self.tabs)
        self.tabs.show(f"{self.sentence}\n{text}", others)

    def begin(self, sentence: str) -> None:
        """Show the first line."""
        if self.sentence:
            return
        self.sentence = sentence
        if getattr(self.ip, "kernel", None) is None:
            print(sentence)
            return
        from IPython.display import DisplayHandle

        self.handle = DisplayHandle()  # by hand: `display` would ask every formatter for its form of a text
        bundle, known_as = {"text/plain": sentence}, {"display_id": self.handle.display_id}
        with _without_a_flush(self.ip.display_pub):
            self.ip.display_pub.publish(bundle, transient=known_as)

    def end(self, result: Any, failing: FailingLine | None = None) -> None:
        """The final text, then figures and other rich output with the rank they came from."""
        self.begin(result.device)
        if self.updated or failing:
            self.handle.update(_Plain(self.sentence, self._first_line(failing)))
        if self.tabs is not None:
            self.tabs.close()
        if result.text:  # a flush costs half a millisecond, a tenth of a cell
            print(result.text, end="", flush=True)
        for rank, content in getattr(result, "rich", ()):
            print(f"[rank {rank}]", flush=True)
            self.ip.display_pub.publish(content["data"], content.get("metadata", {}))
        if getattr(result, "healed", ""):
            print(result.healed, flush=True)
        if failing:
            self.ip.display_pub.publish({"text/plain": failing.plain(), "text/html": failing.link()})

    def _first_line(self, failing: FailingLine | None) -> str:
        """As HTML, where it holds more than its words: what the tabs showed, and where a link leads to."""
        words = ""
        if self.tabs is not None and self.transcript is not None:
            words = rank_tabs.leaves(self.sentence, rank_tabs.views(self.transcript))
        return failing.top(words or rank_tabs.preformatted(self.sentence)) if failing else words


@magics_class
class ParallelMagics(Magics):
    """Registered by ``%load_ext workshop``."""

    shell: Any  # IPython's InteractiveShell
    ranks_alive: Ranks | None = None

    @explain_errors("%%torchrun")
    @cell_magic("torchrun")
    @magic_arguments("%torchrun")
    @shared_flags
    @node_flags
    @argument("--save", metavar="FILE.py", help="also write the cell as a program of its own")
    @argument("--nsys", metavar="NAME", help="profile NAME.py, the cell, with Nsight Systems: NAME.nsys-rep")
    @argument("--nsys-range", metavar="RANGE", help="record only inside the first NVTX range of that name")
    def torchrun_cell(self, line: str, cell: str) -> None:
        """Run the cell as a program on N fresh ranks, as torchrun would."""
        args = read_flags(self.torchrun_cell, line)
        variables = select(args.variables or "", self.shell.user_ns)
        magic_line = f"%%torchrun {line}"
        check_syntax(cell_source(magic_line, cell))
        if args.save:
            program_file.save(Path(args.save), magic_line, cell, variables)
        if args.nsys:
            nsys_cell.check_flags(args)
            n = counted(args.nproc_per_node)
            command = nsys_cell.command_of(args, n, magic_line, cell, variables)
            if nsys_cell.say(command):
                view, limits = LiveView(self.shell), Limits(args.timeout)
                self._show(view, None, lambda: nsys_cell.run(command, n, limits, view))
                return
        elif args.nsys_range:
            raise ValueError("--nsys-range RANGE needs --nsys NAME: a name for the report")
        self._fresh(args, Cell(cell, magic_line), variables)

    @explain_errors("%torchrun")
    @line_magic("torchrun")
    @magic_arguments("torchrun")
    @shared_flags
    @node_flags
    @argument("-m", "--module", action="store_true", help="the program is a module, as for python -m")
    @argument("program", nargs="*", metavar="script.py ...", help="a script, or a module, and its arguments")
    def torchrun_line(self, line: str) -> None:
        """Run a script on N fresh ranks; what follows the script's name is handed on to it."""
        args = read_flags(self.torchrun_line, line)
        if not args.program:
            raise ValueError("%torchrun needs a script: %torchrun -n 4 train.py --lr 1e-3")
        variables = select(args.variables or "", self.shell.user_ns)
        name, *arguments = args.program
        self._fresh(args, (Module if args.module else Script)(name, tuple(arguments)), variables)

    def _fresh(self, args: Any, program: Cell | Module | Script, variables: dict[str, Any]) -> None:
        view = LiveView(self.shell)
        n = counted(args.nproc_per_node, default=2 if args.replicas is None else 1)
        limits = Limits(args.timeout, args.device_memory, args.max_restarts, args.share_gpu or None)
        if args.replicas is not None:
            refuse_with_replicas(args)
            given: Any = {"variables": variables, "limits": limits, "on_output": view}
            self._show(view, args.into, lambda: replicas(program, args.replicas, n, **given))
            return
        nodes = nodes_of(args, current_site().interface if args.nnodes > 1 else "")
        live = live_output(args, view, n * args.nnodes)
        self._show(
            view,
            args.into,
            lambda: torchrun(program, n, variables=variables, limits=limits, nodes=nodes, on_output=live),
            f"{program.magic_line}\n{program.body}" if isinstance(program, Cell) else "",
        )

    @explain_errors("%%ranks")
    @cell_magic("ranks")
    @magic_arguments("%ranks")
    @shared_flags
    @staying_node_flags
    @argument("--on", type=rank_list, metavar="RANKS", help="only these ranks: 0,2-3")
    def ranks_cell(self, line: str, cell: str) -> None:
        """Run the cell on ranks that stay; variables live on from cell to cell."""
        args = read_flags(self.ranks_cell, line)
        variables = select(args.variables or "", self.shell.user_ns)
        self._check_rank_cell(line, cell)
        ranks = self._group(args)
        view = LiveView(self.shell)
        live = live_output(args, view, ranks.n)
        code = cell if cell.lstrip().startswith("%%") else f"# %%ranks {line.strip()}\n{cell}"
        self._show(
            view,
            args.into,
            lambda: ranks.run(code, on=args.on, timeout=args.timeout, variables=variables, on_output=live),
            f"%%ranks {line}\n{cell}",
        )

    def _check_rank_cell(self, line: str, cell: str) -> None:
        """Raise for a cell that is no Python, magics aside."""
        try:  # most have none: to look for them takes longer than to compile
            check_syntax(cell_source(f"%%ranks {line}", cell), top_level_await=True, magic="%%ranks")
        except CellSyntaxError:
            plain = cell_source(f"%%ranks {line}", self.shell.transform_cell(cell))
            check_syntax(plain, top_level_await=True, magic="%%ranks")

    @explain_errors("%ranks")
    @line_magic("ranks")
    @magic_arguments("ranks")
    @start_flags
    @argument("action", nargs="?", choices=_ACTIONS, default="status", help=_ACTIONS_HELP)
    @staying_node_flags
    def ranks_line(self, line: str) -> None:
        """Start, look at, stop, restart or interrupt the ranks that stay."""
        args = read_flags(self.ranks_line, line)
        if args.action == "start":
            self._group(args)
        if self.ranks_alive is None:
            print("no ranks; `%ranks start -n 4` starts four")
            return
        if args.action == "restart":
            self._restart(args)
        elif args.action == "interrupt":
            self.ranks_alive.interrupt()
        elif args.action == "stop":
            self.ranks_alive.stop()
            type(self).ranks_alive = None
            print("the ranks have ended")
            return
        print(self.ranks_alive.status() if args.action == "status" else self.ranks_alive.summary())

    def _group(self, args: Any) -> Ranks:
        """The group there is, or a new one; never a second size behind the learner's back."""
        alive, device_memory = self.ranks_alive, args.device_memory
        n = None if args.nproc_per_node is None else counted(args.nproc_per_node)
        if alive is None:
            size, nodes = n or max(2, gpus_here()), None
            if args.nnodes:
                nodes = nodes_of_this_allocation(args.nnodes, args.interface or "", current_site())
            limits = Limits(device_memory=device_memory, share_gpu=args.share_gpu or None)
            type(self).ranks_alive = alive = Ranks(size, limits, nodes)
        elif n is not None and n != alive.per_node:
            raise ValueError(
                f"-n {n}: there are {alive.per_node} ranks already{' on each node' * (alive.num_nodes > 1)}. "
                f"Leave -n out to use them; `%ranks restart -n {n}` starts {n} anew, without the variables."
            )
        elif args.nnodes is not None and args.nnodes != alive.num_nodes:
            raise ValueError(
                f"--nnodes {args.nnodes}: the ranks are on {alive.num_nodes}. "
                "Leave --nnodes out to use them, or `%ranks stop`."
            )
        elif device_memory is not None and Limits(device_memory=device_memory).memory_bytes() != (
            alive.limits.memory_bytes()
        ):
            raise ValueError("--device-memory is set when the ranks start: `%ranks stop` first")
        elif args.share_gpu and not alive.limits.share_gpu:
            raise ValueError("--share-gpu is set when the ranks start: `%ranks stop` first")
        return alive

    def _restart(self, args: Any) -> None:
        assert self.ranks_alive is not None
        old = self.ranks_alive
        size = counted(args.nproc_per_node, default=old.per_node)
        if size == old.per_node and args.device_memory is None and not args.share_gpu:
            old.restart()
            return
        old.stop()
        type(self).ranks_alive = None
        share = args.share_gpu or old.limits.share_gpu
        limits = Limits(device_memory=args.device_memory, share_gpu=share)
        type(self).ranks_alive = Ranks(size, limits, old.nodes)

    def _show(self, view: LiveView, into: str | None, run: Any, source: str = "") -> None:
        """Run, show what was printed whatever happened, and bind ``--into``; source: the cell's lines."""
        if into is not None and not into.isidentifier():
            raise ValueError(f"--into {into}: a variable's name, for example --into results")
        try:
            result = run()
        except (RankFailed, RankInterrupted) as error:
            result = getattr(error, "result", None)
            if result is not None:
                failing = FailingLine.of(error, source.splitlines()) if _ON_A_PAGE else None
                unhealed = dataclasses.replace(result, healed="") if hasattr(result, "healed") else result
                view.end(unhealed, failing)
                self._bind(into, result)
            raise
        view.end(result)
        self._bind(into, result)

    def _bind(self, into: str | None, result: Any) -> None:
        if into:
            self.shell.user_ns[into] = result
