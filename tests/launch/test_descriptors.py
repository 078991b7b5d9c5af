"""A rank that has used up its descriptors, and the few that it keeps back to say so."""

import pytest

from workshop import launch

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
