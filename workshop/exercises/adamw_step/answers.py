# %% other: corrects_the_rate
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


# %% other: list
RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """A list instead of a tuple, and moments as steps towards what is new."""
    first = first + (1 - BETA1) * (gradient - first)
    second = second + (1 - BETA2) * (gradient * gradient - second)
    size = (second / (1 - BETA2**step)) ** 0.5
    return [weight - RATE * (first / (1 - BETA1**step) / (size + EPSILON) + DECAY * weight), first, second]


# %% wrong: no_correction
# message: Moments begin at zero
import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight, not the gradient."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient**2
    corrected_first, corrected_second = first, second
    weight = weight - RATE * DECAY * weight - RATE * corrected_first / (np.sqrt(corrected_second) + EPSILON)
    return weight, first, second


# %% wrong: no_square
# message: gradient's squares
import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight, not the gradient."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient
    corrected_first, corrected_second = first / (1 - BETA1**step), second / (1 - BETA2**step)
    weight = weight - RATE * DECAY * weight - RATE * corrected_first / (np.sqrt(corrected_second) + EPSILON)
    return weight, first, second


# %% wrong: no_decay
# message: decay is missing
import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight, not the gradient."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient**2
    corrected_first, corrected_second = first / (1 - BETA1**step), second / (1 - BETA2**step)
    weight = weight - RATE * corrected_first / (np.sqrt(corrected_second) + EPSILON)
    return weight, first, second


# %% wrong: no_root
# message: root is missing
RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight, not the gradient."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient**2
    corrected_first, corrected_second = first / (1 - BETA1**step), second / (1 - BETA2**step)
    weight = weight - RATE * DECAY * weight - RATE * corrected_first / (corrected_second + EPSILON)
    return weight, first, second


# %% wrong: decay_in_the_gradient
# message: Adam with L2
import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight, not the gradient."""
    gradient = gradient + DECAY * weight
    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient**2
    corrected_first, corrected_second = first / (1 - BETA1**step), second / (1 - BETA2**step)
    weight = weight - RATE * corrected_first / (np.sqrt(corrected_second) + EPSILON)
    return weight, first, second


# %% wrong: decay_without_the_rate
# message: not times
import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight, not the gradient."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient**2
    corrected_first, corrected_second = first / (1 - BETA1**step), second / (1 - BETA2**step)
    weight = weight - DECAY * weight - RATE * corrected_first / (np.sqrt(corrected_second) + EPSILON)
    return weight, first, second


# %% wrong: returns_corrected
# message: return the moments as they are
import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight, not the gradient."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient**2
    first, second = first / (1 - BETA1**step), second / (1 - BETA2**step)
    weight = weight - RATE * DECAY * weight - RATE * first / (np.sqrt(second) + EPSILON)
    return weight, first, second
