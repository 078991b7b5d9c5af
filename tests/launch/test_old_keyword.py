"""`variables=` was called `passing=`: whoever wrote the old word is understood, and told the new one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from workshop.launch import Ranks, jobs, replicas, torchrun
from workshop.launch.request import takes_passing


@pytest.mark.parametrize("function", [torchrun, replicas, Ranks.run, jobs.submit])
def test_the_old_word_is_taken_and_the_new_one_is_what_help_shows(function: Callable[..., Any]) -> None:
    assert "variables" in inspect.signature(function).parameters
    with pytest.raises(TypeError, match="the old name of the same"):
        function("x = 1", passing={"a": 1}, variables={"a": 2})


def test_the_old_word_means_the_new_one() -> None:
    @takes_passing
    def run(program: str, *, variables: dict[str, int] | None = None) -> tuple[str, Any]:
        return program, variables

    with pytest.warns(DeprecationWarning, match="passing= is called variables= now") as warned:
        assert run("x", passing={"a": 1}) == ("x", {"a": 1})  # type: ignore[call-arg]
    assert warned[0].filename == __file__
    assert run("x", variables={"a": 1}) == run("x", variables={"a": 1})


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    two = Ranks(2)
    yield two
    two.stop()


def test_on_ranks_that_stay(ranks: Ranks) -> None:
    with pytest.warns(DeprecationWarning, match="variables="):
        assert ranks.run("print(a)", passing={"a": 7}).text == "[ranks 0-1] 7\n"  # type: ignore[call-arg]
