"""Replicas: several launches of one program side by side, of which each may die and come back (torchft).

    result = launch.replicas(program, 3, limits=launch.Limits(max_restarts=2))    # three replicas of one rank
    result[2][0].loss                                                             # replica 2, rank 0

Ranks of one launch stand and fall together: when one dies, all start again from a checkpoint. A replica is a
launch of its own, with its own ranks, store and restarts; replicas meet anew in each step, and who has died
is missed for a moment and then done without. The program does this itself, with torchft's Manager. Here
replicas are started, started again, heard and ended, and so is the lighthouse at which they find one another.
Each rank finds in its environment what torchft's own launcher would set: ``REPLICA_GROUP_ID``,
``NUM_REPLICA_GROUPS``, ``TORCHFT_LIGHTHOUSE``.

Who can connect: torchft's servers ask nobody for a key, and one who reaches them can make a replica run code.
So all of a launch lives in a network of its own (`child/own_network.py`), which no other user can enter and
which has no way out: what a program needs from the internet must be there before. Where the machine allows
none, or with ``WORKSHOP_REPLICAS_NETWORK=shared``, they listen on the machine's loopback, which everybody who
is logged in on this machine can reach; the first line of the output then says so.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workshop.launch import device, rank_folder, verdicts
from workshop.launch.failures import Program, RankEnd, RankFailed, RankInterrupted, RankTimeout, read_evidence
from workshop.launch.fresh.torchrun import (
    Cell,
    Module,
    Result,
    Script,
    attach,
    follow,
    source_of,
    write_program,
)
from workshop.launch.messages import (
    Launch,
    LaunchEnd,
    LaunchReplicas,
    Network,
    OfLaunch,
    RankProgram,
    ReplicasDone,
    Started,
)
from workshop.launch.output import RankLog, fold, labelled, last_bar, live_of, rank_label, replica_label
from workshop.launch.report import own_report
from workshop.launch.request import Limits, check_rank_count, pickled, takes_passing
from workshop.launch.session import EngineError, Session
from workshop.site.current import rank_environment

NETWORK = "WORKSHOP_REPLICAS_NETWORK"


@dataclass(frozen=True)
class ReplicasResult:
    """What a launch of replicas left: `result[replica][rank]` what that rank reported in its last attempt."""

    replicas: tuple[Result, ...]
    text: str
    device: str
    seconds: float
    notes: tuple[str, ...] = ()

    def __getitem__(self, replica: int) -> Result:
        if not 0 <= replica < len(self.replicas):
            raise KeyError(f"no replica {replica}; this launch had replicas 0 to {len(self.replicas) - 1}")
        return self.replicas[replica]

    def __len__(self) -> int:
        return len(self.replicas)

    def __repr__(self) -> str:
        lines = [
            f"replica {at}, {line}" for at, one in enumerate(self.replicas) for line in repr(one).splitlines()
        ]
        return "\n".join(lines)


@takes_passing
def replicas(
    program: str | Cell | Script | Module,
    num_replicas: int,
    n: int = 1,
    *,
    variables: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    on_output: Callable[[str, str], None] | None = None,
) -> ReplicasResult:
    """Run ``program`` as ``num_replicas`` launches of ``n`` ranks side by side, and wait for all of them.

    Args:
        program: what every rank of every replica runs; it uses torchft to share what it learns.
        num_replicas: how many launches.
        n: ranks of each.
        variables: values of the notebook, by the names that they have in the program on every rank.
        limits: as of `torchrun`; ``max_restarts`` counts for each replica by itself.
        on_output: called with (first line, text so far) while they run, at most ten times a second.

    Returns:
        What every rank of every replica reported, and what they printed.

    Raises:
        RankFailed: a replica failed once more than it may start again; the others went on to their own ends
            before this is raised. `RankTimeout`: time was up, and all were ended.
        RankInterrupted: the stop button; all replicas were ended.
        ValueError, SyntaxError: before anything starts. EngineError: the engine cannot work.
    """
    check_replica_count(num_replicas)
    check_rank_count(n * num_replicas)
    if importlib.util.find_spec("torchft") is None:
        raise EngineError(
            "replicas need torchft, which is not installed: pip install 'torchft==0.2.*' "
            "(there are wheels for Linux on x86-64)"
        )
    data = pickled(variables) if variables else None
    source, own_network = source_of(program), _own_network()
    session = Session.get()
    session.wait_ready()
    launch = _Launch(session, num_replicas, n, limits or Limits())
    try:
        launch.program, for_ranks = write_program(launch.directory, program, source, data)
        return launch.run(for_ranks, own_network, on_output)
    finally:
        launch.device.release()


def check_replica_count(num_replicas: int) -> None:
    """ValueError for what is no number of replicas."""
    if isinstance(num_replicas, bool) or not isinstance(num_replicas, int) or num_replicas < 1:
        raise ValueError(f"{num_replicas} replicas: one or more, for example --replicas 3")


def _own_network() -> bool:
    wanted = os.environ.get(NETWORK, "own")
    if wanted not in ("own", "shared"):
        raise ValueError(f"{NETWORK}={wanted!r}: own (the default) or shared")
    return wanted == "own"


@dataclass
class _Replica:
    """One replica as the notebook knows it."""

    number: int
    attempt: int = -1
    folders: dict[int, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> list[int]:
        """Those of the present attempt."""
        return sorted(self.folders)

    def ends(self, exit_codes: Mapping[int, int | None], program: Program, state: str) -> list[RankEnd]:
        """How each rank of the present attempt ended."""
        return [
            read_evidence(rank, self.folders[rank], exit_codes.get(rank), program, state)
            for rank in self.ranks
        ]


class _Launch:
    """One launch of replicas, from the request to the result."""

    def __init__(self, session: Session, num_replicas: int, n: int, limits: Limits):
        self.session = session
        self.n = n
        self.limits = limits
        self.device = device.take(n * num_replicas, session, False)
        self.sentence = _sentence(self.device.sentence, num_replicas, n)
        self.directory = session.directory / f"run-{time.monotonic_ns()}"
        self.replicas = [_Replica(at) for at in range(num_replicas)]
        self.transcript = ReplicaTranscript(alone=n == 1)
        self.program = Program("")

    def run(
        self, program: RankProgram, own_network: bool, on_output: Callable[[str, str], None] | None
    ) -> ReplicasResult:
        """Send the request, follow it to its end, and return or raise."""
        started, live = time.monotonic(), live_of(on_output)
        waiting = True

        def look() -> None:
            nonlocal waiting
            if live is None or not self.transcript.logs:  # until they start, who can reach them is not known
                return
            if waiting:
                waiting = False
                live.begin(self.sentence)
            live.look(self.transcript)

        each = Launch(
            replace(program, device=self.device.kind, device_memory=self.limits.memory_bytes()),
            n=self.n,
            run_id=uuid.uuid4().hex[:12],
            run_dir=str(self.directory),
            # torchft's servers tell each step else
            env={"RUST_LOG": "warn", **rank_environment(os.environ)},
            timeout=self.limits.seconds(),
            max_restarts=self.limits.max_restarts,
        )
        devices = tuple(self._devices(replica.number) for replica in self.replicas)
        request = LaunchReplicas(each, devices, own_network)
        done, cancelled = follow(self.session, request, self._take, look if on_output else None)
        return self._conclude(done, cancelled, time.monotonic() - started)

    def _devices(self, replica: int) -> dict[str, str]:
        """Each replica sees its own GPUs, so that LOCAL_RANK counts from 0 in all of them."""
        env = self.device.environment()
        gpus = [gpu for gpu in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        return {**env, "CUDA_VISIBLE_DEVICES": ",".join(gpus[replica * self.n : (replica + 1) * self.n])}

    def _take(self, event: OfLaunch) -> None:
        if isinstance(event, Network) and not event.own:
            self.sentence += (
                f"; everybody on this machine can reach them (no network of their own: {event.why})"
            )
        elif isinstance(event, Started) and event.replica is not None:
            replica = self.replicas[event.replica]
            if replica.attempt >= 0:
                ends = replica.ends(event.previous, self.program, "failed")
                why = str(verdicts.failed(ends, self.program)).splitlines()[0]
                replica.notes.append(f"attempt {replica.attempt + 1} failed ({why}); it was started again")
            replica.attempt = event.attempt
            replica.folders = {rank: Path(folder) for rank, folder in event.folders.items()}
            for rank in replica.ranks:
                self.transcript.add(replica.number, rank, replica.folders[rank] / rank_folder.LOG)

    def _conclude(self, done: ReplicasDone, cancelled: bool, seconds: float) -> ReplicasResult:
        self.transcript.finish()
        notes = tuple(f"replica {one.number}: {note}" for one in self.replicas for note in one.notes)
        text = "".join(f"{note}\n" for note in notes) + self.transcript.text()
        each = tuple(self._result_of(replica, seconds) for replica in self.replicas)
        result = ReplicasResult(each, text, self.sentence, seconds, notes)
        if cancelled:
            raise attach(RankInterrupted(f"the {len(self.replicas)} replicas were ended."), result)
        if done.why:
            raise attach(EngineError(f"the replicas were ended: {done.why}. Run `workshop doctor`."), result)
        if done.state == "timeout":
            raise attach(self._timed_out(done.ends), result)
        failed = {at: end for at, end in done.ends.items() if end is not None and end.state != "succeeded"}
        if failed:
            raise attach(self._failed(failed), result)
        return result

    def _result_of(self, replica: _Replica, seconds: float) -> Result:
        reports = {rank: own_report(replica.folders[rank] / rank_folder.REPORT) for rank in replica.ranks}
        text = self.transcript.text(replica.number)
        return Result(reports, text, self.sentence, seconds, tuple(replica.notes))

    def _failed(self, failed: Mapping[int, LaunchEnd]) -> RankFailed:
        """The replicas that gave up, alike ones together: which rank, which line, after how many attempts."""
        by_text: dict[str, list[int]] = {}
        errors = {at: self._verdict(self.replicas[at], end) for at, end in failed.items()}
        for at, error in errors.items():
            tried = self.replicas[at].attempt + 1
            first, *rest = str(error).splitlines()
            again = f", and so did {tried - 1} attempt{'s' * (tried > 2)} before" if tried > 1 else ""
            by_text.setdefault("\n".join([first + again, *rest]), []).append(at)
        lines = [f"{replica_label(which)}: {text}" for text, which in by_text.items()]
        others = [one.number for one in self.replicas if one.number not in failed]
        if others:
            lines.append(f"{replica_label(others)}: went on, and finished")
        failures = [
            dataclasses.replace(one, replica=at) for at, error in errors.items() for one in error.failures
        ]
        return RankFailed(
            "\n".join(lines), failures, [end for error in errors.values() for end in error.ends]
        )

    def _verdict(self, replica: _Replica, end: LaunchEnd) -> RankFailed:
        if end.why:
            return RankFailed(end.why)
        return verdicts.failed(replica.ends(end.exit_codes, self.program, "failed"), self.program)

    def _timed_out(self, ended: Mapping[int, LaunchEnd | None]) -> RankTimeout:
        seconds = self.limits.seconds()
        if not any(replica.ranks for replica in self.replicas):
            return RankTimeout(
                f"time is up after {seconds:g} s, before the ranks had started; allow them more."
            )
        by_text: dict[str, list[int]] = {}
        failures = []
        for replica in self.replicas:
            end = ended.get(replica.number)
            state = "failed" if end is not None and end.state == "failed" else "timeout"
            error = verdicts.timed_out(replica.ends({}, self.program, state), seconds, self.program)
            where = str(error).removeprefix(f"time is up after {seconds:g} s. ")
            by_text.setdefault(where, []).append(replica.number)
            failures += [dataclasses.replace(one, replica=replica.number) for one in error.failures]
        lines = [f"{replica_label(which)}: {text}" for text, which in by_text.items()]
        return RankTimeout("\n".join([f"time is up after {seconds:g} s.", *lines]), failures)


def _sentence(device: str, num_replicas: int, n: int) -> str:
    """``3 ranks on CPU, gloo`` as ``3 replicas of 1 rank on CPU, gloo``."""
    whole = f"{num_replicas} replica{'s' * (num_replicas > 1)} of {n} rank{'s' * (n > 1)}"
    return f"{whole} on {device.partition(' on ')[2]}"


# ---------------------------------------------------------------------------- their text


class ReplicaTranscript:
    """The logs of all ranks of all replicas, each rank's attempts one after another.

    Their text is as `launch.output` makes it of ranks; by replica and rank.

    alone: a replica has one rank, and its number says enough.
    """

    def __init__(self, alone: bool):
        self.alone = alone
        self.logs: dict[tuple[int, int], list[RankLog]] = {}

    def add(self, replica: int, rank: int, path: Path) -> None:
        """A rank has started, or has started again."""
        earlier = self.logs.setdefault((replica, rank), [])
        if earlier:
            earlier[-1].finish()
        earlier.append(RankLog(path))

    def read(self) -> bool:
        """Take in what was written since; True when there was anything."""
        return sum(attempts[-1].read() for attempts in self.logs.values()) > 0

    def finish(self) -> None:
        """Read every log to its end."""
        for attempts in self.logs.values():
            attempts[-1].finish()

    def text(self, replica: int | None = None) -> str:
        """The folded text so far, of one replica or of all."""
        lines = {
            who: [line for at, log in enumerate(logs) for line in [*_again(at), *log.blocks()]]
            for who, logs in self.logs.items()
            if replica in (None, who[0])
        }
        return "".join(labelled(self._who(which), block) for which, block in fold(lines))

    def _who(self, which: Iterable[tuple[int, int]]) -> str:
        """``replicas 0-2``; where they have several ranks, ``replicas 0-1 ranks 0-1, replica 2 rank 0``."""
        ranks: dict[int, list[int]] = {}
        for replica, rank in which:
            ranks.setdefault(replica, []).append(rank)
        if self.alone:
            return replica_label(ranks)
        alike: dict[tuple[int, ...], list[int]] = {}
        for replica, its in ranks.items():
            alike.setdefault(tuple(its), []).append(replica)
        return ", ".join(f"{replica_label(those)} {rank_label(its)}" for its, those in alike.items())

    def bar(self) -> str:
        """The first progress bar that a rank draws, behind its label."""
        for who, attempts in sorted(self.logs.items()):
            if bar := last_bar(attempts[-1].path.with_name(rank_folder.BARS)):
                return f"[{self._who([who])}] {bar}"
        return ""


def _again(attempt: int) -> list[str]:
    return [f"--- attempt {attempt + 1} ---"] if attempt else []
