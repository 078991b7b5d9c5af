def slot_for(position, table, blocks):
    """One entry more, or one replaced, by the same line."""
    place, within = position // blocks.size, position % blocks.size
    old = table[place] if place < len(table) else None
    if old is None or blocks.holders[old] != 1:
        table[place:] = [blocks.take()]
        if old is not None:
            blocks.copy(old, table[-1])
            blocks.give_back(old)
    return blocks.size * table[-1] + within
