"""Reading a table's row: numbers out of cells, shapes out of names, and saying why it cannot be done."""

from __future__ import annotations

from collections.abc import Mapping

from workshop.facts.model import ModelSpec

Row = Mapping[str, str]
FULL, SELECTIVE, NONE = 2, 1, 0


class CannotPredict(Exception):
    """Why a row is left out."""


def number(row: Row, name: str, default: float | None = None) -> float:
    """A number from a cell; of two configurations "a (b)" the first. Raises CannotPredict where there is
    none.
    """
    text = (row.get(name) or "").split("(")[0].strip()
    try:
        return float(text)
    except ValueError:
        if default is not None:
            return default
        raise CannotPredict(f"{name} is {row.get(name) or 'not given'!r}") from None


def whole(row: Row, name: str, default: int | None = None) -> int:
    """A whole number from a cell."""
    return int(number(row, name, default))


def gpt(layers: int, hidden: int, heads: int, seq_len: int, vocab: int = 51200) -> ModelSpec:
    """A GPT-2-like model: learned positions, LayerNorm, 4h MLP, tied embeddings."""
    if hidden % heads:
        raise CannotPredict(f"hidden {hidden} does not divide by {heads} heads")
    return ModelSpec(
        f"gpt-{layers}x{hidden}",
        layers,
        hidden,
        heads,
        vocab,
        gated_mlp=False,
        positions="learned",
        max_positions=seq_len,
        norm="layernorm",
        tied_embeddings=True,
        dropout=True,
    )


def batches(row: Row, data: int, what: str = "global_batch_size_seqs") -> tuple[int, int]:
    """Micro-batch and number of micro-batches, from the global batch."""
    if data < 1:
        raise CannotPredict("the parallel degrees need more devices than there are")
    micro, total = whole(row, "micro_batch_size_seqs"), whole(row, what)
    if total % (micro * data):
        raise CannotPredict(
            f"global batch {total} does not divide by micro-batch {micro} x data-parallel {data}"
        )
    return micro, total // (micro * data)


def columns(**values: float) -> tuple[tuple[str, float], ...]:
    """A layout as a case keeps it."""
    return tuple(sorted(values.items()))
