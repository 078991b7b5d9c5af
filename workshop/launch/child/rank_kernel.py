"""The program of a rank that stays: an ipykernel, forked from the fork server, with a group to talk in.

The notebook talks to it with Jupyter's own protocol over Unix sockets in a directory that only its
user can open, each message signed. What a cell prints goes to the rank's log file (`rank_io`), not
through the kernel's message queue, so that no flood of output can fill or overrun it; figures and
other rich results go the usual way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from traitlets.config import Config

from workshop.launch import rank_folder
from workshop.launch.child import cut, descriptors, failure_record, rank_io, rank_script
from workshop.launch.child.group import Group
from workshop.launch.child.held_groups import hold_groups_of_ddp
from workshop.launch.child.interrupts import CELL_PREFIX, INTERRUPTS
from workshop.launch.messages import IDLE_FOLLOWS, StartRanks
from workshop.launch.processes import die_with_parent
from workshop.launch.report import REPORT_FILE


class RankShell(ZMQInteractiveShell):
    """IPython's shell, minus its own traceback: a failure becomes a record that the notebook tells."""

    rank_dir: Path
    _transformed: tuple[str, str] = ("", "")

    def transform_cell(self, raw_cell: str) -> str:
        """As IPython's, but once a cell: ipykernel asks whether the cell awaits, then IPython runs it."""
        asked_before, known = self._transformed
        if asked_before != raw_cell:
            known = super().transform_cell(raw_cell)
        self._transformed = (raw_cell, known)
        return known

    def forget_transformed(self) -> None:
        """A new request: what a cell was made to may have changed since."""
        self._transformed = ("", "")

    def showtraceback(self, *_args: Any, **_options: Any) -> None:
        """Record the exception."""
        error = sys.exc_info()[1]
        if error is not None:
            failure_record.write(error, self.cell_file(), self.rank_dir)

    def showsyntaxerror(self, *_args: Any, **_options: Any) -> None:
        """Record the exception."""
        self.showtraceback()

    def _format_user_obj(self, obj: Any) -> dict[str, Any]:
        """An expression's value as text alone: IPython would ask every formatter for its form of it."""
        return {"status": "ok", "data": {"text/plain": repr(obj)}, "metadata": {}}

    async def run_cell_async(self, *args: Any, **options: Any) -> Any:
        """As IPython's, with an error that ipykernel can put into its reply (it calls ``str`` on it)."""
        result = await super().run_cell_async(*args, **options)
        result.error_in_exec = failure_record.tellable(result.error_in_exec)
        return result

    def cell_file(self) -> str:
        """The file name under which IPython compiled the cell that runs now."""
        return getattr(self.compile, "_latest", "")


class NoShellThread:
    """In place of ipykernel's thread for the shell channel, where there is none.

    That thread is for subshells, cells that run beside others, of which a rank has none. Each request went
    through it to the main thread and each answer back: half a millisecond, and two changes of threads.
    ipykernel asks whether there is the thread, and takes the main one's event loop where there is not; only
    for a cell that awaits it asks, without looking, for the thread's parent.
    """

    def __init__(self) -> None:
        self.parent_thread = threading.current_thread()

    def __bool__(self) -> bool:
        return False


class RankKernel(IPythonKernel):
    """ipykernel's kernel with an interrupt that only ever reaches the learner's own code.

    A kernel publishes "busy" before each answer and "idle" after it, when all else is out. Our notebook
    needs neither where a cell published nothing, as most do, and the answer tells it so (`IDLE_FOLLOWS`).
    That saves two of three messages, each with a signature, a change of threads and a wake-up. A silent
    request is how the notebook learns that its subscription has arrived, so there the idle stays.
    """

    shell_class = RankShell
    _supports_kernel_subshells = False
    published = 0  # messages to iopub since the request came
    _says_idle = True
    _execute_sleep = (
        0.0  # ipykernel waits half a millisecond for output on its way; a rank's goes into a file
    )

    def _publish_execute_input(self, *_args: Any, **_options: Any) -> None:
        """To nobody: the notebook knows what it has asked."""

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        """Idle, where something else was published before it."""
        if status == "busy":
            self.published, self._says_idle = 0, True
        elif status != "idle" or self._says_idle:
            super()._publish_status(status, channel, parent)

    def finish_metadata(self, parent: Any, metadata: dict[str, Any], reply_content: Any) -> dict[str, Any]:
        """Say whether an "idle" follows this answer."""
        self._says_idle = self.published > 0 or bool(parent["content"].get("silent"))
        return super().finish_metadata(parent, metadata, reply_content) | {IDLE_FOLLOWS: self._says_idle}

    def pre_handler_hook(self) -> None:
        """Keep our handler for SIGINT: ipykernel would install Python's own here."""
        assert self.shell is not None
        self.shell.forget_transformed()

    def post_handler_hook(self) -> None:
        """See `pre_handler_hook`."""

    @contextlib.contextmanager
    def _cancel_on_sigint(self, future: Any) -> Iterator[None]:
        """As ipykernel's, for a cell that awaits: KeyboardInterrupt in its lines, and a loop that wakes.

        ipykernel's handler has the event loop cancel the cell, in its next turn. A loop that waits has none:
        Python goes on waiting after a signal.
        """
        with super()._cancel_on_sigint(future):
            cancel: Any = signal.getsignal(signal.SIGINT)

            def interrupt(number: int, frame: Any) -> None:
                INTERRUPTS.interrupt(number, frame)
                cancel(number, frame)
                future.get_loop().call_soon_threadsafe(lambda: None)

            signal.signal(signal.SIGINT, interrupt)
            yield

    def raw_input(self, _prompt: str = "") -> str:
        """Refuse at once; ipykernel puts this in place of `input` while a cell runs."""
        return rank_io.no_keyboard("input()")()

    def getpass(self, *_args: Any, **_options: Any) -> str:
        """As `raw_input`."""
        return rank_io.no_keyboard("getpass()")()


class RankApp(IPKernelApp):
    """ipykernel's application without its stream capture (see the module's docstring)."""

    kernel_class = RankKernel

    def init_io(self) -> None:
        """Set up the display hook only; the streams are files (see `rank_io`)."""
        from ipykernel.displayhook import ZMQDisplayHook

        sys.displayhook = ZMQDisplayHook(self.session, self.iopub_socket)
        self.displayhook = sys.displayhook

    def init_control(self, context: Any) -> None:
        """As ipykernel's, without the thread for the shell channel."""
        super().init_control(context)
        self.shell_channel_thread.io_loop.close()  # it has not begun
        self.shell_channel_thread = NoShellThread()

    def init_signal(self) -> None:
        """Handled by `interrupts`."""

    def init_kernel(self) -> None:
        """Count what is published."""
        super().init_kernel()
        thread = self.iopub_socket.io_thread
        send = thread.send_multipart

        def counted(*message: Any, **options: Any) -> None:
            self.kernel.published += 1
            send(*message, **options)

        thread.send_multipart = counted


def main(request: StartRanks, local_rank: int) -> None:
    """Entry point of a rank of ``%%ranks``."""
    die_with_parent()
    os.setpgid(0, 0)  # a cell that signals its process group ends its rank, and not the engine
    ranks = request.ranks
    rank = ranks.first + local_rank
    rank_dir = rank_folder.of_rank(Path(request.directory), rank)
    rank_dir.mkdir(parents=True, exist_ok=True)
    rank_io.capture(rank_dir)
    rank_io.dump_stacks_on_signal(rank_dir)
    os.environ.clear()
    os.environ.update(ranks.env)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(ranks.world_size),
        LOCAL_WORLD_SIZE=str(ranks.n),
        IPYTHONDIR=str(Path(request.directory, "ipython")),  # nobody's start-up files, no history
        **{REPORT_FILE: str(rank_dir / rank_folder.REPORT)},
    )
    os.chdir(ranks.cwd)
    sys.path[:] = ranks.sys_path
    rank_script.fresh_process_state()
    hold_groups_of_ddp()
    INTERRUPTS.install()
    _serve(request, rank, rank_dir)


def _serve(request: StartRanks, rank: int, rank_dir: Path) -> None:
    sockets = cut.GroupSockets()
    group = Group(request, rank, sockets)
    app = _make_app(request, rank)
    shell = app.kernel.shell
    shell.rank_dir = rank_dir
    sys.breakpointhook = rank_io.no_keyboard("breakpoint()")  # ipykernel has set its own
    name_cells(shell)
    shell.events.register("pre_run_cell", before_cell)
    shell.events.register("post_run_cell", after_cell(os.getpid()))
    ranks = request.ranks
    rank_script.set_up_device(ranks.device, None)
    if ranks.device_memory:
        from workshop.launch.child.device_cap import cap_device_memory

        group.cap = cap_device_memory(ranks.device_memory, ranks.device)
    shell.push(group.names(), interactive=False)
    shell.user_ns["__workshop__"] = group
    cut.listen(rank_dir / rank_folder.CUT, sockets, INTERRUPTS.insist)
    app.start()


def before_cell(_cell: Any) -> None:
    """What to do when a cell is about to begin."""
    INTERRUPTS.no_cell_runs()
    descriptors.keep_reserve()


def after_cell(rank_pid: int) -> Callable[[Any], None]:
    """What to do when a cell is over. A child that the cell forked must not go on as a second kernel."""

    def over(_result: Any) -> None:
        INTERRUPTS.no_cell_runs()
        descriptors.open_reserve()
        rank_io.settle()
        if os.getpid() != rank_pid:
            os._exit(0)

    return over


def name_cells(shell: Any) -> None:
    """Give every cell a file name of ours: it tells the learner's frames from all others."""
    count = 0

    def code_name(*_raw_transformed_number: Any) -> str:
        nonlocal count
        count += 1
        shell.compile._latest = f"{CELL_PREFIX} {count}>"
        return shell.compile._latest

    shell.compile.get_code_name = code_name


def _make_app(request: StartRanks, rank: int) -> RankApp:
    asyncio.set_event_loop(asyncio.new_event_loop())  # the fork server has none, and none may be shared
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.xmode = "Plain"
    config.IPKernelApp.no_stdout = config.IPKernelApp.no_stderr = False
    config.IPCompleter.use_jedi = False
    connection = request.connections[rank - request.ranks.first]
    app = RankApp.instance(connection_file=connection, config=config)
    app.initialize([])
    app.log.setLevel(logging.WARNING)  # its handler drops what is below; to make a record of it takes time
    return app
