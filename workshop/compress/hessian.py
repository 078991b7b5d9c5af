r"""What a linear layer's inputs say about its weights: H = X^T X, which GPTQ and SparseGPT both start from.

Change a weight matrix W to W', and the layer's outputs on the calibration inputs X (tokens, in_features) move
by ||X (W' - W)^T||^2. Each row of W is on its own, and has the same Hessian: H = X^T X (times 2, which
changes nothing). Its diagonal holds the squared norm of each input feature, which is all that Wanda looks at.

Set weight m of a row to another value, and let the others make up for it as well as they can. Optimal Brain
Surgeon (Hassibi and Stork 1992) has the answer in closed form, with the inverse of H::

    price of the change        (w'_m - w_m)^2 / [H^-1]_mm
    what the others get        (w'_m - w_m) * [H^-1]_m,: / [H^-1]_mm

Go through the columns from left to right, the weights to the left fixed, and H^-1 shrinks by a row and a
column each time. All those inverses are in one upper triangular Cholesky factor U with H^-1 = U^T U (GPTQ,
Frantar et al. 2022, arXiv 2210.17323, section 3.3, step 3): of the inverse without the first m rows and
columns, the first row is U_mm * U_m,m:, and its corner is U_mm^2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Hessian:
    """X^T X and the number of tokens of one linear layer, gathered while the layer runs.

    ``with Hessian(linear) as seen: model(tokens)``; afterwards ``seen.matrix`` is (in_features, in_features)
    in fp32, the mean over tokens. Several batches add up.
    """

    def __init__(self, linear: nn.Linear) -> None:
        self.linear, self.num_tokens = linear, 0
        self.total = torch.zeros(linear.in_features, linear.in_features, device=linear.weight.device)
        self.total_magnitude = torch.zeros(linear.in_features, device=linear.weight.device)
        self._hook: Any = None

    def add(self, inputs: Tensor) -> None:
        """Inputs (..., in_features) of the layer."""
        flat = inputs.detach().flatten(0, -2).float()
        self.total.addmm_(flat.T, flat)
        self.total_magnitude += flat.abs().sum(0)
        self.num_tokens += flat.shape[0]

    @property
    def matrix(self) -> Tensor:
        """Mean of x x^T over tokens. ValueError where the layer has not run."""
        if not self.num_tokens:
            raise ValueError("no inputs were seen: run the model on some text inside the `with`")
        return self.total / self.num_tokens

    @property
    def input_norms(self) -> Tensor:
        """Root mean square of each input feature, (in_features,)."""
        return self.matrix.diagonal().sqrt()

    @property
    def mean_magnitude(self) -> Tensor:
        """Mean of |x| of each input feature, (in_features,): what AWQ looks at."""
        return self.total_magnitude / max(self.num_tokens, 1)

    def __enter__(self) -> Hessian:
        self._hook = self.linear.register_forward_pre_hook(lambda _, args: self.add(args[0]))
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


def inverse_factor(hessian: Tensor, damping: float = 0.01) -> Tensor:
    """Upper triangular U with H^-1 = U^T U, of H plus `damping` times its mean diagonal (GPTQ, section 3.3).

    ``hessian``: (in_features, in_features), symmetric. A feature that is always 0 gets a 1 on the diagonal:
    its weights do not matter. In fp32 on the tensor's device. ValueError where it is not positive definite
    even so.
    """
    damped = hessian.float().clone()
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal += damping * diagonal.mean()
    try:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
        return torch.linalg.cholesky(inverse, upper=True)
    except torch.linalg.LinAlgError as error:
        raise ValueError(
            f"the Hessian is not positive definite with damping {damping}: take more (0.1), or more "
            f"tokens than the {hessian.shape[0]} input features"
        ) from error
