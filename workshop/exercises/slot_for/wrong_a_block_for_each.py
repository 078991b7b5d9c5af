def slot_for(position, table, blocks):
    """The slot of the token at `position`; the table grows or leaves a shared block."""
    table.append(blocks.take())
    return table[-1] * blocks.size + position % blocks.size
