import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The decay first, as torch.optim.AdamW does, and the corrections gathered in the rate."""
    weight = weight * (1 - RATE * DECAY)
    first = first + (1 - BETA1) * (gradient - first)
    second = second + (1 - BETA2) * (gradient**2 - second)
    unbiased = np.sqrt(1 - BETA2**step)
    rate = RATE * unbiased / (1 - BETA1**step)
    return weight - rate * first / (np.sqrt(second) + EPSILON * unbiased), first, second
