"""Ranks that stay, for real: the contract of `%%ranks`, healing included."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from workshop.launch import Limits, RankFailed, RankInterrupted, Ranks, RankTimeout
from workshop.launch.staying import cell, channels

AT_WORK = "print('at work', flush=True)\n"


class PressStop:
    """The stop button, pressed once, ``seconds`` after both ranks are at work: they may take their time until then."""

    def __init__(self, seconds: float = 0.3) -> None:
        self.seconds, self.pressed = seconds, False

    def __call__(self, _: str, text: str) -> None:
        if "[ranks 0-1] at work" in text and not self.pressed:
            self.pressed = True
            threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


@pytest.fixture(scope="module")
def group() -> Iterator[Ranks]:
    ranks = Ranks(2, Limits(timeout=20))
    yield ranks
    ranks.stop()


@pytest.fixture
def ranks(group: Ranks) -> Iterator[Ranks]:
    """Healthy ranks with a variable set; the same processes must be there afterwards."""
    if group.broken:
        group.restart()
    pids = {rank: process.pid for rank, process in group.processes.items()}
    group.run("kept = 40 + rank")
    yield group
    assert {rank: process.pid for rank, process in group.processes.items()} == pids
    result = group.run("x = torch.ones(1) * (rank + 1); dist.all_reduce(x); print(x.item(), kept)")
    assert result.text == "[rank 0] 3.0 40\n[rank 1] 3.0 41\n"


def test_state_stays_results_fold_and_values_come_back(ranks: Ranks) -> None:
    ranks.run("y = torch.ones(2) * rank\ndist.all_reduce(y)")
    assert (
        ranks.run("print('y is', y.tolist())\ny.sum()").text
        == "[ranks 0-1] y is [1.0, 1.0]\n[ranks 0-1] tensor(2.)\n"
    )
    result = ranks.run("from workshop import report\nreport(twice=2 * rank + n)", variables={"n": 10})
    assert [result[rank].twice for rank in range(2)] == [10, 12]
    assert dict(ranks.run("pass")[0]) == {}  # an old report does not show up again


def test_only_some_ranks(ranks: Ranks) -> None:
    assert ranks.run("print(rank)", on=[1]).text == "[rank 1] 1\n"
    with pytest.raises(ValueError, match="--on 2: these are ranks 0 to 1"):
        ranks.run("pass", on=[2])


def test_one_raises_while_the_other_waits(ranks: Ranks) -> None:
    with pytest.raises(RankFailed) as caught:
        ranks.run("if rank == 1:\n    raise ValueError('boom')\ndist.barrier()")
    lines = str(caught.value).splitlines()
    assert lines[0] == "rank 1 raised ValueError first, line 2"
    assert "rank 0: in barrier, line 3; freed" in lines
    assert lines[-1].startswith("the process group was cut; all ranks are in a new one")


def test_who_waits_in_vain_is_freed_at_once_and_who_works_is_not(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell, "GRACE_SECONDS", 60.0)  # longer than the cell may take
    with pytest.raises(RankFailed, match="rank 0: in barrier, line 3; freed"):
        ranks.run("if rank == 1:\n    raise ValueError\ndist.barrier()", timeout=15)
    generation = ranks.generation
    with pytest.raises(RankFailed, match="rank 0: had finished"):
        ranks.run("import time\nif rank == 1:\n    raise ValueError\ntime.sleep(0.5)", timeout=15)
    assert ranks.generation == generation


def test_all_raise_and_the_group_is_left_alone(ranks: Ranks) -> None:
    generation = ranks.generation
    with pytest.raises(RankFailed, match="ranks 0-1 all raised ZeroDivisionError, line 1"):
        ranks.run("dist.barrier(); 1 / 0")
    assert ranks.generation == generation


def test_unequal_collectives_do_not_meet_in_the_next_cell(ranks: Ranks) -> None:
    body = "work = dist.all_reduce(torch.ones(1), async_op=True) if rank == 0 else None\nraise KeyError(rank)"
    with pytest.raises(RankFailed, match="different collectives; all ranks are in a new one"):
        ranks.run(body)


def test_a_true_hang_is_cut_and_explained(ranks: Ranks) -> None:
    x = "x = torch.ones(1)\n"
    with pytest.raises(
        RankTimeout, match="rank 0 waits in all_reduce at line 3; rank 1 waits in recv at line 5"
    ):
        ranks.run(x + "if rank == 0:\n    dist.all_reduce(x)\nelse:\n    dist.recv(x, 0)", timeout=4)


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n    pass",
        "import time\ntime.sleep(100)",
        "if rank:\n    dist.barrier()",
        "import asyncio\nawait asyncio.sleep(100)",
        "import asyncio\nawait asyncio.sleep(0)\nwhile True:\n    pass",
        "import asyncio\nawait asyncio.sleep(0)\nif rank:\n    dist.barrier()",
    ],
)
def test_timeouts_of_all_kinds_keep_the_ranks(ranks: Ranks, body: str) -> None:
    with pytest.raises(RankTimeout):
        ranks.run(body, timeout=1)


@pytest.mark.parametrize(
    "body",
    [
        "import time\ntime.sleep(600)",
        "if rank == 0:\n    dist.barrier()\nelse:\n    while True: pass",
        "dist.recv(torch.ones(1), 1 - rank)",
    ],
)
def test_stop_button_interrupts_and_keeps_state(ranks: Ranks, body: str) -> None:
    with pytest.raises(RankInterrupted):
        ranks.run(AT_WORK + body, on_output=PressStop(), timeout=600)


def test_stop_says_where_each_rank_was(ranks: Ranks) -> None:
    body = AT_WORK + "import time\nif rank:\n    dist.recv(torch.ones(1), src=0)\ntime.sleep(600)"
    with pytest.raises(RankInterrupted) as caught:
        ranks.run(body, on_output=PressStop(1.0), timeout=600)
    lines = str(caught.value).splitlines()
    assert lines[0] == "rank 0 is at line 5; rank 1 waits in recv at line 4."
    assert lines[-1].startswith("the process group was cut; all ranks are in a new one")


def test_deepspeeds_copy_of_the_world_group_goes_with_the_group_that_was_cut(ranks: Ranks) -> None:
    kept = "sys.modules['deepspeed.utils.groups']"
    ranks.run(
        f"import sys, types\n{kept} = types.ModuleType('g')\n{kept}._WORLD_GROUP = dist.new_group([0, 1])"
    )
    with pytest.raises(RankFailed):
        ranks.run("if rank == 1:\n    raise ValueError('no luck')\ndist.barrier()")
    assert ranks.run(f"print({kept}._WORLD_GROUP)\ndel {kept}").text == "[ranks 0-1] None\n"


@pytest.mark.parametrize("source", ["from tqdm.auto import tqdm", "from tqdm.notebook import tqdm"])
def test_bars_are_text_whatever_is_imported(ranks: Ranks, source: str) -> None:
    shown: list[str] = []
    body = f"import time\n{source}\nfor i in tqdm(range(8)):\n    time.sleep(0.5)"
    result = ranks.run(body, on_output=lambda _sentence, text: shown.append(text))
    assert (result.text, result.rich) == ("", ())
    assert any("/8 [" in text and "[rank 0]" in text for text in shown)


def test_the_cell_sees_keyboard_interrupt_also_in_a_collective(ranks: Ranks) -> None:
    body = (
        AT_WORK
        + "seen = 'nothing'\ntry:\n    dist.recv(torch.ones(1), 1 - rank)\nexcept KeyboardInterrupt:\n    seen = 'interrupt'"
    )
    with pytest.raises(RankInterrupted):
        ranks.run(body, on_output=PressStop(), timeout=600)
    assert ranks.run("print(seen)").text == "[ranks 0-1] interrupt\n"


def test_objects_that_hold_the_old_group_are_named_when_cut_and_when_used(ranks: Ranks) -> None:
    ranks.run(
        "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(torch.nn.Linear(2, 2))\nsub = dist.new_group()"
    )
    with pytest.raises(RankFailed, match=r"still hold the old group.*: model, sub"):
        ranks.run("if rank == 0:\n    raise KeyError\ndist.barrier()")
    with pytest.raises(RankFailed, match="use of a group that was cut: model, sub still hold"):
        ranks.run("model(torch.ones(1, 2)).sum().backward()")
    ranks.run("model = DDP(model.module)\nmodel(torch.ones(1, 2)).sum().backward()\ndel sub")


def test_a_program_that_makes_and_destroys_its_own_group_runs_as_it_is(ranks: Ranks) -> None:
    result = ranks.run(
        "dist.init_process_group('gloo')\nprint(dist.get_world_size())\ndist.destroy_process_group()"
    )
    assert result.text == "[ranks 0-1] 2\n"
    assert "the cell destroyed the process group; all ranks are in a new one" in result.healed


def test_keyboard_is_refused(ranks: Ranks) -> None:
    for act in ("input()", "breakpoint()"):
        with pytest.raises(RankFailed, match="cannot work on a rank"):
            ranks.run(act)


def test_a_flood_neither_blocks_nor_leaks_into_the_next_cell(ranks: Ranks) -> None:
    result = ranks.run(
        "import sys\nfor i in range(200_000):\n    print(i)\nsys.stderr.write('z' * 10_000_000)", timeout=60
    )
    assert "more lines; the whole log is" in result.text
    assert ranks.run("print('next')").text == "[ranks 0-1] next\n"


def test_a_cell_that_publishes_nothing_is_one_message_from_each_rank(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[str] = []
    receive = channels.Channel.receive

    def counted(self: channels.Channel, socket: Any) -> list[dict[str, Any]]:
        answers = receive(self, socket)
        came.extend(f"{self.rank} {answer['header']['msg_type']}" for answer in answers)
        return answers

    monkeypatch.setattr(channels.Channel, "receive", counted)
    ranks.run("print('a word'); y = 1")
    assert sorted(came) == [f"{rank} execute_reply" for rank in range(ranks.n)]
    came.clear()
    result = ranks.run("from IPython.display import display, HTML\nfor k in range(50): display(HTML(str(k)))")
    assert [content["data"]["text/html"] for rank, content in result.rich if rank == 1] == [
        str(k) for k in range(50)
    ]
    assert came.count("1 status") == 1
    assert came.count("1 display_data") == 50


def test_no_thread_stands_between_a_cell_and_the_rank_and_nothing_is_noted_that_nobody_reads(
    ranks: Ranks,
) -> None:
    names = "import threading\nprint(sorted(t.name for t in threading.enumerate()))"
    assert "'MainThread'" in ranks.run(names).text
    assert "Shell" not in ranks.run(names).text
    assert ranks.run("get_ipython().kernel.log.isEnabledFor(10)").text == "[ranks 0-1] False\n"


def test_a_cell_that_awaits_runs_where_the_others_do(ranks: Ranks) -> None:
    body = "import asyncio\nawait asyncio.sleep(0.01)\nx = torch.ones(1)\ndist.all_reduce(x)\nx"
    assert ranks.run(body).text == "[ranks 0-1] tensor([2.])\n"


def test_the_same_cell_is_read_anew_where_its_reading_has_changed(ranks: Ranks) -> None:
    body = "print('before')"
    assert ranks.run(body).text == "[ranks 0-1] before\n"
    change = "lambda lines: [line.replace('before', 'after') for line in lines]"
    ranks.run(f"get_ipython().input_transformers_post.append({change})")
    assert ranks.run(body).text == "[ranks 0-1] after\n"
    ranks.run("get_ipython().input_transformers_post.pop()")
    assert ranks.run(body).text == "[ranks 0-1] before\n"


def test_a_short_cell_shows_its_first_line_once_its_ranks_are_done(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell, "SHORT_SECONDS", 60.0)
    answered: list[int] = []
    received = channels.Channel.receive

    def noted(self: channels.Channel, socket: Any) -> list[dict[str, Any]]:
        answers = received(self, socket)
        answered.extend([self.rank] * len(answers))
        return answers

    monkeypatch.setattr(channels.Channel, "receive", noted)
    shown: list[tuple[str, int]] = []
    ranks.run("y = 1", on_output=lambda sentence, _text: shown.append((sentence, len(answered))))
    assert shown == [("2 ranks on CPU, gloo", 2)]


def test_rich_output_comes_with_its_rank(ranks: Ranks) -> None:
    result = ranks.run(
        "from IPython.display import HTML, display\nif rank == 1:\n    display(HTML('<b>hi</b>'))"
    )
    assert [(rank, content["data"]["text/html"]) for rank, content in result.rich] == [(1, "<b>hi</b>")]


def test_syntax_errors_on_the_ranks_are_told(ranks: Ranks) -> None:
    with pytest.raises(RankFailed, match=r"SyntaxError"):
        ranks.run("print(1")


def test_death_breaks_the_set_until_restart(group: Ranks) -> None:
    if group.broken:
        group.restart()
    with pytest.raises(RankFailed, match=r"(?s)rank 1 died first.*SIGKILL.*rank 0: .*%ranks restart"):
        group.run(
            "import os, time\nif rank == 1:\n    time.sleep(0.2); os.kill(os.getpid(), 9)\ndist.barrier()"
        )
    assert not any(process.alive() for process in group.processes.values())
    with pytest.raises(RankFailed, match=r"rank 1: it died by SIGKILL.*%ranks restart"):
        group.run("print(1)")
    group.restart()
    assert group.run("print(rank)").text == "[rank 0] 0\n[rank 1] 1\n"


def test_a_rank_that_does_not_come_back_breaks_the_set(group: Ranks) -> None:
    if group.broken:
        group.restart()
    stuck = (
        "if rank == 0:\n    sum(range(10**12))\nelse:\n    dist.barrier()"  # holds the GIL, hears no signal
    )
    with pytest.raises(RankTimeout, match=r"rank 0 did not come back.*%ranks restart"):
        group.run(stuck, timeout=1)
    group.restart()
    assert group.run("print(1)").text == "[ranks 0-1] 1\n"


def test_memory_cap_on_staying_ranks() -> None:
    capped = Ranks(1, Limits(device_memory="8MiB", timeout=20))
    try:
        with pytest.raises(RankFailed, match="OutOfMemoryError"):
            capped.run("big = torch.zeros(2**22)")
        assert capped.run("small = torch.zeros(2**20); print('fits')").text == "[rank 0] fits\n"
    finally:
        capped.stop()
