RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """A list instead of a tuple, and moments as steps towards what is new."""
    first = first + (1 - BETA1) * (gradient - first)
    second = second + (1 - BETA2) * (gradient * gradient - second)
    size = (second / (1 - BETA2**step)) ** 0.5
    return [weight - RATE * (first / (1 - BETA1**step) / (size + EPSILON) + DECAY * weight), first, second]
