def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    launcher = f"srun -N {num_nodes} -n {num_nodes} --ntasks-per-node 1"
    world = f"--nnodes {num_nodes} --nproc_per_node {ranks_per_node}"
    meeting = "--rdzv_backend c10d --rdzv_endpoint ${head}:${port} --rdzv_id ${SLURM_JOB_ID}"
    return f"{launcher} python -m torch.distributed.run {world} {meeting} train.py"
