"""Which layers each pipeline stage holds.

A pipeline of ``p`` stages with ``v`` virtual stages cuts the layers into ``p * v`` chunks; rank ``i`` holds
the chunks ``i, i + p, i + 2p ...`` (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).  The embedding
sits with the first chunk, the output head and the loss with the last.  Layers that do not divide go one each
to the first chunks, as PyTorch's and nanotron's splitters do.
"""

from __future__ import annotations

from workshop.facts.layout import Layout


def chunks(num_layers: int, layout: Layout) -> list[int]:
    """Layers in each of the ``pipeline * virtual_stages`` chunks, in model order."""
    total = layout.pipeline * layout.virtual_stages
    ends = {0: layout.first_stage_layers, total - 1: layout.last_stage_layers}
    fixed = {index: count for index, count in ends.items() if count}
    if layout.embedding_in_stages:
        even = even_chunks(num_layers + 2, total)
        even[0], even[-1] = even[0] - 1, even[-1] - 1
        return even
    middle = even_chunks(num_layers - sum(fixed.values()), total - len(fixed)) if total > len(fixed) else []
    rest = iter(middle)
    return [fixed[i] if i in fixed else next(rest) for i in range(total)]


def even_chunks(num_layers: int, total: int) -> list[int]:
    """``num_layers`` in ``total`` parts that differ by at most one, the longer ones first."""
    size, extra = divmod(num_layers, total)
    return [size + (1 if index < extra else 0) for index in range(total)]


def stage_layers(num_layers: int, layout: Layout, stage: int) -> list[list[int]]:
    """The layer numbers of every chunk that rank ``stage`` of the pipeline holds."""
    counts = chunks(num_layers, layout)
    starts = [sum(counts[:index]) for index in range(len(counts))]
    return [
        list(range(starts[index], starts[index] + counts[index]))
        for index in range(stage, len(counts), layout.pipeline)
    ]
