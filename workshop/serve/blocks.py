"""The memory of a server: blocks of a few tokens each, handed out one by one, shared and copied like an
operating system's pages (Kwon et al. 2023, arXiv 2309.06180, section 4).

A sequence has a *table*: its n-th entry is the number of the block that holds its tokens n * size to n *
size + size - 1. Where in memory that block lies does not matter, so no room is reserved for tokens that
may never come. Two sequences that begin alike can have the same block in their tables; who wants to
write into such a block takes a copy first. A block that nobody holds any more keeps what is in it, under
a name made of its tokens and all before them, until the room is needed: the prefix cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from workshop.facts.checks import check_positive


class OutOfBlocks(Exception):
    """Every block is held by some sequence: one of them has to give its own back."""


class Blocks:
    """Who holds which block, and which hold tokens that are known by name.

    Args:
        num_blocks: blocks there are.
        size: tokens in a block.
        copy: called with two blocks' numbers to copy the contents of the first into the second.
    """

    def __init__(self, num_blocks: int, size: int, copy: Callable[[int, int], None] | None = None) -> None:
        check_positive("num_blocks", num_blocks)
        check_positive("size", size)
        self.size = size
        self.holders = [0] * num_blocks
        self.copy = copy or (lambda *_blocks: None)
        self._free = dict.fromkeys(range(num_blocks))  # in order: the longest free is taken first
        self._by_name: dict[bytes, int] = {}
        self._name_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """The block that has been free for longest, now held once; whatever it was known for is forgotten.

        Raises OutOfBlocks where none is free.
        """
        if not self._free:
            raise OutOfBlocks(f"all {len(self.holders)} blocks of {self.size} tokens are held")
        block = next(iter(self._free))
        del self._free[block]
        self.holders[block] = 1
        name = self._name_of.pop(block, None)
        if name is not None:
            del self._by_name[name]
        return block

    def share(self, block: int) -> int:
        """Hold a block once more; the same block."""
        self._free.pop(block, None)
        self.holders[block] += 1
        return block

    def give_back(self, block: int) -> None:
        """Hold a block once less. ValueError where nobody holds it."""
        if not self.holders[block]:
            raise ValueError(f"block {block} is given back, but nobody holds it")
        self.holders[block] -= 1
        if not self.holders[block]:
            self._free[block] = None

    def publish(self, block: int, name: bytes) -> None:
        """Make a full block known by its name, unless another one is."""
        if name not in self._by_name and block not in self._name_of:
            self._by_name[name] = block
            self._name_of[block] = name

    def known(self, name: bytes) -> int | None:
        """The block of that name, held once more; None if there is none."""
        block = self._by_name.get(name)
        return None if block is None else self.share(block)


def names(tokens: Sequence[int], size: int) -> list[bytes]:
    """A name for each full block of these tokens: a hash of its tokens and of the name before it.

    Keys and values depend on all earlier tokens, so a block may be used again only where all of them agree.
    """
    hashes, before = [], b""
    for first in range(0, len(tokens) - size + 1, size):
        before = hashlib.sha256(
            before + np.asarray(tokens[first : first + size], np.int64).tobytes()
        ).digest()
        hashes.append(before)
    return hashes


def slot_for(position: int, table: list[int], blocks: Blocks) -> int:
    """Where the token at ``position`` of a sequence is written; its table grows or leaves a shared block.

    Positions come in order: ``position`` lies in the table's last block, or just behind it.
    """
    place, within = divmod(position, blocks.size)
    if place == len(table):
        table.append(blocks.take())
    elif blocks.holders[table[place]] > 1:
        own = blocks.take()
        blocks.copy(table[place], own)
        blocks.give_back(table[place])
        table[place] = own
    return table[place] * blocks.size + within
