def gptq_column(weight, inverse, j, nearest):
    """The matrix after column j has been rounded."""
    moved = weight.copy()
    moved[:, j] = nearest(weight[:, j])
    return moved
