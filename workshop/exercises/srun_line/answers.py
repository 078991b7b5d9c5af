# %% other: short_flags
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    launcher = f"srun -N {num_nodes} -n {num_nodes} --ntasks-per-node 1"
    world = f"--nnodes {num_nodes} --nproc_per_node {ranks_per_node}"
    meeting = "--rdzv_backend c10d --rdzv_endpoint ${head}:${port} --rdzv_id ${SLURM_JOB_ID}"
    return f"{launcher} python -m torch.distributed.run {world} {meeting} train.py"


# %% other: the_jobs_own_number
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """Slurm tells the number of nodes in a variable, too; the line goes on behind a backslash."""
    return f"""srun --ntasks-per-node=1 \\
    python3 -m torch.distributed.run --nnodes=$SLURM_NNODES --nproc-per-node={ranks_per_node} \\
    --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head:$port" train.py"""


# %% other: torchrun
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """No flag for srun: the script's head has asked for one task on each node."""
    world = f"--nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node={ranks_per_node}"
    meeting = '--rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head:$port"'
    return f"srun torchrun {world} {meeting} train.py"


# %% wrong: a_task_for_each_rank
# message: A task is a torchrun: one on each node
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun --nodes={num_nodes} --ntasks-per-node={ranks_per_node} python -m torch.distributed.run"
        f" --nnodes={num_nodes} --nproc-per-node={ranks_per_node}"
        " --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$head:$port train.py"
    )


# %% wrong: as_many_tasks_as_ranks
# message: srun starts 8 torchruns, and each of them 4 ranks
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun -N{num_nodes} -n{num_nodes * ranks_per_node} python -m torch.distributed.run"
        f" --nnodes={num_nodes} --nproc-per-node={ranks_per_node}"
        " --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$head:$port train.py"
    )


# %% wrong: no_nnodes
# message: 2 worlds that do not know
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun --nodes={num_nodes} --ntasks-per-node=1 python -m torch.distributed.run"
        f" --nproc-per-node={ranks_per_node}"
        " --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$head:$port train.py"
    )


# %% wrong: everybody_meets_at_home
# message: localhost is a different machine on every
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun --nodes={num_nodes} --ntasks-per-node=1 python -m torch.distributed.run"
        f" --nnodes={num_nodes} --nproc-per-node={ranks_per_node}"
        " --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=localhost:$port train.py"
    )


# %% wrong: a_fixed_port
# message: the port 29500 is fixed
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun --nodes={num_nodes} --ntasks-per-node=1 python -m torch.distributed.run"
        f" --nnodes={num_nodes} --nproc-per-node={ranks_per_node}"
        " --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$head:29500 train.py"
    )


# %% wrong: all_ranks_on_each_node
# message: torchrun starts 8 ranks on a node; wanted 4
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun --nodes={num_nodes} --ntasks-per-node=1 python -m torch.distributed.run"
        f" --nnodes={num_nodes} --nproc-per-node={num_nodes * ranks_per_node}"
        " --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$head:$port train.py"
    )


# %% wrong: no_backend
# message: does not contain --rdzv-backend=c10d
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun --nodes={num_nodes} --ntasks-per-node=1 python -m torch.distributed.run"
        f" --nnodes={num_nodes} --nproc-per-node={ranks_per_node}"
        " --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$head:$port train.py"
    )


# %% wrong: an_id_that_all_jobs_share
# message: one job's torchruns from another's
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun --nodes={num_nodes} --ntasks-per-node=1 python -m torch.distributed.run"
        f" --nnodes={num_nodes} --nproc-per-node={ranks_per_node}"
        " --rdzv-id=train --rdzv-backend=c10d --rdzv-endpoint=$head:$port train.py"
    )


# %% wrong: each_node_alone
# message: --standalone makes each torchrun meet at its own node
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun --nodes={num_nodes} --ntasks-per-node=1 python -m torch.distributed.run"
        f" --standalone --nnodes={num_nodes} --nproc-per-node={ranks_per_node}"
        " --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$head:$port train.py"
    )


# %% wrong: no_m
# message: without -m, python looks for a file
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun --nodes={num_nodes} --ntasks-per-node=1 python torch.distributed.run"
        f" --nnodes={num_nodes} --nproc-per-node={ranks_per_node}"
        " --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$head:$port train.py"
    )
