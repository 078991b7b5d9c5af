"""The text of replicas: as `launch.output` makes it of ranks; by replica and rank, attempt after attempt."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from workshop.launch import rank_folder
from workshop.launch.output import RankLog, fold, labelled, last_bar, rank_label, replica_label


class ReplicaTranscript:
    """The logs of all ranks of all replicas, each rank's attempts one after another.

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
