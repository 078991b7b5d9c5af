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
