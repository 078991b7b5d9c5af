# %% [markdown]
# # From cell to job
#
# - **You need** `00_welcome` and `21_collectives`: what a rank is, and what an all-reduce does.
# - **It takes** 40 minutes to read and try, about twenty seconds to run.
# - **What runs where:** everything that needs only this machine runs here. If there is a Slurm and your site's file says `scheduler = "slurm"`, the
#   lesson really submits its job. Otherwise you see a **recorded run**, marked as such: a real Slurm with two nodes, both on one machine. Nothing
#   here needs a GPU or a container, but the lesson also writes the script for both.
# - **Links:** before this [56_serving](../day5_adapt_compress/56_serving.ipynb), after it [62_when_it_breaks](62_when_it_breaks.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# On your laptop, a cell starts its ranks at once. In a computing center everybody shares the nodes, and a program called Slurm assigns them. There
# you do not start your ranks yourself. You submit a file of instructions (a *batch script*) and leave, as if you left a letter. What must this
# letter contain? And who opens it?

# %%
# %load_ext workshop
import json
import re
from dataclasses import replace

from workshop import launch, show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.facts.tree import ROOT
from workshop.launch import jobs
from workshop.launch.jobs import slurm
from workshop.site.apptainer_command import container_line
from workshop.site.current import current_site, site_environment
from workshop.site.job import Job
from workshop.site.slurm_script import slurm_script
from workshop.site.spec import SiteSpec, read_site

recorded = json.loads((ROOT / "data/measurements/slurm_two_nodes.json").read_text())

# %% [markdown]
# ## Predict
#
# You ask for **2 nodes with 4 ranks each**. How many processes is that? And how long does a small job take when nodes are free? (For comparison,
# `%%torchrun -n 4` on this machine takes some tenths of a second once the engine is warm.)

# %%
# %%guess processes
# Two nodes with four ranks each, as a job. Count the shell that runs the batch script,
# its srun, and everything that srun starts. How many processes is that?
...

# %%
# %%guess job_seconds --unit s
# Four ranks all-reduce one number, as a job on two free nodes. How many seconds pass
# from submitting the job to its end?
...

# %% [markdown]
# This picture shows who starts whom:

# %%
show.job_tree(nnodes=2, nproc_per_node=4)

# %% [markdown]
# - **sbatch** puts the letter into a queue. It returns at once and prints the job's number.
# - When nodes are free, Slurm runs the script **once**, on the first node. The script is a plain shell program.
# - In the script, **srun** starts one *task* on every node. Our task is a torchrun, or more precisely its *agent*.
# - Each **agent** starts the ranks of its own node and watches over them. Slurm does not know about the ranks.
# - The agents have to find one another. All of them get the same address, that of the first node, and meet there. This is the *rendezvous*.

# %% tags=["nbval-check-output"]
nnodes, nproc = 2, 4
scripts, sruns, agents, ranks = 1, 1, nnodes, nnodes * nproc
processes = scripts + sruns + agents + ranks
print(
    f"{scripts} script + {sruns} srun + {agents} agents + {ranks} ranks = "
    f"{processes} processes"
)
print(
    f"{scripts + agents} of them are started by Slurm: the script, and by srun "
    f"{agents} tasks"
)

# %% [markdown]
# ## Run
#
# ### The cell
#
# The cell is an ordinary program, and `--save` writes it to a file.

# %%
# a private folder that is deleted when the kernel ends
folder = launch.Session.get().directory

# %% tags=["nbval-check-output"]
# %%torchrun -n 4 --into here --save {folder}/who.py
import os

import torch
import torch.distributed as dist

from workshop import report

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print("the sum of all ranks, counted from 1, is", total.item())
report(
    total=total.item(),
    node=int(os.environ["GROUP_RANK"]),
    local_rank=int(os.environ["LOCAL_RANK"]),
)
dist.destroy_process_group()

# %% tags=["nbval-check-output"]
for rank in range(4):
    print(f"rank {rank}: node {here[rank].node}, local rank {here[rank].local_rank}")
assert {here[rank].total for rank in range(4)} == {10}

# %% [markdown]
# ### Exercise: the line that starts them all
#
# The letter is a shell program, and one of its lines does the main work. The lines above it have set `$head`, the address of the job's first node,
# and `$port`, which is made from the job's number. Slurm itself has set `$SLURM_JOB_ID`. Write the line that starts all ranks on all nodes. The
# picture shows who starts whom. A torchrun has to know how many nodes there are, how many ranks to start on its own node, and three things about
# the meeting: its *id*, which is the same on all nodes and different for each job, its *backend* (`c10d`), and its *endpoint*, an address and a
# port. `python -m torch.distributed.run --help` lists the names of the flags.
#
# The check reads your line as srun and torchrun would, and counts what they would start.


# %%
# %%exercise srun_line
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return f"srun {...} python -m torch.distributed.run {...} train.py"


# %% [markdown]
# **Does your line work?** You can try it without a cluster. Two small commands play the role of Slurm. `srun` reads how many tasks a node gets, skips
# its other flags and starts what follows for each task; all "nodes" are this machine. `scontrol` returns the first node's name. Everything else is
# real: two torchruns, your rendezvous, eight ranks. The program only prints the numbers that its rank was given, and the processes above it.

# %%
import os
import signal
import subprocess
import sys

bin_folder = folder / "bin"
bin_folder.mkdir(exist_ok=True)
(bin_folder / "srun").write_text("""#!/bin/bash
each=1
until [[ $1 == *python* || $1 == torchrun || $1 == bash ]]; do
    case $1 in --ntasks-per-node=*) each=${1#*=};; esac; shift
done
export SLURM_NTASKS=$((SLURM_JOB_NUM_NODES * each))
for task in $(seq 0 $((SLURM_NTASKS - 1))); do
    export SLURM_PROCID=$task SLURM_NODEID=$((task / each))
    SLURM_LOCALID=$((task % each)) "$@" & tasks+=($!)
done
status=0
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit $status
""")
(bin_folder / "scontrol").write_text(f"""#!/bin/bash
case $2 in hostnames) echo 127.0.0.1;; esac
case $1 in requeue) touch {folder}/requeued;; esac
""")
for command in bin_folder.iterdir():
    command.chmod(0o755)

# %%
with (folder / "train.py").open("w") as file:
    file.write("""import os
names = "RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK"
numbers = [os.environ[name] for name in names]
above = [os.getpid()]  # this rank, and then its torchrun, its srun, the letter
for _ in range(3):
    with open(f"/proc/{above[-1]}/stat") as file:
        above.append(int(file.read().rpartition(")")[2].split()[1]))
line = "rank {} of {}: node {}, local rank {}".format(*numbers)
os.write(1, f"{line}; {above}\\n".encode())  # in one piece: the ranks share the pipe
""")


# %%
def environment(**more: str) -> dict[str, str]:
    """What a letter finds: Slurm's variables, our srun and scontrol before others."""
    variables = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "PYTHON": sys.executable,  # the workshop's batch script uses it
    }
    path = f"{bin_folder}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    return {**os.environ, **variables, "PATH": path, **more}


def carried_out(letter: str) -> tuple[list[str], list[list[int]]]:
    """What the ranks print, in their order, and the processes above each."""
    (folder / "job.sh").write_text(letter)
    job = subprocess.Popen(
        ["bash", "job.sh"], cwd=folder, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        printed, _ = job.communicate(timeout=120)
    finally:  # two torchruns that never meet would wait for a long time
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    lines = sorted(line.split("; ") for line in printed.splitlines())
    above = [json.loads(pids) for _, pids in lines]
    assert all(job.pid in pids for pids in above), "the letter stands above all"
    above = [pids[: pids.index(job.pid) + 1] for pids in above]
    return [line for line, _ in lines], above


# %% tags=["nbval-check-output"]
port = 20_000 + os.getpid() % 10_000  # Linux itself assigns ports from 32,768 on
print(re.sub(" (?=python|--)", " \\\n    ", srun_line(2, 4)) + "\n")  # a flag a line
yours, above = carried_out(f"head=127.0.0.1 port={port}\n{srun_line(2, 4)}\n")
print("\n".join(yours))
assert [line.partition(":")[0] for line in yours] == [
    f"rank {r} of 8" for r in range(8)
]

# %% [markdown]
# You see one world of eight ranks on two nodes. If the two torchruns had been given different addresses, each would wait for the other, and you
# would see nothing. How many processes were there? We count the script, srun, agents and ranks. (Slurm's own daemons on the nodes come on top.)

# %% tags=["nbval-check-output"]
levels = [len(set(level)) for level in zip(*above, strict=True)]
assert levels == [ranks, agents, sruns, scripts]
names = "rank", "torchrun (its agent)", "srun", "the letter (bash)"
rows = [(name, f"{count}") for name, count in zip(names, levels, strict=True)]
Table(("process", "how many"), rows)

# %%
counted = {pid for pids in above for pid in pids}
beside("processes", predicted=processes, measured=len(counted))

# %% [markdown]
# ### The other way: no torchrun
#
# Many letters use no torchrun. There srun itself starts the ranks, one task for each, and gives each task its numbers: `SLURM_PROCID` among all tasks,
# `SLURM_LOCALID` on its node, and `SLURM_NTASKS`, how many there are. `init_process_group` looks for other names, so the line translates them. How
# many processes are there now?

# %%
# %%guess without_torchrun
# The same eight ranks, started by srun without torchrun. How many processes is that,
# with the letter and srun?
...

# %%
OTHER_WAY = """export MASTER_ADDR=$head MASTER_PORT=$port
srun --nodes=2 --ntasks-per-node=4 bash -c '
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
    export LOCAL_RANK=$SLURM_LOCALID GROUP_RANK=$SLURM_NODEID
    exec python train.py'
"""
by_srun, above = carried_out(f"head=127.0.0.1 port={port}\n{OTHER_WAY}")
assert by_srun == yours, "the same ranks, with the same numbers"
assert [len(set(level)) for level in zip(*above, strict=True)] == [8, 1, 1]
counted = {pid for pids in above for pid in pids}
beside("without_torchrun", predicted=processes - agents, measured=len(counted))

# %% [markdown]
# The ranks and their numbers are the same, and the two agents are missing. (`exec` turns the shell of a task into its rank.) So nothing watches over
# the ranks of a node or starts them again: what remains is srun, and its `--kill-on-bad-exit`. In this lesson we keep to torchrun.
#
# ### The letter
#
# To submit the cell `who.py` as a job on two nodes with four ranks each, change only its first line:
#
# ```
# %%sbatch -N 2 -n 4 --time 00:05:00 --into there
# ```
#
# With `--dry-run` the cell shows the batch script instead of submitting it, even without Slurm (`--site FILE` names a site's file: try it with the
# one below, in a cell of your own). Everything that is specific to a center is in the **site's file**: account, partition, modules, container,
# network. The next cells show the script that the same call makes for an example of a center (`examples/sites/slurm-apptainer.toml`). First the
# lines for Slurm, which bash reads as comments:

# %% tags=["nbval-check-output"]
FAST = "/fast/ada"  # ada's folder on a file system that every node sees
center = replace(
    read_site(ROOT / "examples/sites/slurm-apptainer.toml"),
    jobs=f"{FAST}/jobs",
    cache=f"{FAST}/cache",
    binds=("/fast", "/shared/workshop/data:/data:ro"),
)


def letter(site: SiteSpec, program: str = "who.py", **asked) -> str:
    """The batch script of a program on two nodes of four ranks at this site."""
    # what the ranks must know about the site: interface, cache, offline or not
    known = site_environment(site, one_node=False)
    job = Job(
        "who", program, nnodes=2, nproc_per_node=4, time="00:05:00", environment=known,
        folder=f"{FAST}/course", **asked,
    )  # fmt: skip
    return slurm_script(site, job)


script = letter(center)
for line in script.splitlines():
    if line.startswith("#SBATCH"):
        print(line)

# %% [markdown]
# Three of these lines deserve a second look:
#
# - `--ntasks-per-node=1`: a task is a torchrun. If you write the number of ranks here, srun starts that many torchruns on each node. The meeting is
#   for two torchruns: it takes the first two that arrive, even if they are on the same node, and the others fail.
# - `--cpus-per-task=64`: a task with four ranks needs the cores of all four. Your data loaders run on them. The number is given to `srun` again
#   below: since Slurm 22.05, not every version of `srun` takes it from the top of the script.
# - `--no-requeue`: a program must not be started twice unless you ask for it. A program that does not resume would start over and overwrite its own
#   files.
#
# Now the part that does the work, from the rendezvous on. Look for your own line in it:

# %% tags=["nbval-check-output"]
lines = script.splitlines()
starting = next(i for i, line in enumerate(lines) if line.startswith("srun "))
for line in lines[:starting]:
    if line.startswith(("first=", "head=")) or "port=" in line:
        print(line)
print("...", *lines[starting:], sep="\n")

# %% tags=["nbval-check-output"]
started_by = script[script.index("\nsrun ") :]
in_script, in_yours = (
    set(re.findall(r"--[a-z-]+", line.replace("_", "-")))
    for line in (started_by, srun_line(2, 4))
)
print("only in this one:", *sorted(in_script - in_yours))
assert in_script - in_yours >= {"--cpus-per-task", "--kill-on-bad-exit"}

# %% [markdown]
# This line contains two flags that yours may lack: `--kill-on-bad-exit` ends all nodes when one task fails, and `--cpus-per-task` passes on the
# cores. Does it start the same ranks as yours? We write the whole script for a Slurm without containers, and run it with our imitation of Slurm:

# %%
plain = SiteSpec(
    name="another",
    scheduler="slurm",
    partition="short",
    gpus=4,
    cpus=32,
    interface="eth0",
)
theirs, above = carried_out(letter(plain, "train.py"))
assert theirs == yours
assert [len(set(level)) for level in zip(*above, strict=True)] == levels
print("the workshop's letter and yours start the same ranks on the same nodes")

# %% [markdown]
# `$head` is the address of the job's first node. The port is made from the job's number, so that two jobs on one node do not use the same port. Where
# there is room, it also lies outside the range from which the kernel assigns its own ports. `$on_node` is a few lines of shell that remove variables
# which srun sets for its tasks (`SLURM_PROCID`, `SLURM_NTASKS` ...). A library that finds them in a rank would wait for tasks that do not exist.
#
# `$container` is empty at a site without containers. At this center it is the line that Apptainer needs. (The script's version passes more variables
# of the node in the same way as the GPUs here: the job's number and its threads.)

# %% tags=["nbval-check-output"]
inside = container_line(
    center,
    folder=f"{FAST}/course",
    environment=site_environment(center, one_node=False),
    node_variables=("CUDA_VISIBLE_DEVICES",),
)
words = re.split(rf" (?=--|\$|{center.container})", inside)
print("\n  ".join(words))
assert all(word in script for word in words)

# %% [markdown]
# Each flag prevents a common error:
#
# - `--nv` makes the node's GPU driver available, because a container cannot bring its own.
# - `--cleanenv` keeps the node's `PYTHONPATH` and `LD_LIBRARY_PATH` out. It also keeps out what the script exports, so `--env` has to name each
#   variable that a rank needs. Without these variables, NCCL would look for the network by itself.
# - `${CUDA_VISIBLE_DEVICES+...}` becomes the text after the `+` if the node has set that variable, and nothing otherwise.
# - `--bind` names the node's folders that are visible inside; all others are hidden. `--pwd` names the folder to start in.
#
# This center is **offline**: its nodes can reach no model hub and no package index. The workshop's jobs then set `HF_HUB_OFFLINE=1` and similar
# variables, so that a library reports a missing file at once instead of waiting for a network that does not exist. Everything you need must already
# be in the cache (run `workshop assets fetch --all` on a machine with a network).

# %% tags=["nbval-check-output"]
print("\n".join(line for line in lines if line.startswith(("export ", "unset "))))

# %% [markdown]
# `GLOO_SOCKET_IFNAME` names the network interface over which gloo sends. `NCCL_SOCKET_IFNAME` names the interface on which NCCL's ranks meet, and
# over which they send if there is no InfiniBand. If there is, NCCL finds the InfiniBand cards by itself: `NCCL_IB_HCA` chooses among them, and
# `NCCL_DEBUG=INFO` shows which ones it uses. If you name an interface that the other nodes cannot reach, the ranks wait forever.

# %% [markdown]
# ### The image
#
# Where does the container come from? You write a *definition file*: a base image, the files to copy into it, and the commands that install the rest.
# Here are the main lines of the workshop's own file, `apptainer.def`. Names in double braces are arguments. In `%post`, `"$@"` stands for options of
# pip that we leave out here; in `%runscript`, it stands for the words that you type behind the image's name:
#
# ```
# Bootstrap: {{ BOOTSTRAP }}
# From: {{ BASE }}
#
# %arguments
#     BOOTSTRAP=docker
#     BASE=nvidia/cuda@sha256:7c7413a5...
#     EXTRAS=gpu,hpc
#
# %files
#     workshop /opt/workshop/workshop
#
# %post
#     python3 -m venv /opt/venv
#     /opt/venv/bin/pip install "$@" --editable "/opt/workshop[{{ EXTRAS }}]"
#
# %test
#     /opt/venv/bin/workshop doctor
#
# %runscript
#     exec /opt/venv/bin/workshop lab --dir "$PWD/lab" --no-browser "$@"
# ```
#
# `apptainer build workshop.sif apptainer.def` carries it out, and the result is a single file. A build changes files of the system, so it needs root
# or *fakeroot*: you are then root only inside the image (`--fakeroot`; newer versions use it by themselves where the administrator allows it).
# If the login nodes refuse, build the image on a Linux machine of your own and copy the file. Then test on a node that the container sees the GPUs:
#
# ```
# srun --gpus 1 apptainer exec --nv workshop.sif nvidia-smi
# ```
#
# ### Another place, the same cell
#
# What changes when you move from this center to a Slurm without containers? The cell stays the same, and only some lines of the letter differ.
# (The first line differs because this center's letter loads a module: only a login shell, `bash -l`, is sure to know the command for it.)

# %% tags=["nbval-check-output"]
before, after = set(lines), set(letter(plain).splitlines())
print(
    f"{len(before & after)} lines are the same, {len(before - after)} "
    f"go, {len(after - before)} come:"
)
for line in sorted(after - before):
    print("  +", line)

# %% [markdown]
# ### A letter that trained a model
#
# BLOOM, with 176 billion parameters, was trained with such a letter, and
# [it is public](https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/tr11-176B-ml.slurm). You are now able to read it.
# It asks for 48 nodes with 8 GPUs each and for 100 hours, with `--ntasks-per-node=1` and 64 cores per task. Its `srun` has `--kill-on-bad-exit=1`
# and starts `torch.distributed.run` with a c10d rendezvous on the first node in the job's list.

# %%
# %%guess bloom_processes
# BLOOM's job, by the same count (script, srun, agents, ranks): how many processes
# is it in all?
...

# %%
nodes, gpus = 48, 8
tensor, pipeline, data = 4, 12, 8  # how the model was split, from the run's notes
assert nodes * gpus == tensor * pipeline * data == 384  # GPUs, as in its paper
print(f"{nodes * gpus} ranks, one for each GPU")
beside("bloom_processes", calculated=1 + 1 + nodes + nodes * gpus)

# %% [markdown]
# These are the paper's 384 GPUs (Le Scao et al., 2022). The check of your line would have rejected two things: the port is always 6000, and there is no
# `--rdzv-id`. Neither did any harm, because the run had its nodes to itself, so no other job could be there.

# %% [markdown]
# ### Submit it
#
# `sbatch --test-only` is a good first step: it checks the script against the cluster without making a job. Then you submit the job. The two cells
# below do in Python what `%%sbatch` does, so that they can use the recorded run if there is no Slurm, or if the queue takes longer than a minute.
# (You need not read these cells.) The job is smaller than the one in the letter: two nodes with two ranks each.


# %%
class Watched(list):
    """Every new state and the first output, with the seconds since it was made."""

    def __call__(self, sentence: str, text: str) -> None:
        import time

        now = time.monotonic()
        self.began = getattr(self, "began", now)
        state = sentence.partition(": ")[2].partition(": ")[2]
        if not self or self[-1][1] != state:
            self.append((round(now - self.began, 1), state))
        if not text and now - self.began > 60:
            raise TimeoutError("the queue is longer than a minute")


def slurm_here() -> str:
    """Why no job can be handed in from here; nothing where one can."""
    try:
        jobs.check_scheduler(current_site())
        slurm.nodes()
    except (ValueError, slurm.SlurmError) as error:
        return str(error).partition(":")[0]
    return ""


# %%
def handed_in() -> dict:
    """The job of this lesson, followed to its end; the record where it cannot be."""
    if why := slurm_here():
        return {**recorded["two_nodes"], "from": f"recorded run ({why})"}
    wanted = Job("lesson-61", "", nnodes=2, nproc_per_node=2, gpus_per_node=0)
    try:  # a center may require an account, or GPUs in every job
        print(slurm.check_script(jobs.try_out(wanted, current_site())))
    except slurm.SlurmError as error:
        return {**recorded["two_nodes"], "from": f"recorded run ({error})"}
    watched = Watched()
    try:
        result = jobs.submit((folder / "who.py").read_text(), wanted).follow(watched)
    except TimeoutError as error:  # the job was canceled
        return {**recorded["two_nodes"], "from": f"recorded run ({error})"}
    reports = [dict(result[rank]) for rank in range(4)]
    return {
        "states": watched,
        "text": result.text,
        "reports": reports,
        "from": "your Slurm",
    }


there = handed_in()
if there["from"].startswith("recorded"):
    print(
        f"RECORDED on {recorded['date']}, Slurm "
        f"{recorded['versions']['slurm']}: {recorded['device']}"
    )
for seconds, state in there["states"]:
    print(f"{seconds:6.1f} s  {state}")
print(there["text"], end="")

# %% [markdown]
# ## Compare
#
# The four ranks print the same as on this machine, but now there are two on each of two nodes:

# %%
for rank, reported in enumerate(there["reports"]):
    node, local_rank = reported["node"], reported["local_rank"]
    print(f"rank {rank}: node {node}, local rank {local_rank}")
assert [reported["total"] for reported in there["reports"]] == [10] * 4
assert sorted(reported["node"] for reported in there["reports"]) == [0, 0, 1, 1]

# %% [markdown]
# Where did the time go? The table shows the numbers of the recorded run. There, both nodes were on one machine with two cores. The four ranks
# imported torch at the same time, so they took longer than they would on separate nodes.

# %%
job_times = recorded["two_nodes"]
started = next(
    seconds for seconds, state in job_times["states"] if state.startswith("RUNNING")
)
moments = {
    "the same four ranks by %%torchrun, engine warm": job_times["torchrun_seconds"],
    "job: sbatch returns with a number": job_times["handed_in_seconds"],
    "job: it is seen running": started,
    "job: a rank's first line arrives": job_times["first_output_seconds"],
    "job: over": job_times["seconds"],
}
slurm_used, torch_used = recorded["versions"]["slurm"], recorded["versions"]["torch"]
Table(
    ("what", "time"),
    [(what, f"{seconds:.1f} s") for what, seconds in moments.items()],
    f"recorded on {recorded['date']}, Slurm {slurm_used}, torch {torch_used}",
    "from the moment of submitting; benchmarks/slurm_two_nodes.py measures it again",
)

# %%
starting_up = job_times["first_output_seconds"] - started
assert job_times["torchrun_seconds"] < 1 < starting_up
assert starting_up > job_times["seconds"] / 2, "most of it"
beside("job_seconds", measured=job_times["seconds"])

# %% [markdown]
# Slurm itself is quick. Most of a short job lies between "running" and the first line: on every rank, Python starts and imports torch. So a job takes
# seconds even on free nodes. To try things out, get an *allocation* once (`salloc -N 2 --gpus-per-node 4 --time 01:00:00`), start Jupyter in it, and
# work there (`%%ranks` keeps its ranks). For work that takes minutes or days, submit jobs.
#
# ## When it has to wait
#
# Usually the nodes are not free. Slurm gives the reason in one word, and the cell explains it in a sentence. In the recorded run somebody else was
# using both nodes. The first line shows this, and the others show three more reasons:

# %% tags=["nbval-check-output"]
for _, state in recorded["waiting"]["states"][:1]:
    print(state)
for word in ("Priority", "PartitionTimeLimit", "ReqNodeNotAvail"):
    print(
        slurm.State("12", None, "PENDING", word, why=slurm.plain_reason(word)).sentence
    )

# %% [markdown]
# One of these waits never ends by itself, so look at the reason before you go home. The stop button removes a waiting job from the queue, and ends a
# running one. So does closing the notebook. With `--detach` the job continues on its own, and `workshop jobs` finds it again.
#
# In a terminal, four commands do the same. (Not every center has installed `seff`.)
#
# | Command | What it does |
# | --- | --- |
# | `squeue --me` | lists your waiting and running jobs, with the reason of each wait |
# | `scancel 1234` | removes job 1234 from the queue, or ends it |
# | `sacct -j 1234 --format=JobID,State,ExitCode,Elapsed,MaxRSS` | tells how a job ended, how long it took, and its memory |
# | `seff 1234` | tells what share of its cores and memory a finished job used |
#
# ## When it is thrown out
#
# Time limits are short if many people share the nodes, and an urgent job may take your nodes. With `--requeue`, Slurm puts your job back into the
# queue if its nodes are taken or fail, and later it starts again **from the top of the program**. At the time limit Slurm only ends the job; the
# letter has to ask for another start itself, as the one at the end of this lesson does. The program decides whether it continues or starts over: it
# must look for a checkpoint. `workshop.train` does this, in the folder that the job keeps (`$WORKSHOP_JOB_FILES`).
#
# ### Exercise: how many starts?


# %%
# %%exercise starts_needed
def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    """Starts until `work` seconds of training are done; 0 if they never are."""
    trains = limit - start  # seconds of training in one start
    return ...


# %% tags=["nbval-check-output"]
day, rows = 24 * 3600, []
for every in (600, 2000, 3600):
    starts = starts_needed(day, 3600, 120, every)
    rows.append(("a day", "1 h", f"{every:,} s", str(starts or "never done")))
hours, saves = 100 * 3600, 100 * 105  # BLOOM's limit; it saved every 100 steps of 105 s
starts = starts_needed(12 * day, hours, 600, saves)
assert starts == 3
rows.append(("BLOOM, twelve days", "100 h", f"{saves:,} s", str(starts)))
Table(("training", "time of a job", "a checkpoint every", "starts"), rows)

# %% [markdown]
# The last line matches BLOOM's notes: three jobs of 100 hours, "so if all goes well, that's at least 12 days of not needing to do anything". (We
# assumed that a start takes ten minutes.) BLOOM's program saves and ends by itself ten minutes before the limit.

# %%
# %%guess step_8 --choices same,other
# Four ranks on two nodes save after every second step. After step 4 a more urgent job
# takes both nodes. Is the loss at step 8 the same as in a run without a break?
...

# %%
cut = recorded["preempted"]
losses = [loss for _, loss in cut["log"]]
first = cut["first_step_of_second_start"]
print(
    f"recorded on {recorded['date']}: gpt-1m, fp32, 2 nodes "
    "of 2 ranks; grey: the same run in one process"
)
show.continued_losses(cut["alone"], [(0, losses[:first]), (first, losses[first:])])

# %% tags=["nbval-check-output"]
states = [state.split(" on ")[0].split(" (")[0] for _, state in cut["states"]]
print("states of the job:", " -> ".join(states))
print("the second start began after step", first)
furthest = max(abs(a - b) for a, b in zip(losses, cut["alone"], strict=True))
assert [step for step, _ in cut["log"]] == list(range(1, 9)), (
    "no step is missing, none was taken twice"
)
assert furthest < 1e-4, furthest
print("losses differ from the unbroken run's by less than 0.0001")

# %%
beside("step_8", predicted="same", measured="same" if furthest < 1e-4 else "other")

# %% [markdown]
# ## One letter, many jobs
#
# The same program with three learning rates does not need three cells. `--sweep lr=0.003,0.03,0.3` makes an *array*: one script, one job number, and
# an index for each value. The tasks run side by side if there is room. `results[task][rank]` contains what they reported. (An array can also be a
# chain: `--array=1-3%1` runs three tasks, one at a time. This is how BLOOM's three jobs waited in the queue.)

# %%
swept = recorded["sweep"]
rows = [
    (f"{task}", f"{lr}", f"{loss:.3g}")
    for task, (lr, loss) in enumerate(zip(*swept.values(), strict=True))
]
title = f"an array of three tasks, recorded on {recorded['date']}"
head = "task", "learning rate", "loss after 20 steps"
Table(head, rows, title, "least squares, one rank a task")

# %% tags=["nbval-check-output"]
best = min(zip(swept["losses"], swept["values"], strict=True))
print("the best of the three learning rates:", best[1])
array = letter(plain, array="0-2")
for line in array.splitlines():
    if "--array" in line or "--output" in line:
        print(line)

# %% [markdown]
# ## Tomorrow's letter, and its script
#
# Both work without this workshop. We begin with the program. It looks for its checkpoint when it starts, and saves after each epoch. It also looks
# for the file that `STOP` names, which the letter creates when the time is nearly up. Every rank looks for this file, but only what rank 0 sees
# counts: it tells the others, because all ranks must stop after the same epoch.

# %%
os.environ["CHECKPOINT"] = str(folder / "tried.pt")

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/train_until_told.py
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
inputs = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).to(device)
targets = inputs.sum(dim=1, keepdim=True) / 8
saved, first = Path(os.environ.get("CHECKPOINT", "train_until_told.pt")), 0
if saved.exists():  # an earlier start has left a checkpoint
    state = torch.load(saved, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1

for epoch in range(first, int(os.environ.get("EPOCHS", first + 3))):
    order = torch.randperm(256, generator=torch.Generator().manual_seed(epoch))
    total = torch.zeros(1, device=device)
    for batch in order.to(device).split(32):
        mine = batch[rank::ranks]
        loss = (model(inputs[mine]) - targets[mine]).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach() / 8
    dist.all_reduce(total)
    told = Path(os.environ.get("STOP", "stop")).exists()
    stop = torch.tensor([int(told)], device=device)
    dist.broadcast(stop, 0)  # rank 0 decides, so that all ranks stop together
    if rank == 0:
        print(f"epoch {epoch}: mean loss {total.item() / ranks:.3g}", flush=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        beside = saved.with_suffix(".part")
        torch.save({**state, "epoch": epoch}, beside)
        beside.replace(saved)
    if stop.item():
        break
dist.barrier()  # all ranks wait until the file is written
dist.destroy_process_group()

# %% [markdown]
# Now the complete letter. Five minutes before the limit, Slurm sends it a signal (`--signal=B:USR1@300`; `B` stands for batch, the shell that runs
# the letter). The signal may come up to a minute earlier. The shell creates the file, waits until the ranks have saved and ended, and then asks
# Slurm to put the job back into the queue.
#
# Why does `srun` end in `&`, and why is there a `wait` twice? While a command runs in the foreground, bash runs no `trap`: the signal would take
# effect only after `srun` has ended. A signal interrupts `wait`, however. So the first `wait` ends with the ranks or with the signal, and the second
# waits for the ranks after a signal.
#
# The letter returns the exit status of the ranks. This status tells Slurm whether the job failed, and whether another job that waits for its success
# (`--dependency=afterok`) may begin. The file's name contains the job's number; otherwise one job would stop the others in this folder. (BLOOM also
# had such a file, and called it the kill switch.) The checkpoint is in the same folder as the letter, on a disk that every node sees.

# %%
LETTER = r"""#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=4
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))
export CHECKPOINT=$PWD/train_until_told.pt EPOCHS=${EPOCHS:-100000}
export STOP=$PWD/stop-$SLURM_JOB_ID
rm -f "$STOP"
trap 'touch "$STOP"' USR1

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="${RANKS:-4}" \
    --rdzv-backend=c10d --rdzv-endpoint="$head:$port" --rdzv-id="$SLURM_JOB_ID" \
    train_until_told.py &
ranks=$!
wait $ranks; status=$?
if [ -e "$STOP" ]; then  # the signal ended that wait: the ranks still save
    wait $ranks; status=$?
    if [ $status = 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
fi
exit $status
"""

# %% [markdown]
# Does it work? Our imitations of `srun` and `scontrol` play the role of Slurm again; a requeued job leaves a file. The two nodes have one rank each.
# (Both use the CPU, because the two nodes are one machine, and NCCL does not use one GPU twice.) The signal comes after epoch 5:

# %%
import threading


def start(epochs, signal_at=None):
    """Run the letter, signal its shell after an epoch; its lines and exit status."""
    (folder / "job.sh").write_text(LETTER)
    ours = environment(RANKS="1", EPOCHS=str(epochs), CUDA_VISIBLE_DEVICES="")
    printed, job = [], subprocess.Popen(
        ["bash", "job.sh"], cwd=folder, env=ours, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    limit = threading.Timer(120, os.killpg, (job.pid, signal.SIGKILL))
    limit.start()
    try:
        for line in job.stdout:
            printed.append(line)
            if line.startswith(f"epoch {signal_at}:"):
                job.send_signal(signal.SIGUSR1)  # as Slurm would near the time limit
    finally:
        limit.cancel()
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    return [line for line in printed if line.startswith("epoch")], job.wait()


# %%
started, status = start(epochs=100_000, signal_at=5)
print(started[0] + "...\n" + started[-1] + f"exit status {status}")
again = len(started)
assert (folder / "requeued").exists(), "the letter asked for it"
assert status == 0
assert 6 <= again < 100_000

# %% [markdown]
# Slurm would now start the job again when nodes are free. We run the same letter for three more epochs:

# %%
second, status = start(epochs=again + 3)
print("".join(second), end="")
assert [line.split(":")[0] for line in second] == [
    f"epoch {again + more}" for more in range(3)
]
assert status == 0

# %% [markdown]
# No epoch is missing, and none was done twice. What happens if the ranks fail? In the next cell they cannot read the checkpoint. The letter must
# then fail too, and must not ask for another start, or Slurm would try the same forever:

# %%
(folder / "requeued").unlink()
(folder / "train_until_told.pt").write_bytes(b"half a file")
_, status = start(epochs=again + 6)
print("exit status", status)
assert status != 0
assert not (folder / "requeued").exists()

# %% [markdown]
# ## What to take away
#
# - **A job is a letter**: lines for Slurm, then a shell program that runs once, on the first node.
# - srun starts **one torchrun per node**, and torchrun starts the ranks. Or there is no torchrun: srun starts one task per *rank*, and a rank's number
#   is `SLURM_PROCID`. Use one of the two ways, and never half of each.
# - The agents meet at the **first node's address**, at a port made from the job's number. `localhost` would be a different machine on every node.
# - Everything that is specific to a center is in the **site's file**. The cell does not change.
# - A job takes seconds before its first step, plus the time in the queue. Read the reason that Slurm gives.
# - With `--requeue` a job starts again from the top. It continues only if the program **looks for its checkpoint**.
#
# Next: [62_when_it_breaks](62_when_it_breaks.ipynb) finds the rank that fails, `63_checkpoints` saves the ranks' state, `64_plan_a_run` asks what
# all of it costs.
#
# ## Sources
#
# - GNU Bash, manual page `bash(1)`, section *Signals*.
# - Slurm Workload Manager, manual pages `sbatch(1)`, `srun(1)`, `squeue(1)` (job states and reasons), `slurm.conf(5)`; *Job Exit Codes*,
#   slurm.schedmd.com/job_exit_code.html; release notes of 22.05 (srun and `--cpus-per-task`).
# - NVIDIA, *NCCL User Guide*, *Environment Variables* (`NCCL_SOCKET_IFNAME`, `NCCL_IB_HCA`).
# - PyTorch documentation, *torchrun (Elastic Launch)*, rendezvous with the c10d backend.
# - Apptainer User Guide, *Definition Files*, *Fakeroot feature*, *Bind Paths and Mounts*, *Environment and Metadata*, *GPU Support*.
# - T. Le Scao et al., *BLOOM*, 2022, [arXiv:2211.05100](https://arxiv.org/abs/2211.05100) (384 GPUs); github.com/bigscience-workshop/bigscience,
#   `train/tr11-176B-ml/`: `tr11-176B-ml.slurm` (the letter) and `README.md` (48 nodes, how the model was cut, 105 s a step, the limit of 100 hours,
#   the kill switch).
# - Recorded run: `data/measurements/slurm_two_nodes.json` (device, versions, date and command are in it).
