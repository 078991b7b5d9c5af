def bubble_share(stages, micro_batches, chunks=1):
    return 1 - chunks * micro_batches / (chunks * micro_batches + stages - 1)
