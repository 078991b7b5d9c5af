"""Exercise: error feedback, the three lines that make it safe to throw most of a gradient away.

What compression loses is kept and added to the next gradient before that is compressed. Then, over many
steps, what was sent is what there was, but for one last remainder (Karimireddy et al., arXiv:1901.09847).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from workshop.exercises.engine.check import Wrong

GRADIENTS = np.array([[4.0, -1.0, 1.0], [4.0, -1.0, 1.0], [1.0, 2.0, -6.0], [0.0, 1.0, 0.0]])


def one_bit(x: np.ndarray) -> np.ndarray:
    """The sign of each number times the mean magnitude: what one bit a number can say."""
    return np.where(x >= 0, 1.0, -1.0) * np.abs(x).mean()


def _runs(function: Callable[..., Any]) -> tuple[list[Any], list[np.ndarray]]:
    """What is sent and what is in memory after each of the steps."""
    memory, sent, memories = np.zeros(3), [], []
    for gradient in GRADIENTS:
        sent.append(function(gradient.copy(), memory, one_bit))
        memories.append(memory.copy())
    return sent, memories


def _solution(gradient: np.ndarray, memory: np.ndarray, compress: Callable[..., Any]) -> np.ndarray:
    wanted = gradient + memory
    sent = compress(wanted)
    memory[:] = wanted - sent
    return sent


def check(names: dict[str, Any]) -> str:
    """What is sent and remembered, step by step, and what it adds up to."""
    sent, memories = _runs(names["send_with_memory"])
    right_sent, right_memories = _runs(_solution)
    began = np.zeros(3)
    for step, gradient in enumerate(GRADIENTS):
        given = f"Step {step + 1}, gradient {_said(gradient)}, memory {_said(began)}: "
        if sent[step] is None:
            raise Wrong(given + "nothing was returned (None). Return what was sent.")
        if not np.allclose(sent[step], right_sent[step]):
            advice = (
                "Compress the gradient and the memory together." if step else "Return what compress gives."
            )
            raise Wrong(f"{given}sent {_said(sent[step])}; wanted {_said(right_sent[step])}. {advice}")
        if not np.allclose(memories[step], right_memories[step]):
            raise Wrong(
                f"{given}the memory is now {_said(memories[step])}; wanted {_said(right_memories[step])}. "
                + _fault(memories[step], began, gradient, sent[step])
            )
        began = right_memories[step]
    lost = np.abs(np.sum(sent, 0) + memories[-1] - GRADIENTS.sum(0)).max()
    return f"Over {len(GRADIENTS)} steps, sent plus memory is the sum of all gradients (to {lost:.0e})."


def _fault(answer: np.ndarray, began: np.ndarray, gradient: np.ndarray, sent: Any) -> str:
    wanted = gradient + began
    if np.allclose(answer, began):
        return "It did not change: `memory[:] = ...` writes into the array, `memory = ...` only renames."
    if np.allclose(answer, gradient - sent):
        return "What memory held before is lost: subtract what was sent from gradient + memory."
    if np.allclose(answer, began + wanted - sent):
        return "What was lost already contains the old memory, so it is there twice: replace it."
    return "It must be what should have been sent, minus what was sent."


def _said(values: Any) -> str:
    return "[" + ", ".join(f"{float(value):.4g}" for value in np.ravel(values)) + "]"
