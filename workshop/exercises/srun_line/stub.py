def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return f"srun {...} python -m torch.distributed.run {...} train.py"
