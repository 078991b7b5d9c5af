"""A rank that has used up its descriptors, and the few that it keeps back to say so."""

import subprocess
import sys

import pytest

from workshop import launch
from workshop.launch.child import descriptors

USES_ALL = """
kept = []
if rank == 1:
    while True: kept.append(os.open("/dev/null", os.O_RDONLY))
dist.barrier()
"""


def test_a_cell_may_use_all_descriptors_more_than_once() -> None:
    """The second cell gives back what the first one took: there is no limit left to raise, if it was not lowered."""
    ranks = launch.Ranks(2)
    try:
        ranks.run("import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (400, 528))")
        for _ in range(3):
            with pytest.raises(
                launch.RankFailed, match=r"(?s)^rank 1 raised OSError first, line 3\n.*Too many"
            ):
                ranks.run(USES_ALL)
            assert (
                ranks.run("t = torch.ones(1); dist.all_reduce(t); print(t.item())").text
                == "[ranks 0-1] 2.0\n"
            )
    finally:
        ranks.stop()


@pytest.mark.parametrize(
    ("held", "limits", "left"),
    [
        (0, (528, 528), 400),  # what is the program's, what is the engine's
        (0, (100, 528), 100),  # can be raised as it is
        (0, (200, 200), 200),  # too few to share
        (420, (528, 528), 528 - (528 - 420) // 2),
        (500, (528, 528), 528 - descriptors.LEAST),
    ],
)
def test_the_reserve_is_kept_from_what_is_left(held: int, limits: tuple[int, int], left: int) -> None:
    """Tried in a process of its own: limits go down only."""
    code = (
        f"import os, resource\nfrom workshop.launch.child.descriptors import keep_reserve\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, {limits})\n"
        f"while {held} and os.open(os.devnull, os.O_RDONLY) < {held} - 1: pass\n"
        f"keep_reserve(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    assert (
        int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        == left
    )
