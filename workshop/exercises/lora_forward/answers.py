# %% other: einsum
import torch


def lora_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    rank = a.shape[0]
    narrow = torch.einsum("ti,ri->tr", x, a)
    return torch.einsum("ti,oi->to", x, weight) + torch.einsum("tr,or->to", narrow, b) * alpha / rank


# %% wrong: no_scale
# message: scale alpha / r is missing
import torch


def lora_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    """W x + (alpha / r) B A x for each row: (tokens, inputs) -> (tokens, outputs)."""
    frozen = x @ weight.T
    change = (x @ a.T) @ b.T
    return frozen + change


# %% wrong: alpha_alone
# message: That is alpha, not alpha / r
import torch


def lora_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    """W x + (alpha / r) B A x for each row: (tokens, inputs) -> (tokens, outputs)."""
    frozen = x @ weight.T
    change = alpha * ((x @ a.T) @ b.T)
    return frozen + change


# %% wrong: times_r
# message: divided by r, not multiplied
import torch


def lora_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    """W x + (alpha / r) B A x for each row: (tokens, inputs) -> (tokens, outputs)."""
    frozen = x @ weight.T
    change = alpha * len(a) * ((x @ a.T) @ b.T)
    return frozen + change


# %% wrong: nothing_frozen
# message: The frozen part W x is lost
import torch


def lora_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    """W x + (alpha / r) B A x for each row: (tokens, inputs) -> (tokens, outputs)."""
    return (alpha / len(a)) * ((x @ a.T) @ b.T)


# %% wrong: turned
# message: wanted [2.0, 0.0, 20.0]
import torch


def lora_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    """W x + (alpha / r) B A x for each row: (tokens, inputs) -> (tokens, outputs)."""
    frozen = x @ weight.T
    change = alpha / len(a) * (x @ a.T)
    return frozen + change


# %% wrong: no_gradient
# message: no gradient reaches `a`
import torch


def lora_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    """W x + (alpha / r) B A x for each row: (tokens, inputs) -> (tokens, outputs)."""
    frozen = x @ weight.T
    change = (alpha / len(a)) * ((x @ a.detach().T) @ b.detach().T)
    return frozen + change


# %% wrong: merged
# message: a matrix of weight's size
import torch


def lora_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    """W x + (alpha / r) B A x for each row: (tokens, inputs) -> (tokens, outputs)."""
    frozen = x @ weight.T
    change = (alpha / len(a)) * (x @ (b @ a).T)
    return frozen + change
