import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities, over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def soft_loss(student: np.ndarray, teacher: np.ndarray, temperature: float = 2.0) -> float:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    log_p, log_q = log_softmax(teacher / temperature), log_softmax(student / temperature)
    divergence = (np.exp(log_p) * -log_q).sum(-1).mean()
    return temperature**2 * divergence
