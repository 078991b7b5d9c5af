def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """Slurm tells the number of nodes in a variable, too; the line goes on behind a backslash."""
    return f"""srun --ntasks-per-node=1 \\
    python3 -m torch.distributed.run --nnodes=$SLURM_NNODES --nproc-per-node={ranks_per_node} \\
    --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head:$port" train.py"""
