import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    ...  # backward, the gradients, the decision, and perhaps the optimizer
    return scale, good_steps
