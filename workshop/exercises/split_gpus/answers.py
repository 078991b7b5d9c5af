# %% other: by_share
def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""
    share = num_gpus * rollout_seconds / (rollout_seconds + train_seconds)
    near = [w for w in (int(share), int(share) + 1) if 1 <= w < num_gpus] or [1]
    return sorted(near, key=lambda w: (max(rollout_seconds / w, train_seconds / (num_gpus - w)), w))[0]


# %% wrong: in_turns
# message: one after the other
def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""

    def step(writing: int) -> float:
        return rollout_seconds / writing + train_seconds / (num_gpus - writing)

    return min(range(1, num_gpus), key=step)


# %% wrong: the_trainers
# message: that train
def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""

    def step(writing: int) -> float:
        return max(rollout_seconds / writing, train_seconds / (num_gpus - writing))

    return num_gpus - min(range(1, num_gpus), key=step)


# %% wrong: rounded
# message: rounded
def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""
    share = rollout_seconds / (rollout_seconds + train_seconds)
    return min(max(1, round(num_gpus * share)), num_gpus - 1)


# %% wrong: half
# message: whatever the times
def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""
    return num_gpus // 2


# %% wrong: may_be_none
# message: at least 1
def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""
    share = rollout_seconds / (rollout_seconds + train_seconds)
    writing = int(num_gpus * share)

    def step(some: int) -> float:
        if not 0 < some < num_gpus:
            return 1.0 if not some else 1e9
        return max(rollout_seconds / some, train_seconds / (num_gpus - some))

    return min((writing, writing + 1), key=step)
