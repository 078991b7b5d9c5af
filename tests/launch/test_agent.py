"""The agent writes down who ended by itself before anything ends the others."""

from __future__ import annotations

import multiprocessing
from types import SimpleNamespace

import pytest

from workshop.launch.child.agent import CellAgent


class Process:
    """A rank that the first ``looks`` looks find at work, and later ones gone with ``code``."""

    def __init__(self, code: int | None, looks: int = 0):
        self.code, self.looks, self.pid = code, looks, 0
        self.sentinel, self._other_end = multiprocessing.Pipe()

    @property
    def exitcode(self) -> int | None:
        self.looks -= 1
        return None if self.looks >= 0 else self.code


class Spawned:
    """What `torch.multiprocessing.start_processes` returns, with its way of ending all where one has failed."""

    def __init__(self, processes: list[Process]):
        self.processes = processes

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        if any(process.exitcode for process in self.processes):
            for process in self.processes:
                process.code = -15 if process.exitcode is None else process.code
            raise RuntimeError("a rank failed")
        return all(process.exitcode == 0 for process in self.processes)


def agent_of(processes: list[Process]) -> tuple[CellAgent, SimpleNamespace]:
    context = SimpleNamespace(_pc=Spawned(processes), close=lambda *_: None, _return_values={})
    agent = object.__new__(CellAgent)
    agent._own_ends, agent._pcontext, agent.exit_codes = None, context, {}
    agent._worker_group = SimpleNamespace(
        workers=[SimpleNamespace(global_rank=i) for i in range(len(processes))]
    )
    agent._look_before_ending(context)
    return agent, context


@pytest.mark.parametrize("looks", range(8))
def test_a_rank_that_fails_between_two_looks_is_the_one_that_failed(looks: int) -> None:
    agent, context = agent_of([Process(None), Process(1, looks)])
    for _ in range(10):
        try:
            context._pc.join(-1)
        except RuntimeError:
            break
    context.close()
    agent.remember_exit_codes()
    assert agent.exit_codes == {0: None, 1: 1}


def test_a_rank_that_left_without_returning_does_not_keep_the_others_waiting() -> None:
    _, context = agent_of([Process(0), Process(None)])
    assert context._pc.join(-1) is False
    assert context._return_values == {0: None}
