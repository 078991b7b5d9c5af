"""What leaks, what is scrubbed, what a rank gets."""

from __future__ import annotations

import os

from workshop.site.current import launcher_variables, rank_environment, scrubbed

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
    assert launcher_variables(env) == sorted(FOREIGN)
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


def test_the_jobs_own_folder_stays_while_the_ranks_place_goes() -> None:
    env = rank_environment({"SLURM_TMPDIR": "/local/12", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4"})
    assert env["SLURM_TMPDIR"] == "/local/12"
    assert not {"SLURM_LOCALID", "SLURM_NTASKS"} & set(env)


def test_the_sites_variables_reach_the_ranks_and_the_users_win(tmp_path) -> None:
    site = tmp_path / "site.toml"
    site.write_text(
        '[node]\ninterface = "=lo"\nthreads = 0\n'
        '[environment]\nNCCL_CROSS_NIC = "1"\nMIOPEN_USER_DB_PATH = "/tmp/$USER-db"\nMINE = "site"\n'
    )
    told = {"WORKSHOP_SITE": str(site), "USER": "ada", "MINE": "mine"}
    env = rank_environment(told, ranks=10_000)
    assert (env["NCCL_CROSS_NIC"], env["MIOPEN_USER_DB_PATH"], env["MINE"]) == ("1", "/tmp/ada-db", "mine")
    assert env["OMP_NUM_THREADS"] == "1"  # a core or more for each
    cores = len(os.sched_getaffinity(0))
    assert rank_environment(told)["OMP_NUM_THREADS"] == str(cores)
    many = rank_environment(told, one_node=False)
    assert (many["GLOO_SOCKET_IFNAME"], many["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
