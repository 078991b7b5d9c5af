"""Exercise: where a token is written, in a cache of blocks that sequences may share.

Kwon et al. 2023, arXiv 2309.06180, section 4.3 (block tables) and 4.4 (copy on write).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown
from workshop.serve.blocks import Blocks

NAME = "slot_for"
SIZE = 4


class _Case:
    """Blocks, the copies that were made, and the learner's function."""

    def __init__(self, function: Any) -> None:
        self.function, self.copies = function, list[tuple[int, int]]()
        self.blocks = Blocks(8, SIZE, lambda source, target: self.copies.append((source, target)))
        self.blocks.share(0)  # so that the first block is not number 0

    def slot(self, position: int, table: list[int]) -> Any:
        """A call, and what is true of every answer: whole blocks, and a slot in the last of them."""
        answer = call(self.function, NAME, Call((position, table, self.blocks)))
        where = f"`slot_for({position}, table, blocks)` with blocks of {SIZE}"
        wanted = position // SIZE + 1
        if len(table) > wanted:
            raise Wrong(
                f"{where} left {len(table)} blocks in the table: a new one, though the last still has room."
            )
        if len(table) < wanted:
            raise Wrong(f"{where} left {len(table)} blocks in the table; the token needs {wanted}.")
        slot = table[-1] * SIZE + position % SIZE
        if answer == position != slot:
            raise Wrong(
                f"{where} gave {position}, the place in the sequence; its block is number {table[-1]}."
            )
        if answer != slot or isinstance(answer, bool):
            raise Wrong(
                f"{where} gave {shown(answer)}; wanted {slot}: block {table[-1]}, place {position % SIZE}."
            )
        return answer


def check(names: dict[str, Any]) -> str:
    """A sequence that grows, a second one that begins with its blocks, and both write on."""
    case, first = _Case(names[NAME]), list[int]()
    for position in range(6):
        case.slot(position, first)
    if case.copies or [case.blocks.holders[block] for block in first] != [1, 1]:
        raise Wrong(
            "A sequence that shares nothing takes a block when the last one is full, and copies none."
        )
    second, before = [case.blocks.share(block) for block in first], list(first)
    case.slot(6, second)
    if second == before:
        raise Wrong(
            f"It wrote into block {second[-1]}, which another sequence holds too: that one's text changes."
        )
    if second[0] != before[0] or first != before:
        raise Wrong(
            "Replace only the block that is written to, and only in the table of the sequence that writes."
        )
    if case.copies != [(before[1], second[1])]:
        raise Wrong(
            "The tokens that were in the shared block were not copied into the new one (source, target)."
        )
    held = [case.blocks.holders[block] for block in (before[1], second[1])]
    if held != [1, 1]:
        raise Wrong(
            f"The old block is held {held[0]} times: it was not given back, so nobody will ever free it."
        )
    case.slot(6, first)
    if first != before or len(case.copies) != 1:
        raise Wrong("No other sequence holds the first one's block anymore, so it needs no copy.")
    return "Two sequences share a block until one writes; the other one never notices."
