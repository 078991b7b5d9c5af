"""The agent writes down who ended by itself before anything ends the others."""

from __future__ import annotations

import multiprocessing
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from workshop.launch.child import rendezvous as meeting
from workshop.launch.child.agent import CellAgent
from workshop.launch.fresh.nodes import Nodes


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


# ------------------------------------------------------------------------------- who opens the store for several nodes


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each rendezvous that was made is to be the host of the store."""
    hosts: list[bool] = []

    def handler(parameters: Any) -> SimpleNamespace:
        hosts.append(parameters.get_as_bool("is_host"))
        if hosts == [True] and parameters.run_id == "the other has it":
            raise RendezvousConnectionError("the port is taken")
        return SimpleNamespace()

    monkeypatch.setattr(meeting.rendezvous_registry, "get_rendezvous_handler", handler)
    monkeypatch.setattr(meeting, "NodesRendezvous", lambda handler, address: (handler, address))
    monkeypatch.setattr(meeting, "address_of", lambda nodes: "10.0.0.3")
    # torch compares the endpoint with the host's name; here it is the address of a second card of this machine.
    monkeypatch.setattr(meeting, "is_own", lambda host: host == "10.7.0.3")
    return hosts


def rendezvous(endpoint: str, run_id: str = "course") -> Any:
    return meeting.rendezvous_of(SimpleNamespace(nodes=Nodes(2, endpoint, run_id)))


@pytest.mark.parametrize(("endpoint", "host"), [("10.7.0.3:29500", True), ("10.7.0.4:29500", False)])
def test_the_node_whose_second_card_is_the_endpoint_opens_the_store(asked, endpoint, host) -> None:
    assert rendezvous(endpoint)[1] == "10.0.0.3"
    assert asked == [host]


def test_of_two_launches_on_one_machine_the_second_joins_the_store_of_the_first(asked) -> None:
    rendezvous("10.7.0.3:29500", "the other has it")
    assert asked == [True, False]
