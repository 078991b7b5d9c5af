# %% other: same_end
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


# %% wrong: never_copies
# message: which another sequence holds too
def slot_for(position, table, blocks):
    """The slot of the token at `position`; the table grows or leaves a shared block."""
    place, within = divmod(position, blocks.size)
    if place == len(table):
        table.append(blocks.take())
    return table[place] * blocks.size + within


# %% wrong: an_empty_copy
# message: were not copied
def slot_for(position, table, blocks):
    """The slot of the token at `position`; the table grows or leaves a shared block."""
    place, within = divmod(position, blocks.size)
    if place == len(table):
        table.append(blocks.take())
    elif blocks.holders[table[place]] > 1:
        own = blocks.take()
        blocks.give_back(table[place])
        table[place] = own
    return table[place] * blocks.size + within


# %% wrong: still_held
# message: nobody will ever free it
def slot_for(position, table, blocks):
    """The slot of the token at `position`; the table grows or leaves a shared block."""
    place, within = divmod(position, blocks.size)
    if place == len(table):
        table.append(blocks.take())
    elif blocks.holders[table[place]] > 1:
        own = blocks.take()
        blocks.copy(table[place], own)
        table[place] = own
    return table[place] * blocks.size + within


# %% wrong: in_the_sequence
# message: place in the sequence
def slot_for(position, table, blocks):
    """The slot of the token at `position`; the table grows or leaves a shared block."""
    place, within = divmod(position, blocks.size)
    if place == len(table):
        table.append(blocks.take())
    elif blocks.holders[table[place]] > 1:
        own = blocks.take()
        blocks.copy(table[place], own)
        blocks.give_back(table[place])
        table[place] = own
    return place * blocks.size + within


# %% wrong: a_block_for_each
# message: still has room
def slot_for(position, table, blocks):
    """The slot of the token at `position`; the table grows or leaves a shared block."""
    table.append(blocks.take())
    return table[-1] * blocks.size + position % blocks.size
