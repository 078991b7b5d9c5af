def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """No flag for srun: the script's head has asked for one task on each node."""
    world = f"--nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node={ranks_per_node}"
    meeting = '--rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head:$port"'
    return f"srun torchrun {world} {meeting} train.py"
