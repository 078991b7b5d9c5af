"""Exercise: fit t = alpha + n / beta to measured message times.

alpha is the time a message of no bytes takes, in seconds; beta is the rate in bytes a second. (Many
papers write beta for seconds a byte, our 1 / beta.) The model is Hockney's, "The communication challenge
for MPP", Parallel Computing 20 (1994). Measured times spread by a share of themselves, so a residual
counts relative to its time: least squares of (alpha + n / beta - t) / t. That fit is what an answer is held
against, and not the truth behind the noise, which no fit finds. A fit of the logarithms is near enough.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number, shown

TOLERANCE = 0.05
# alpha in seconds, beta in bytes per second, spread of a timing, seed. First a curve without noise.
CURVES = ((50e-6, 1e9, 0.0, 0), (50e-6, 1e9, 0.1, 1), (5e-6, 2e10, 0.1, 2), (2e-3, 1e8, 0.1, 3))


def check(names: dict[str, Any]) -> str:
    """Synthetic curves, the first without noise; alpha and beta are those of the fit, within 5 %."""
    for true_alpha, true_beta, spread, seed in CURVES:
        curve = _curve(true_alpha, true_beta, spread, seed)
        alpha, beta = _least_squares(*curve)
        answer = _fitted(names["fit"], *curve)
        near = [abs(value / true - 1) <= TOLERANCE for value, true in zip(answer, (alpha, beta), strict=True)]
        if not all(near):
            timings = f"timings off by {100 * spread:g} %" if spread else "exact timings"
            why = _why(answer, beta, spread, curve[1][0])
            raise Wrong(
                f"From {timings}, `fit` gave alpha = {answer[0]:.3g} s and beta = {answer[1]:.3g} bytes/s; "
                f"wanted {alpha:.3g} s and {beta:.3g} bytes/s, within 5 %. {why}".rstrip()
            )
    return f"{len(CURVES)} curves, three of them noisy: alpha and beta are those of the fit within 5 %."


def _curve(alpha: float, beta: float, spread: float, seed: int) -> tuple[Any, Any]:
    """Message sizes from 8 bytes to 64 MiB and their times, each off by a share of itself."""
    import numpy as np

    message_bytes = 8.0 * 2.0 ** np.arange(24)
    noise = np.random.default_rng(seed).normal(0.0, spread, message_bytes.size) if spread else 0.0
    return message_bytes, (alpha + message_bytes / beta) * (1 + noise)


def _least_squares(message_bytes: Any, seconds: Any) -> tuple[float, float]:
    import numpy as np

    columns = np.stack([1 / seconds, message_bytes / seconds], axis=1)
    alpha, seconds_per_byte = np.linalg.lstsq(columns, np.ones(len(seconds)), rcond=None)[0]
    return float(alpha), float(1 / seconds_per_byte)


def _fitted(fit: Any, message_bytes: Any, seconds: Any) -> tuple[float, float]:
    answer = call(fit, "fit", Call((message_bytes, seconds)))
    written = "fit(message_bytes, seconds)"
    try:
        alpha, beta = answer
    except (TypeError, ValueError):
        raise Wrong(f"`{written}` gave {shown(answer)}; wanted the pair `(alpha, beta)`.") from None
    return number(alpha, written), number(beta, written)


def _why(answer: tuple[float, float], beta: float, spread: float, first: float) -> str:
    """The usual reasons, recognised by what they make of alpha and beta."""
    if abs(answer[1] * beta - 1) < TOLERANCE:
        return "That beta is in seconds per byte: take its inverse."
    if abs(answer[0] / beta - 1) < TOLERANCE:
        return "The two are in the wrong order: alpha comes first."
    if answer[0] == 0:
        return "Without an alpha a message of 8 bytes would take no time; give the fit a constant column."
    if spread and answer[0] == first:
        return "Two points are not enough, because each of them has an error. Use all points."
    if spread:
        return "With noise, the largest messages decide the whole fit: divide each equation by its `seconds`."
    return ""
