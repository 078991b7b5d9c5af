def gptq_column(weight, hessian, j, nearest):
    """The matrix after column j has been rounded."""
    moved = weight.copy()
    moved[:, j] = nearest(weight[:, j])
    return moved
