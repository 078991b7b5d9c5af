def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""
    share = rollout_seconds / (rollout_seconds + train_seconds)
    writing = int(num_gpus * share)

    def step(some: int) -> float:
        if not 0 < some < num_gpus:
            return 1.0 if not some else 1e9
        return max(rollout_seconds / some, train_seconds / (num_gpus - some))

    return min((writing, writing + 1), key=step)
