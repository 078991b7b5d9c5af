"""The flags of parallel cells: torchrun's own, as people paste them, and a few that only a notebook has.

A line is read as a shell would read it: quotes hold a word together. torchrun writes its flags with dashes
and takes them with underscores too (``--nproc_per_node``), and so do we. Flags for what one node does not
need to be told (``--standalone``, ``--master-port``) are taken and change nothing; those of torchrun that
have no meaning here are refused by name, with the reason.

A magic that cannot be understood must be a red cell. IPython prints a UsageError and goes on, so nbval and
nbmake call a mistyped magic a success. Our own parsers raise ValueError with the nearest flag; for every
other magic of the notebook a UsageError, an unknown magic included, is shown as the error that it is.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser, argument

from workshop.launch import EngineError, Nodes, Session
from workshop.launch.output import BY_TIME, FOLDED, Live
from workshop.launch.request import check_rank_count

_COUNTED = ("gpu", "cpu", "auto")
_LOGS = "each rank's output is kept in a file of its own and shown folded"
_AGENT = "the engine sees to that"
_NOT_HERE = {
    "--no-python": "a cell and a script are Python",
    "--run-path": "a script is run as torchrun runs it without",
    "--rdzv-conf": _AGENT,
    "--local-addr": "the ranks' network is chosen with --interface",
    "--numa-binding": "bind the notebook itself, with numactl, and its ranks are bound",
    **dict.fromkeys(("--log-dir", "--redirects", "-r", "--tee", "-t", "--logs-specs"), _LOGS),
    **dict.fromkeys(("--local-ranks-filter", "--duplicate-stdout-filters"), _LOGS),
    "--duplicate-stderr-filters": _LOGS,
    **dict.fromkeys(("--monitor-interval", "--start-method", "--role", "--event-log-handler"), _AGENT),
    **dict.fromkeys(("--signals-to-handle", "--shutdown-timeout", "--virtual-local-rank"), _AGENT),
}  # fmt: skip


def rank_count(text: str) -> int | str:
    """``"4"`` as 4; ``gpu``, ``cpu`` and ``auto`` as they are, for `counted`."""
    if text in _COUNTED:
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of ranks, or gpu, cpu or auto") from None


def counted(n: int | str | None, default: int = 2) -> int:
    """How many ranks ``-n`` asks for. As under torchrun, ``auto`` is one for each GPU, else for each core.

    Raises ValueError where there is no GPU for ``gpu``, and for a number of which no group can be made.
    """
    if n is None:
        return default
    if n not in _COUNTED:
        return check_rank_count(n)  # type: ignore[arg-type]
    gpus = gpus_here()
    if n == "gpu" and not gpus:
        raise ValueError("--nproc-per-node gpu: there is no GPU here; write cpu, auto, or a number of ranks")
    return gpus if gpus and n != "cpu" else len(os.sched_getaffinity(0))


def gpus_here() -> int:
    """GPUs of this node, as the launch engine has counted them."""
    session = Session.get()
    session.wait_ready()
    return session.gpus


def node_count(text: str) -> int:
    """``"2"`` and torchrun's ``"2:2"`` as 2."""
    fewest, _, most = text.partition(":")
    if not fewest.isdigit() or (most and most != fewest):
        raise argparse.ArgumentTypeError(f"{text!r}: one number of nodes; it cannot change while ranks run")
    if int(fewest) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: 1 node or more")
    return int(fewest)


def rank_list(text: str) -> list[int]:
    """``"0,2-3"`` as [0, 2, 3]."""
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise argparse.ArgumentTypeError(f"--on {text}: write ranks as 0,2-3")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def live_view(text: str) -> str | int:
    """``folded``, ``time``, or a rank's number."""
    if text in (FOLDED, BY_TIME):
        return text
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: folded, time, or the number of a rank")
    return int(text)


_INTERFACE = argument(
    "--interface", default="", metavar="NAME", help="the ranks' network, such as ib0 (else the site's)"
)
_COUNT = argument(
    *("-n", "--nproc-per-node"), type=rank_count, metavar="N", help="number of ranks, or gpu, cpu, auto"
)
_DEVICE_MEMORY = argument(
    "--device-memory", metavar="SIZE", help="what each rank may hold on its device: 256MiB"
)


_SHARE_GPU = argument(
    "--share-gpu",
    action="store_true",
    help="where there are fewer GPUs than ranks: share them, over gloo through the host (not for timing)",
)


def _with(magic: Any, *flags: Any) -> Any:
    for flag in flags:
        magic = flag(magic)
    return magic


def start_flags(magic: Any) -> Any:
    """The flags with which ranks are started."""
    return _with(magic, _COUNT, _DEVICE_MEMORY, _SHARE_GPU)


def shared_flags(magic: Any) -> Any:
    """The flags that a cell of fresh ranks and a cell of staying ranks have in common."""
    return _with(
        start_flags(magic),
        argument("--into", metavar="NAME", help="variable that gets what the ranks report(...)"),
        argument(
            "--pass", dest="variables", metavar="NAMES", help="notebook variables for the ranks: run,lr"
        ),
        argument("--timeout", type=float, metavar="S", help="seconds until stuck ranks are ended or freed"),
        argument(
            "--live",
            type=live_view,
            default=FOLDED,
            metavar="VIEW",
            help="while the ranks run: folded (by rank), time (new lines last), or the number of a rank",
        ),
    )


def node_flags(magic: Any) -> Any:
    """The flags of torchrun for restarts and for several nodes."""
    return _with(
        magic,
        argument("--max-restarts", type=int, default=0, metavar="K", help="times all ranks may start again"),
        argument(
            "--replicas",
            type=int,
            metavar="R",
            help="so many launches side by side, of -n ranks each (default 1), which torchft lets outlive "
            "one another; --max-restarts is for each",
        ),
        argument("--nnodes", type=node_count, default=1, help="number of nodes; run the same cell on each"),
        argument("--rdzv-endpoint", default="", metavar="HOST:PORT", help="where the nodes meet"),
        argument("--rdzv-id", default="workshop", help="name of this launch, the same on all nodes"),
        argument("--rdzv-backend", default="c10d", help="torchrun's rendezvous backend"),
        argument("--standalone", action="store_true", help="one node, which is so without it"),
        argument("--master-addr", metavar="HOST", help="taken for one node, where it changes nothing"),
        argument(
            "--master-port", metavar="PORT", help="as --master-addr: ranks of one node take a free port"
        ),
        argument("--node-rank", metavar="K", help="as --master-addr: nodes are numbered when they meet"),
        _INTERFACE,
    )


def staying_node_flags(magic: Any) -> Any:
    """The flags for ranks that stay on several nodes of an allocation."""
    return _with(
        magic,
        argument("--nnodes", type=node_count, metavar="K", help="nodes of this allocation, -n ranks on each"),
        _INTERFACE,
    )


def nodes_of(args: Any, interface: str) -> Nodes | None:
    """The nodes that `node_flags` name, or None for one; ValueError where they cannot meet so."""
    if args.nnodes <= 1:
        return None
    if args.standalone:
        raise ValueError(f"--standalone is one node, --nnodes {args.nnodes} are several")
    static = [
        f"--{name}"
        for name in ("master-addr", "master-port", "node-rank")
        if vars(args)[name.replace("-", "_")]
    ]
    if static or not args.rdzv_endpoint:
        instead = f"; leave {', '.join(static)} out" if static else ""
        raise ValueError(f"--nnodes needs --rdzv-endpoint HOST:PORT, the same on every node{instead}")
    return Nodes(
        args.nnodes,
        args.rdzv_endpoint,
        args.rdzv_id,
        args.rdzv_backend,
        interface=args.interface or interface,
    )


def refuse_with_replicas(args: Any) -> None:
    """ValueError for flags that do not go with ``--replicas``."""
    if args.nnodes > 1:
        raise ValueError("--replicas run on one node; on several they are a job: %%sbatch --replicas 3 -N 2")
    if args.share_gpu:
        raise ValueError("--share-gpu does not go with --replicas: each replica has its own GPUs, or none")
    if args.live != FOLDED:
        raise ValueError(f"--live {args.live} is for ranks; replicas are shown folded, by replica and rank")


def live_output(args: Any, show: Any, num_ranks: int) -> Live:
    """What `--live` asks for; ValueError for a rank that is not there."""
    if isinstance(args.live, int) and args.live >= num_ranks:
        raise ValueError(f"--live {args.live}: these are ranks 0 to {num_ranks - 1}")
    return Live(show, args.live, show.watch)


def read_flags(magic: Any, line: str) -> Any:
    """The flags on a magic's line; where it takes a program, all that follows is the program's own.

    Raises ValueError, in the words of the magic's parser, for a line that is not understood.
    """
    parser, words = magic.parser, _words(line)
    if all(action.dest != "program" for action in parser._actions):
        return parser.parse_args(list(map(_with_dashes, words)))
    end = _end_of_flags(words, parser)
    args = parser.parse_args(list(map(_with_dashes, words[:end])))
    args.program = words[end + (words[end : end + 1] == ["--"]) :]
    return args


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ValueError(f"{line!r}: {str(error).lower()}; quotes stand in pairs, as in a shell") from None


def _with_dashes(word: str) -> str:
    """``--nproc_per_node=2`` as ``--nproc-per-node=2``; every other word as it is."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else word


def _end_of_flags(words: list[str], parser: argparse.ArgumentParser) -> int:
    """Where the program begins: at the first word that is neither a flag nor a flag's value."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        flag, equals, _ = _with_dashes(words[at]).partition("=")
        action = _action(parser, flag)
        at += 1 + (action is not None and action.nargs != 0 and not equals)
    return min(at, len(words))


def _action(parser: argparse.ArgumentParser, flag: str) -> argparse.Action | None:
    """What the parser does at this flag, or at the only one that begins so; None where it knows none."""
    known = parser._option_string_actions
    if flag in known:
        return known[flag]
    longer = {known[name] for name in known if flag.startswith("--") and name.startswith(flag)}
    return longer.pop() if len(longer) == 1 else None


def why_not_here(flag: str) -> str:
    """For a flag of torchrun's that the magics do not take: why; else empty."""
    reason = _NOT_HERE.get(flag.partition("=")[0], "")
    return f"{flag} is torchrun's: leave it out, {reason}" if reason else ""


# ---------------------------------------------------------------------------- lines that say nothing


def explain_errors(name: str) -> Callable[[Any], Any]:
    """Decorator, outermost on a magic: its parser raises ValueError with the usage and the nearest flag,
    and what a reader has to mend (ValueError, EngineError, a file that cannot be read or written) is shown as
    its sentence, without our stack.
    """

    def decorate(magic: Any) -> Any:
        magic.parser.error = _speaking(magic.parser, name)

        @functools.wraps(magic)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return magic(*args, **kwargs)
            except (ValueError, EngineError, OSError) as error:
                if isinstance(error, OSError) and not _has_folder():
                    error = EngineError(
                        "the folder in which this notebook runs has been removed, and ranks start in it: "
                        "import os; os.chdir(...) to one that is there"
                    )
                show_as_sentence(error)
                raise error from None

        return run

    return decorate


def _has_folder() -> bool:
    """Whether the current folder is still there; where it is not, each path is an error that names none."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def show_as_sentence(error: BaseException) -> None:
    """Have IPython show this exception as one line instead of a stack."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # type: ignore[attr-defined]


def _speaking(parser: MagicArgumentParser, name: str) -> Callable[[str], None]:
    def error(message: str) -> None:
        known = [flag for action in parser._actions for flag in action.option_strings]
        unknown = next((word for word in message.split() if word.startswith("-") and word not in known), "")
        near = difflib.get_close_matches(unknown, known, 1)
        hint = f" Did you mean {near[0]}?" if near and "unrecognized" in message else ""
        if reason := why_not_here(unknown):
            raise ValueError(f"{name}: {reason}. `{name}?` explains the flags that there are.") from None
        flags = ", ".join(known)
        raise ValueError(f"{name}: {message}.{hint} Known flags: {flags}. `{name}?` explains them.") from None

    return error


def make_usage_errors_red(ip: Any) -> None:
    """From now on a UsageError in this notebook is an error message like any other exception."""

    def show(shell: Any, kind: type, value: BaseException, _trace: Any, **_options: Any) -> None:
        shell._showtraceback(kind, value, [f"UsageError: {value}"])

    ip.set_custom_exc((UsageError,), show)
