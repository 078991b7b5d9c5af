"""What leaks, what is scrubbed, what a rank gets."""

from __future__ import annotations

from workshop.launch.environment import leaked, rank_environment, scrubbed

FOREIGN = {
    "RANK": "7",
    "MASTER_ADDR": "node9",
    "TORCHELASTIC_RUN_ID": "x",
    "SLURM_PROCID": "3",
    "OMPI_COMM_WORLD_RANK": "1",
    "PMI_RANK": "1",
}


def test_other_launchers_variables_are_named_and_removed() -> None:
    env = {**FOREIGN, "HOME": "/home/x", "MY_RANKING": "1"}
    assert leaked(env) == sorted(FOREIGN)
    assert scrubbed(env) == {"HOME": "/home/x", "MY_RANKING": "1"}


def test_a_rank_gets_one_thread_and_the_loopback_interface() -> None:
    env = rank_environment({**FOREIGN})
    assert env["OMP_NUM_THREADS"] == "1"
    assert env["GLOO_SOCKET_IFNAME"] == "lo"
    assert not set(FOREIGN) & set(env)


def test_the_users_own_choice_of_threads_stays_and_several_nodes_are_not_held_to_loopback() -> None:
    env = rank_environment({"OMP_NUM_THREADS": "4"}, one_node=False)
    assert env["OMP_NUM_THREADS"] == "4"
    assert "GLOO_SOCKET_IFNAME" not in env
