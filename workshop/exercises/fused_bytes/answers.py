# %% other: one_after_the_other
def fused_bytes(operators, size, wanted):
    inside, moved = set(), 0
    for output, inputs in operators:
        for name in inputs:
            if name not in inside:
                moved += size[name]
                inside.add(name)
        inside.add(output)
        if output in wanted:
            moved += size[output]
    return moved


# %% wrong: a_kernel_each
# message: That is a kernel for each operator
def fused_bytes(operators, size, wanted):
    return sum(size[output] + sum(size[name] for name in inputs) for output, inputs in operators)


# %% wrong: read_again
# message: each time an operator uses it
def fused_bytes(operators, size, wanted):
    made = {output for output, _ in operators}
    moved = sum(size[name] for name in wanted)
    for _, inputs in operators:
        moved += sum(size[name] for name in inputs if name not in made)
    return moved


# %% wrong: all_written
# message: Nobody reads
def fused_bytes(operators, size, wanted):
    made = {output for output, _ in operators}
    read = {name for _, inputs in operators for name in inputs} - made
    return sum(size[name] for name in read | made)


# %% wrong: the_last_written
# message: Not only the last output
def fused_bytes(operators, size, wanted):
    made = {output for output, _ in operators}
    read = {name for _, inputs in operators for name in inputs} - made
    return sum(size[name] for name in read) + size[operators[-1][0]]


# %% wrong: nothing_written
# message: Somebody reads
def fused_bytes(operators, size, wanted):
    made = {output for output, _ in operators}
    return sum(size[name] for name in {name for _, inputs in operators for name in inputs} - made)


# %% wrong: made_and_read
# message: still in registers
def fused_bytes(operators, size, wanted):
    read = {name for _, inputs in operators for name in inputs}
    return sum(size[name] for name in read) + sum(size[name] for name in wanted)
