def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""
    return num_gpus // 2
