"""Whatever a learner's cell does, it is an answer with a sentence; only the stop button passes through."""

import re

import pytest

from workshop.exercises import find
from workshop.exercises.engine import judge
from workshop.exercises.engine.judge import bind_solution
from workshop.exercises.engine.rank_function import RankFunction
from workshop.launch import RankInterrupted


def said(name, source, namespace=None):
    verdict = judge.judge(find(name), source, {} if namespace is None else namespace)
    assert verdict.state != "right"
    return verdict.message


BYTES = "def ring_bytes(n, world):\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "the cell is empty"),
        ("# only a comment\n", "the cell is empty"),
        (
            "a = 1\ndef ring_bytes(:\n",
            "Line 3 is not Python yet: invalid syntax. It reads `def ring_bytes(:`.",
        ),
        ("%timeit 1\n", "Line 2: `%timeit 1` is IPython's"),
        ("def ringbytes(n, world): 0\n", "no function `ring_bytes`. It defines `ringbytes`: rename it?"),
        ("ring_bytes = 3\n", "`ring_bytes` is 3, not a function"),
        (BYTES + "    return n / nothing\n", "Line 3, `return n / nothing`: NameError: name 'nothing'"),
        ("def ring_bytes(n): 0\n", "TypeError: ring_bytes() takes 1 positional argument but 2 were given"),
        (BYTES + "    return ring_bytes(n, world)\n", "RecursionError: maximum recursion depth"),
        ("a = 1\nraise SystemExit\n", "Line 3, `raise SystemExit`: the cell ends the program (exit)"),
        (
            BYTES + "    raise ValueError\n",
            "`raise ValueError`: ValueError. (in the call `ring_bytes(1_000, 4)`)",
        ),
        ("1 / 0\n", "Line 2, `1 / 0`: ZeroDivisionError: division by zero."),
    ],
)
def test_plain(source, words):
    assert words in said("ring_bytes", source)


@pytest.mark.parametrize(
    ("open_lines", "said"),
    [
        ("d", "line 6 waits"),
        ("ad", "lines 3 and 6 wait"),
        ("abcd", "lines 3 to 6 wait"),
        ("abd", "lines 3, 4 and 6 wait"),
    ],
)
def test_open_lines_are_named_as_one_would_say_them(open_lines, said):
    body = "".join(f"    {name} = {'..., ...' if name in open_lines else '1'}\n" for name in "abcd")
    verdict = judge.judge(find("train_flops"), f"def train_flops(params, tokens):\n{body}", {})
    assert said in verdict.message


def test_an_earlier_answer_does_not_stand_in_for_a_missing_one():
    namespace = {"ring_bytes": lambda n, world: 2 * n * (world - 1) / world}
    assert "defines no function" in said("ring_bytes", "other = 1\n", namespace)


def test_the_stop_button_passes():
    with pytest.raises(KeyboardInterrupt):
        said("ring_bytes", "raise KeyboardInterrupt\n")


def test_the_stop_button_passes_on_ranks(monkeypatch):
    from workshop import launch

    def interrupted(*_, **__):
        raise RankInterrupted("the 4 ranks were ended.")

    monkeypatch.setattr(launch, "torchrun", interrupted)
    with pytest.raises(KeyboardInterrupt):
        said("who_am_i", find("who_am_i").solution)


SHARE = "def my_share(items, rank, world_size):\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def share(items): 0\n", "The cell defines no function `my_share`. It defines `share`: rename it?"),
        (
            SHARE + "    return nothing\n",
            "stopped on line 3, `return nothing`: NameError: name 'nothing' is not defined. A cell on",
        ),
        (
            "def my_share(items): 0\n",
            "stopped: TypeError: my_share() takes 1 positional argument but 3",
        ),
        (
            SHARE
            + "    if rank == 2:\n        raise ValueError('two')\n    return items[rank::world_size]\n",
            "Rank 2 stopped on line 4, `raise ValueError('two')`: ValueError: two.",
        ),
        (SHARE + "    import os\n    os._exit(3)\n", "stopped: it left with exit code 3"),
        (SHARE + "    exit()\n", "ended before the check was done. Does the cell call `exit()`?"),
        (
            SHARE + "    pass\n",
            "gave nothing (None); is a `return` missing?; wanted a list of items",
        ),
        (SHARE + "    return (x for x in items)\n", "gave a value of type generator; wanted a list of items"),
        (
            SHARE + "    return items[rank::world_size] + [10]\n",
            "rank 3 took 3 7 10. Rank 0 took 10, which is none of the items.",
        ),
        (
            SHARE + "    return items if rank == 2 else []\n",
            "rank 0 took nothing; rank 1 took nothing; rank 2 took 0 1 2 3 4 5 6 7 8 9; rank 3 took nothing. Rank 2",
        ),
        (
            SHARE + "    return items[rank::world_size] + items[:1]\n",
            "More than one rank took item 0, or one took it twice.",
        ),
    ],
)
def test_on_ranks(source, words):
    message = said("who_am_i", source)
    assert words in message
    if words.startswith(("stopped", "ended")):  # all four end alike: which of them was first is the clock's
        assert re.match(r"Rank [0-3] ", message)


def test_a_program_without_end_on_ranks(monkeypatch):
    monkeypatch.setattr(judge, "TIMEOUT_SECONDS", 3.0)
    message = said("who_am_i", SHARE + "    while True:\n        pass\n")
    assert "The ranks did not come to an end: time is up after 3 s" in message


def test_what_the_ranks_print_is_kept():
    source = find("who_am_i").solution + "\nprint('hello')\n"
    verdict = judge.judge(find("who_am_i"), source, {})
    assert verdict.state == "right"
    assert "hello" in verdict.printed
    failed = judge.judge(find("who_am_i"), "print('hello')\n" + SHARE + "    return 1 / 0\n", {})
    assert "hello" in failed.printed
    assert "ZeroDivisionError" in failed.message


def test_the_learners_function_is_bound_when_right():
    namespace = {}
    source = find("who_am_i").solution + "\ndef other():\n    return 1\n"
    assert judge.judge(find("who_am_i"), source, namespace).state == "right"
    assert all(isinstance(namespace[name], RankFunction) for name in ("my_share", "other"))
    assert namespace["my_share"].source == source


def test_needed_functions_are_bound_where_missing_only():
    namespace = {}
    judge.judge(find("largest_under_cap"), find("largest_under_cap").solution, namespace)
    assert namespace["ddp_bytes"](1000) == 16_000
    own = lambda *_: 16_000  # noqa: E731
    namespace = {"ddp_bytes": own}
    judge.judge(find("largest_under_cap"), "def largest_under_cap(c, p): return 1\n", namespace)
    assert namespace["ddp_bytes"] is own


def test_the_bound_solution_runs_and_travels_by_value():
    import cloudpickle

    namespace = {}
    bind_solution(find("largest_under_cap"), namespace)
    assert list(namespace) == ["largest_under_cap"]
    assert namespace["largest_under_cap"](16_000, lambda width: width) == 960
    assert (
        cloudpickle.loads(cloudpickle.dumps(namespace["largest_under_cap"]))(16_000, lambda width: width)
        == 960
    )
