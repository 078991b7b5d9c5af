"""Batch scripts, to the letter. `UPDATE_GOLDEN=1 pytest tests/site/test_batch_scripts.py` writes them anew."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from workshop.site.current import site_environment
from workshop.site.job import Job, cpus_wanted, gpus_wanted
from workshop.site.sge_script import sge_script, submit_flags
from workshop.site.slurm_script import slurm_script
from workshop.site.spec import SiteSpec, read_site

GOLDEN = Path(__file__).parent / "golden_batch"
CENTRE = replace(
    read_site(Path(__file__).parents[2] / "examples" / "sites" / "slurm-apptainer.toml"),
    jobs="/scratch/ada/jobs",
    cache="/scratch/ada/cache",
)
PLAIN = SiteSpec(name="plain", scheduler="slurm", partition="lab", cpus=16)
GRID = SiteSpec(
    name="grid", scheduler="sge", modules=("cuda/12.8", "openmpi"), gpus=4, directives=("-l node_f={nnodes}",)
)
AMD = SiteSpec(
    name="AMD",
    scheduler="slurm",
    account="project_1",
    partition="gpu",
    export="none",
    keep=("WANDB_API_KEY",),
    directives=("--exclusive",),
    prologue=("export MIOPEN_DB=/tmp/$SLURM_JOB_ID", "ulimit -c 0"),
    epilogue=("rm -rf /tmp/$SLURM_JOB_ID", "false"),
    purge=True,
    modules=("rocm/6",),
    gpus=2,
    gpu="amd",
    cpus=16,
    interface="^lo,docker0",
    cpu_bind="cores",
    gpu_cpus=("0", "1"),
    threads=0,
    runtime="apptainer",
    container="/shared/workshop.sif",
    jobs="/scratch/ada/jobs",
    environment={"NCCL_NET_GDR_LEVEL": "3"},
    proxy="http://ada:geheim@proxy:3128",
)
OWN = {"directory": "/scratch/ada/jobs/20260101-ddp", "folder": "/scratch/ada"}
SCRIPTS = {
    "plain.sbatch": lambda: slurm_script(PLAIN, Job("plain", "train.py", ("--lr", "1e-3"), nproc_per_node=2)),
    "centre.sbatch": lambda: slurm_script(
        CENTRE,
        Job("ddp run", "a.module", ("x y",), True, nnodes=2, nproc_per_node=4, environment={"HF_HUB_OFFLINE": "1"},
            python="python3", **OWN),
    ),
    "requeue.sbatch": lambda: slurm_script(
        PLAIN, Job("again", "train.py", nnodes=2, requeue=True, signal="USR1@60", max_restarts=3, **OWN)
    ),
    "array.sbatch": lambda: slurm_script(PLAIN, Job("sweep", "train.py", array="0-7%2", time="1-00:00:00", **OWN)),
    "amd.sbatch": lambda: slurm_script(
        AMD, Job("amd", "a.module", module=True, nnodes=2, nproc_per_node=2, environment=site_environment(AMD, one_node=False) | {"MY_TOKEN": "t"}, **OWN)
    ),
    "replicas.sbatch": lambda: slurm_script(
        CENTRE,
        Job("outlive", "a.module", ("x y",), True, nnodes=2, nproc_per_node=2, replicas=3, max_restarts=1, python="python3", **OWN),
    ),
    "grid.sge": lambda: sge_script(GRID, Job("grid", "train.py", nnodes=2, nproc_per_node=4, array="0-3")),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_the_golden_one(name):
    text = SCRIPTS[name]()
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(text, "utf-8")
    assert text == (GOLDEN / name).read_text("utf-8")


def test_there_is_no_golden_file_that_nobody_writes():
    assert {path.name for path in GOLDEN.iterdir()} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_good_bash(name):
    checked = subprocess.run(
        ["bash", "-n"], input=SCRIPTS[name](), capture_output=True, text=True, timeout=20, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"replicas": 1}, "1 replicas on 2 nodes: at least one on each"),
        ({"replicas": -1}, "-1 replicas"),
        ({"array": "0-1"}, "--array .* does not go with --replicas: who comes back learns from a peer"),
        ({"requeue": True}, "--requeue does not go with --replicas"),
        ({"signal": "USR1@60"}, "--signal does not go with --replicas"),
    ],
)
def test_what_replicas_cannot_be(change, words):
    with pytest.raises(ValueError, match=words):
        Job("t", "train.py", **{"nnodes": 2, "replicas": 3, **change})


def test_replicas_need_slurm_and_a_directory():
    with pytest.raises(ValueError, match="--replicas are started by srun: grid has Grid Engine"):
        sge_script(GRID, Job("t", "train.py", replicas=2))
    with pytest.raises(ValueError, match="by hand it is examples/replicas/replicas.sbatch"):
        slurm_script(PLAIN, Job("t", "train.py", replicas=2))


def test_no_launchers_variable_reaches_the_command():
    """The very lines of the script, run by bash with a poisoned environment."""
    text = SCRIPTS["plain.sbatch"]()
    lines = text[text.index("container=") : text.index("\nsrun ")]
    poisoned = {
        "PATH": os.environ["PATH"], "RANK": "7", "MASTER_ADDR": "nowhere", "SLURM_PROCID": "3", "SLURM_JOB_ID": "12",
        "SLURM_RESTART_COUNT": "1", "SLURM_STEP_NUM_TASKS": "4", "PMI_RANK": "1", "OMPI_COMM_WORLD_RANK": "2",
        "TORCHELASTIC_RUN_ID": "x", "MINE": "kept",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", f'{lines}\nexec bash -c "$on_node" "$container" env "with space=a b"'],
        env=poisoned, capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines())
    wanted = {"MINE": "kept", "SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "1", "with space": "a b"}
    assert {name: seen[name] for name in wanted} == wanted
    gone = set(poisoned) - set(wanted) - {"PATH"}
    assert not gone & set(seen)


@pytest.mark.parametrize(("node", "is_host"), [("0", "1"), ("1", "0")])
def test_each_node_is_told_whether_the_meeting_is_on_it(node, is_host):
    text = SCRIPTS["requeue.sbatch"]()
    lines = text[text.index("container=") : text.index("\ntrap", text.index("container="))]
    done = subprocess.run(
        ["bash", "-c", f'{lines}\nexec bash -c "$on_node" "$container" env'],
        env={"PATH": os.environ["PATH"], "SLURM_NODEID": node}, capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    assert f"PET_RDZV_CONF=is_host={is_host}" in done.stdout.splitlines()
    assert "SLURM_NODEID" not in done.stdout
    assert "is_host" not in SCRIPTS["plain.sbatch"](), "one node needs none"


def test_gpus_and_cores():
    job = Job("j", "p", nproc_per_node=2)
    assert (gpus_wanted(CENTRE, job), cpus_wanted(CENTRE, job)) == (
        2,
        32,
    )  # half of 64 cores with half the GPUs
    assert (gpus_wanted(PLAIN, job), cpus_wanted(PLAIN, job)) == (0, 2)
    on_cpu = replace(job, gpus_per_node=0)
    assert (gpus_wanted(CENTRE, on_cpu), cpus_wanted(CENTRE, on_cpu)) == (0, 2)
    with pytest.raises(
        ValueError, match=r"8 GPUs a node are wanted and a node of .* has 4: -n 4 and more nodes"
    ):
        slurm_script(CENTRE, replace(job, nproc_per_node=8))


def test_restarts_get_a_store_of_their_own():
    assert "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in SCRIPTS["requeue.sbatch"]()
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in SCRIPTS["plain.sbatch"]()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nnodes": 0}, "1 ranks on 0 nodes: both must be 1 or more"),
        ({"time": "soon"}, "time 'soon': write it as HH:MM:SS"),
        ({"array": "a-b"}, "array 'a-b': write indices as 0-3"),
        ({"signal": "60"}, "signal '60': write a signal's name and seconds, as USR1@60"),
        ({"max_restarts": -1}, "max_restarts -1"),
        ({"gpus_per_node": -1}, "gpus_per_node -1"),
        ({"environment": {"a b": "1"}}, "'a b' is no name of a variable"),
        ({"folder": "/a\n#SBATCH --evil"}, "more than one line"),
    ],
)
def test_what_no_job_can_have(wrong, said):
    with pytest.raises(ValueError) as caught:
        Job("j", "p", **wrong)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("site", "job", "said"),
    [
        (replace(GRID, directives=()), Job("j", "p", nnodes=2), "say how it gives them in [job] directives"),
        (GRID, Job("j", "p", signal="USR1@9"), "add --requeue, or leave it out"),
        (GRID, Job("j", "p", signal="USR1@9000", requeue=True), "the job has 600 s in all"),
        (GRID, Job("j", "p", array="2,5"), "Grid Engine takes one range, as 0-7"),
        (replace(GRID, account="a b"), Job("j", "p"), "takes no blanks, quotes, # or $"),
    ],
)
def test_what_grid_engine_cannot(site, job, said):
    with pytest.raises(ValueError) as caught:
        sge_script(site, job)
    assert said in str(caught.value)


# ---------------------------------------------------------------------------- lines of scripts, run by bash


def run(script, **environment):
    """What bash prints for these lines, and its exit code."""
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": os.environ["PATH"], **environment},
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr, done.returncode


def between(text, first, last):
    return text[text.index(first) : text.index(last)]


@pytest.mark.parametrize(
    ("low", "high", "port"),
    [(32768, 60999, 10000 + 70_012 % 22768), (1024, 60999, 61000 + 70_012 % 4536), (1024, 65535, 30012)],
)
def test_the_port_is_none_that_the_kernel_hands_out(tmp_path, low, high, port):
    lines = between(SCRIPTS["plain.sbatch"](), "low=", "\n# On every node")
    kernels = tmp_path / "range"
    kernels.write_text(f"{low}\t{high}\n")
    lines = lines.replace("/proc/sys/net/ipv4/ip_local_port_range", str(kernels))
    said, _ = run(f'set -euo pipefail\n{lines}echo "$port"', SLURM_JOB_ID="70012")
    assert int(said) == port
    assert 1024 <= port <= 65535
    assert not low <= port <= high or (low, high) == (1024, 65535)


def test_the_epilogue_runs_however_the_program_ends_and_its_code_is_kept(tmp_path):
    site = replace(PLAIN, epilogue=("echo cleaned $nowhere", "false"))
    job = Job("j", "p", directory=str(tmp_path), folder="/")
    lines = between(slurm_script(site, job), "set -euo", "\n# The torchruns")
    for code in (0, 3):
        assert run(f"{lines}\n(exit {code})") == ("cleaned\n", code)
        assert (tmp_path / "task_0/start_0/exit").read_text() == f"{code}\n"
    alone = between(slurm_script(site, replace(job, directory="")), "set -euo", "\n# The torchruns")
    assert run(f"{alone}\nexit 5") == ("cleaned\n", 5)


def test_a_rank_is_bound_to_the_cores_next_to_its_gpu():
    """The very words that torchrun runs on a rank, with a core that is there and one that is not."""
    own = sorted(os.sched_getaffinity(0))
    site = replace(AMD, gpu_cpus=(str(own[-1]), "4000"))
    text = slurm_script(site, Job("j", "p", nproc_per_node=2))
    words = between(text, "bash -c 'near", ' bind "${PYTHON').strip()
    shown = "bind python3 -c 'import os; print(os.sched_getaffinity(0))'"
    assert run(f"{words} {shown}", LOCAL_RANK="0", RANK="0") == (f"{{{own[-1]}}}\n", 0)
    said, code = run(f"{words} {shown}", LOCAL_RANK="1", RANK="5")
    assert "rank 5 is bound to no cores: this job has not those next to its GPU, 4000" in said
    assert (str(set(own)) in said, code) == (True, 0)
    assert run(f"{words} {shown}", LOCAL_RANK="2", RANK="2") == (f"{set(own)}\n", 0)
    assert "near=" not in slurm_script(site, Job("j", "p", nproc_per_node=2, gpus_per_node=0))


def test_gloo_gets_a_network_by_name_where_the_site_leaves_some_out(tmp_path):
    for name, state in {"docker0": "up", "ib0": "down", "lo": "unknown", "mlx0": "up", "zz0": "up"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "operstate").write_text(state)
    lines = between(SCRIPTS["amd.sbatch"](), "    for link in", "    for name in WANDB")
    lines = lines.replace("/sys/class/net", str(tmp_path))
    assert run(f'{lines}\necho "$GLOO_SOCKET_IFNAME $TP_SOCKET_IFNAME"')[0] == "mlx0 mlx0\n"


def test_secrets_stay_behind_but_for_those_that_are_kept():
    text = SCRIPTS["amd.sbatch"]()
    lines = between(text, "on_node='", "\nsrun ")
    told = {
        "HF_TOKEN": "a", "JUPYTER_TOKEN": "b", "AWS_REGION": "c", "MY_SECRET": "d", "DB_PASSWORD_FILE": "e",
        "WANDB_API_KEY": "kept", "MY_TOKEN": "asked for",
        "APPTAINERENV_MY_TOKEN": "asked for",
    }  # fmt: skip
    said, _ = run(f'{lines}\nbash -c "$on_node" "" env', **told)
    seen = dict(entry.split("=", 1) for entry in said.splitlines() if "=" in entry)
    assert set(told) & set(seen) == {"WANDB_API_KEY", "MY_TOKEN", "APPTAINERENV_MY_TOKEN"}
    assert seen["APPTAINERENV_WANDB_API_KEY"] == "kept"


def test_no_secret_stands_on_a_command_line():
    text = SCRIPTS["amd.sbatch"]()
    for line in text.splitlines():
        if "geheim" in line or "MY_TOKEN=" in line:
            assert line.startswith("export "), line
    assert "export APPTAINERENV_https_proxy=http://ada:geheim@proxy:3128" in text
    assert "export APPTAINERENV_MY_TOKEN=t" in text
    with pytest.raises(
        ValueError, match="HTTPS?_PROXY|https?_proxy .*charliecloud takes variables by its command"
    ):
        slurm_script(replace(AMD, runtime="charliecloud"), Job("j", "p", environment=site_environment(AMD)))


# ---------------------------------------------------------------------------- Grid Engine


def directives(text):
    """What qsub would read: every line of the file that begins with ``#$``."""
    return [line[3:] for line in text.splitlines() if line.startswith("#$")]


def test_qsub_reads_no_directive_out_of_what_the_site_or_the_job_say():
    site = replace(GRID, jobs="/jobs")
    with pytest.raises(ValueError, match="is a directive to the scheduler"):
        replace(site, prologue=("#$ -q evil.q",))
    job = Job("j", "#$ -q evil.q", ("#$ -q evil.q",), environment={"A": "#$ -q evil.q"}, **OWN)
    for runtime in ({}, {"runtime": "apptainer", "container": "/x.sif"}):
        assert "-q evil.q" not in directives(sge_script(replace(site, **runtime), job))
    with pytest.raises(ValueError, match="more than one line"):
        replace(job, environment={"A": "x\n#$ -q evil.q"})


def test_grid_engine_gets_a_shell_a_name_it_takes_and_an_account_as_the_site_says():
    told = directives(sge_script(replace(GRID, account="tga-course"), Job("2nd", "p", **OWN)))
    assert {"-S /bin/bash", "-N job-2nd", "-A tga-course", "-o /dev/null"} <= set(told)
    site = replace(GRID, account="tga-course", account_flag="-g")
    assert not any("tga-course" in line for line in directives(sge_script(site, Job("j", "p"))))
    assert submit_flags(site) == ["-g", "tga-course"]
    assert "qsub -g tga-course j.qsub" in sge_script(site, Job("j", "p"))


def test_what_a_directive_asks_for_is_filled_in():
    site = replace(GRID, cpus=64, directives=("-pe mpi {nnodes}", "-l gpu={gpus},slots={cpus}"))
    told = directives(sge_script(site, Job("j", "p", nnodes=3, nproc_per_node=2)))
    assert told[-2:] == ["-pe mpi 3", "-l gpu=2,slots=32"]


def test_elements_of_an_array_meet_at_ports_of_their_own():
    """All of them share JOB_ID: the very lines of the script, run as each of the elements."""
    text = SCRIPTS["grid.sge"]()
    lines = between(text, "export WORKSHOP_JOB=", "# The torchruns") + between(
        text, "low=", "\n# On every node"
    )
    seen = []
    for task in ("1", "2", "undefined"):
        shown = f"{lines}\necho $port $WORKSHOP_JOB.$WORKSHOP_JOB_TASK"
        seen.append(run(shown, JOB_ID="7", SGE_TASK_ID=task)[0].split())
    first = int(seen[0][0])
    assert seen == [[str(first), "7.0"], [str(first + 1), "7.1"], [str(first), "7.0"]]


def test_each_start_of_a_job_of_grid_engine_has_a_folder_of_its_own(tmp_path):
    """RESTARTED says 1 at the third start too."""
    text = sge_script(GRID, Job("j", "p", requeue=True, directory=str(tmp_path), folder="/"))
    lines = f"directory={tmp_path}\n" + between(text, "export WORKSHOP_JOB=", "# The torchruns")
    for start in range(3):
        run(f"{lines}\nexit {start}", JOB_ID="7", SGE_TASK_ID="undefined", RESTARTED=str(min(start, 1)))
    assert [(tmp_path / f"task_0/start_{n}/exit").read_text() for n in range(3)] == ["0\n", "1\n", "2\n"]
