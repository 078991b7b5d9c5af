# %% other: what_is_left
def bubble_share(stages, micro_batches, chunks=1):
    return 1 - chunks * micro_batches / (chunks * micro_batches + stages - 1)


# %% wrong: over_the_work_alone
# message: work and bubble
def bubble_share(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Share of the step in which a rank waits for the pipeline to fill and to drain."""
    waiting = (stages - 1) / chunks
    return waiting / micro_batches


# %% wrong: no_chunks
# message: `chunks` plays no part
def bubble_share(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Share of the step in which a rank waits for the pipeline to fill and to drain."""
    waiting = stages - 1
    return waiting / (micro_batches + waiting)


# %% wrong: one_stage_too_many
# message: waits for the other stages
def bubble_share(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Share of the step in which a rank waits for the pipeline to fill and to drain."""
    waiting = stages / chunks
    return waiting / (micro_batches + waiting)


# %% wrong: chunks_the_wrong_way
# message: not larger
def bubble_share(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Share of the step in which a rank waits for the pipeline to fill and to drain."""
    waiting = (stages - 1) * chunks
    return waiting / (micro_batches + waiting)
