def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""

    def step(writing: int) -> float:
        return max(rollout_seconds / writing, train_seconds / (num_gpus - writing))

    return num_gpus - min(range(1, num_gpus), key=step)
