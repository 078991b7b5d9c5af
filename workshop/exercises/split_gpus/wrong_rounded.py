def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""
    share = rollout_seconds / (rollout_seconds + train_seconds)
    return min(max(1, round(num_gpus * share)), num_gpus - 1)
