def bubble_share(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Share of the step in which a rank waits for the pipeline to fill and to drain."""
    waiting = stages / chunks
    return waiting / (micro_batches + waiting)
