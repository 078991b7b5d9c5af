import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def soft_loss(student: np.ndarray, teacher: np.ndarray, temperature: float = 2.0) -> float:
    log_p = log_softmax(teacher / temperature)
    p = np.exp(log_p)
    cross_entropy = -np.sum(p * log_softmax(student / temperature))
    entropy = -np.sum(p * log_p)
    return temperature**2 * (cross_entropy - entropy) / len(student)
