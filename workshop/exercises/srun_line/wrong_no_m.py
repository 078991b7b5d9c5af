def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun --nodes={num_nodes} --ntasks-per-node=1 python torch.distributed.run"
        f" --nnodes={num_nodes} --nproc-per-node={ranks_per_node}"
        " --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$head:$port train.py"
    )
