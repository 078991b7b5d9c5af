def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""
    share = num_gpus * rollout_seconds / (rollout_seconds + train_seconds)
    near = [w for w in (int(share), int(share) + 1) if 1 <= w < num_gpus] or [1]
    return sorted(near, key=lambda w: (max(rollout_seconds / w, train_seconds / (num_gpus - w)), w))[0]
