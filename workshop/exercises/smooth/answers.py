# %% other: loop
import torch


def smooth(x_max, before, weights, alpha):
    """With logarithms, over all weights' rows at once."""
    rows = torch.cat(weights).abs().max(dim=0).values
    s = torch.exp(alpha * x_max.log() - (1 - alpha) * rows.log()).clamp(min=1e-5)
    made = (before.reshape(len(s), -1) / s[:, None]).reshape(before.shape)
    return made, [torch.einsum("oi,i->oi", weight, s) for weight in weights]


# %% wrong: its_own_s
# message: share one s
import torch


def smooth(
    x_max: torch.Tensor,
    before: torch.Tensor,
    weights: list[torch.Tensor],
    alpha: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What makes the inputs, divided by s; the weights that read them, times s."""
    each = [x_max**alpha / w.abs().amax(0) ** (1 - alpha) for w in weights]
    column = each[0].view(-1, *[1] * (before.ndim - 1))
    return before / column, [w * s for w, s in zip(weights, each, strict=True)]


# %% wrong: swapped
# message: exponents are swapped
import torch


def smooth(
    x_max: torch.Tensor,
    before: torch.Tensor,
    weights: list[torch.Tensor],
    alpha: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What makes the inputs, divided by s; the weights that read them, times s."""
    w_max = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    s = (x_max ** (1 - alpha) / w_max**alpha).clamp(min=1e-5)
    column = s.view(-1, *[1] * (before.ndim - 1))  # s for each row of a matrix
    return before / column, [weight * s for weight in weights]


# %% wrong: other_way
# message: the other way round
import torch


def smooth(
    x_max: torch.Tensor,
    before: torch.Tensor,
    weights: list[torch.Tensor],
    alpha: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What makes the inputs, divided by s; the weights that read them, times s."""
    w_max = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    s = (x_max**alpha / w_max ** (1 - alpha)).clamp(min=1e-5)
    column = s.view(-1, *[1] * (before.ndim - 1))  # s for each row of a matrix
    return before * column, [weight / s for weight in weights]


# %% wrong: inputs_only
# message: products change
import torch


def smooth(
    x_max: torch.Tensor,
    before: torch.Tensor,
    weights: list[torch.Tensor],
    alpha: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What makes the inputs, divided by s; the weights that read them, times s."""
    w_max = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    s = (x_max**alpha / w_max ** (1 - alpha)).clamp(min=1e-5)
    column = s.view(-1, *[1] * (before.ndim - 1))  # s for each row of a matrix
    return before / column, list(weights)


# %% wrong: by_output
# message: one number for all columns
import torch


def smooth(
    x_max: torch.Tensor,
    before: torch.Tensor,
    weights: list[torch.Tensor],
    alpha: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What makes the inputs, divided by s; the weights that read them, times s."""
    w_max = torch.stack([weight.abs().max() for weight in weights]).amax()
    s = (x_max**alpha / w_max ** (1 - alpha)).clamp(min=1e-5)
    column = s.view(-1, *[1] * (before.ndim - 1))  # s for each row of a matrix
    return before / column, [weight * s for weight in weights]


# %% wrong: without_magnitude
# message: take the magnitude
import torch


def smooth(
    x_max: torch.Tensor,
    before: torch.Tensor,
    weights: list[torch.Tensor],
    alpha: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What makes the inputs, divided by s; the weights that read them, times s."""
    w_max = torch.stack([weight.amax(0).clamp(min=1e-5) for weight in weights]).amax(0)
    s = (x_max**alpha / w_max ** (1 - alpha)).clamp(min=1e-5)
    column = s.view(-1, *[1] * (before.ndim - 1))  # s for each row of a matrix
    return before / column, [weight * s for weight in weights]


# %% wrong: not_clamped
# message: at least 1e-5
import torch


def smooth(
    x_max: torch.Tensor,
    before: torch.Tensor,
    weights: list[torch.Tensor],
    alpha: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What makes the inputs, divided by s; the weights that read them, times s."""
    w_max = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    s = x_max**alpha / w_max ** (1 - alpha)
    column = s.view(-1, *[1] * (before.ndim - 1))  # s for each row of a matrix
    return before / column, [weight * s for weight in weights]
