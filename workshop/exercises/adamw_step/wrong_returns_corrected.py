import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight, not the gradient."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient**2
    first, second = first / (1 - BETA1**step), second / (1 - BETA2**step)
    weight = weight - RATE * DECAY * weight - RATE * first / (np.sqrt(second) + EPSILON)
    return weight, first, second
