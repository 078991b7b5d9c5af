"""The process between a notebook and its ranks: it starts them, watches them, and ends them.

One supervisor serves one notebook kernel. It imports torch, forks the fork server that ranks come from
(`fork_server`), runs the elastic agent for ``%%torchrun`` in its main thread, and starts the kernels of
``%%ranks``. Commands and events (`launch.messages`) go over a socket pair that only the two processes hold.

It is also the one that cleans up. It adopts every orphan of its ranks, it ends what a launch left
running, and when the notebook's end of the socket closes (shut down, restarted, or killed with
SIGKILL) it ends everything it started, removes the session's directory and leaves.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import select
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from workshop.launch import messages, processes
from workshop.launch.child import fork_server

LOOKS = 5  # at what is still there, before the supervisor leaves


class Wire:
    """Messages over the socket pair; any thread may send."""

    def __init__(self, descriptor: int):
        self._connection = Connection(descriptor)
        self._lock = threading.Lock()

    def send(self, event: messages.Event) -> None:
        """Send an event to the notebook."""
        with self._lock:
            try:
                self._connection.send_bytes(messages.packed(event))
            except (BrokenPipeError, ConnectionResetError):  # the notebook is gone; the reader acts on it
                logging.info("the notebook is gone, dropped %s", type(event).__name__)

    def receive(self) -> Any:
        """The next command; EOFError when the notebook is gone."""
        try:
            return messages.unpacked(self._connection.recv_bytes(), messages.COMMANDS)
        except ConnectionResetError:
            raise EOFError from None

    @contextlib.contextmanager
    def watched(self, leave: Callable[[], None]) -> Iterator[None]:
        """Inside the block ``leave`` is called when the notebook goes. Nothing is read; no thread is left."""
        end, write_end = os.pipe()
        watching = threading.Thread(target=self._watch, args=(end, leave), name="notebook", daemon=True)
        watching.start()
        try:
            yield
        finally:
            os.close(write_end)
            watching.join()
            os.close(end)

    def _watch(self, end: int, leave: Callable[[], None]) -> None:
        poll = select.poll()
        poll.register(self._connection.fileno(), select.POLLRDHUP)
        poll.register(end, select.POLLHUP)
        if any(descriptor != end for descriptor, _ in poll.poll()):
            leave()


class Supervisor:
    """See the module's docstring. ``wire`` leads to the notebook, ``directory`` is the session's own."""

    def __init__(self, wire: Wire, directory: Path):
        self.wire = wire
        self.directory = directory
        self.work: queue.Queue[messages.Command] = queue.Queue()

    def serve(self) -> None:
        """Run until the notebook goes. Launches run one after another, in this (the main) thread."""
        with self.wire.watched(self.leave):
            gc.disable()  # until `fork_server.start`: what modules leave behind is theirs, and no garbage
            import workshop.launch.child.preload  # noqa: F401 - seconds
        fork_server.start()
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr)  # not before: ranks configure their own
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        from workshop.launch.child.fresh import FreshRanks
        from workshop.launch.child.replicas import Replicas
        from workshop.launch.child.staying import StayingRanks

        fresh, replicas, staying = FreshRanks(self.wire), Replicas(self.wire), StayingRanks(self.wire)
        self.launches = (fresh, replicas)
        self.wire.send(messages.Ready(fresh.gpu_count()))
        while True:
            request = self.work.get()
            fork_server.let_a_dying_one_go()
            match request:
                case messages.Launch():
                    fresh.launch(request)
                    self._end_orphans(request.id)
                    gc.collect()  # the agent's semaphores, a few for each rank, are files in /dev/shm
                case messages.LaunchReplicas():
                    replicas.launch(request)
                    self._end_orphans(request.id)
                case messages.StartRanks():
                    staying.start(request)
                case messages.StopRanks():
                    staying.stop(request.group)
                    self._end_orphans(request.id)

    def _read(self) -> None:
        """Commands thread: cancel acts at once, everything else waits for its turn."""
        while True:
            try:
                request = self.wire.receive()
            except EOFError:
                self.leave()
            except ValueError as error:  # another workshop's notebook: what is not understood is not done
                self.wire.send(messages.Broken(str(error)))
                self.leave()
            if isinstance(request, messages.Cancel):
                for launches in self.launches:  # it is one of them
                    launches.cancel(request.launch, request.why)
            else:
                self.work.put(request)

    def _end_orphans(self, command: int) -> None:
        """What the ended ranks left running is now our child: end it, and say how many there were."""
        left = []
        engine = fork_server.own_processes()
        for pid in processes.children(os.getpid()):
            process = processes.ProcessId.of(pid)
            if pid not in engine and process is not None:
                left += [process, *processes.descendants(pid)]
        alive = [p for p in left if p.alive()]
        processes.end_all(alive, patience=0.5)
        for process in left:
            try:
                os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:
                continue
        self.wire.send(messages.Clean(command, len(alive)))

    def leave(self) -> None:
        """End every process below this one, remove the directory, and go. Does not return.

        Resource trackers end by themselves once nobody is left whose semaphores they keep, and remove these:
        killed with the others, they would leave them in /dev/shm until the machine is booted.
        """
        for _ in range(LOOKS):  # another thread may be about to start ranks, which make their folders anew
            for process in processes.descendants(os.getpid()):
                if not fork_server.is_tracker(process.pid):
                    process.signal(signal.SIGKILL)
            fork_server.leave_tracker()
            processes.wait_gone(processes.descendants(os.getpid()), 2.0)
            shutil.rmtree(self.directory, ignore_errors=True)
            if not self.directory.exists() and not processes.descendants(os.getpid()):
                break
        for process in processes.descendants(os.getpid()):
            process.signal(signal.SIGKILL)
        os._exit(0)


def main() -> None:
    """`python -c "...main()" DESCRIPTOR DIRECTORY`, started by `workshop.launch.session`."""
    descriptor, directory = int(sys.argv[1]), Path(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.adopt_orphans()
    os.set_inheritable(descriptor, False)
    own_temporary = directory / "tmp"
    own_temporary.mkdir(exist_ok=True)
    tempfile.tempdir = str(own_temporary)
    supervisor = Supervisor(Wire(descriptor), directory)
    try:
        supervisor.serve()
    except BaseException as error:  # whatever stops the engine is what the notebook must hear
        logging.exception("the supervisor stopped")
        supervisor.wire.send(messages.Broken(f"{type(error).__name__}: {error}"))
        supervisor.leave()
