"""A function that lives on ranks: shows itself here, says where it runs, and is the true function there."""

import copy
import pickle
import sys

import cloudpickle
import pytest

from workshop import launch
from workshop.exercises import find
from workshop.exercises.engine.judge import bind_solution
from workshop.exercises.engine.rank_function import RankFunction

SOURCE = '''\
FACTOR = 3


def twice(x: int, *, more: int = 0) -> int:
    """Two times x."""
    return double(x) + more


def double(x):
    return 2 * x


raise RuntimeError("a trial that must not run again")
'''


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("RANK", raising=False)


def test_it_shows_itself():
    function = RankFunction("twice_it", "twice", SOURCE)
    assert repr(function) == "<twice(x: int, *, more: int=0): lives on ranks; hand it over with --pass twice>"
    assert "<code>--pass twice</code>" in function._repr_html_()
    assert "return double(x)" in function._repr_html_()
    assert (function.__name__, function.__doc__) == ("twice", "Two times x.")


def test_called_in_a_notebook_without_torch_it_says_where_it_lives(no_torch):
    with pytest.raises(RuntimeError, match=r"twice lives on ranks: hand it over with --pass twice"):
        RankFunction("twice_it", "twice", SOURCE)(1)


def test_called_where_torch_is_loaded_it_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert RankFunction("twice_it", "twice", SOURCE)(4, more=1) == 9


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_in_a_rank_it_unpickles_to_the_function(no_torch, monkeypatch, dumps):
    data = dumps([RankFunction("twice_it", name, SOURCE) for name in ("twice", "double")])
    monkeypatch.setenv("RANK", "0")
    twice, double = pickle.loads(data)
    assert (twice(4), double(4)) == (8, 8)
    assert twice.__globals__ is double.__globals__
    assert twice.__globals__["FACTOR"] == 3


def test_in_a_notebook_a_copy_is_a_stand_in_again(no_torch):
    function = RankFunction("twice_it", "twice", SOURCE)
    for same in (copy.copy(function), copy.deepcopy(function), pickle.loads(pickle.dumps(function))):
        assert isinstance(same, RankFunction)
        assert same.source == SOURCE


def test_passed_to_real_ranks_it_is_the_true_function():
    namespace = {}
    bind_solution(find("ring_all_reduce"), namespace)
    program = (
        "import torch, torch.distributed as dist\n"
        "from workshop import report\n"
        "dist.init_process_group('gloo')\n"
        "tensor = torch.arange(4.0) + dist.get_rank()\n"
        "ring_all_reduce(tensor)\n"
        "report(total=tensor, kind=type(ring_all_reduce).__name__)\n"
    )
    result = launch.torchrun(program, 2, variables=namespace, limits=launch.Limits(timeout=60.0))
    for rank in range(2):
        assert result[rank]["kind"] == "function"
        assert result[rank]["total"].tolist() == [1.0, 3.0, 5.0, 7.0]


def test_an_error_on_ranks_names_the_line_of_the_exercise():
    source = "import torch\n\n\ndef broken(x):\n    return torch.ones(2) @ torch.ones(x)\n"
    variables = {"broken": RankFunction("break_it", "broken", source)}
    with pytest.raises(launch.RankFailed) as caught:
        launch.torchrun("broken(3)\n", 1, variables=variables, limits=launch.Limits(timeout=60.0))
    assert "in broken (<exercise break_it>:6)" in str(caught.value)
