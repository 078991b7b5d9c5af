def gptq_column(weight, inverse, j, nearest):
    moved = weight.copy()
    rounded = nearest(weight[:, j])
    for k in range(j + 1, weight.shape[1]):
        moved[:, k] -= (weight[:, j] - rounded) * inverse[j, k] / inverse[j, j]
    moved[:, j] = rounded
    return moved
