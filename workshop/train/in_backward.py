r"""The optimizer inside the backward pass: a gradient is used the moment it is complete, and freed.

A step as usual holds all gradients at once, as many bytes as the weights, so that one call can use them.
But AdamW treats each parameter alone. So give each one an optimizer of its own and step it in a hook that
runs when its gradient has been accumulated: `InBackward` (LOMO, Lv et al. 2023, arXiv 2306.09782, for SGD;
PyTorch's `register_post_accumulate_grad_hook`)::

    backward of layer 3:  gradient of layer 3 -> step -> freed
    backward of layer 2:  gradient of layer 2 -> step -> freed         one parameter's gradient at a time

What is given up: nothing may need all gradients together. No clipping by the global norm, no accumulation
over micro-batches, no skipped step after an overflow. A tied matrix is no trouble: its hook runs when both
parts have been added.
"""

from __future__ import annotations

from torch import Tensor, nn

from workshop.train.optimizers import decay_groups, optimizer_class


class InBackward:
    """Steps every trainable parameter of the model during `loss.backward()`; there is no `step()` to call.

    Args:
        model: its parameters get hooks; `remove()` takes them away.
        name: an optimizer of `workshop.train.optimizers.STATE` that is a single class (not muon).
        learning_rate, weight_decay: as for `build_optimizers`. Change the rate by `set_learning_rate`.

    Raises ValueError and ImportError as `optimizer_class` does, and ValueError where nothing is trainable.
    """

    def __init__(
        self, model: nn.Module, name: str = "adamw", learning_rate: float = 1e-3, weight_decay: float = 0.0
    ) -> None:
        kind, options = optimizer_class(name)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            raise ValueError("the model has no trainable parameter: every requires_grad is False")
        self.optimizers = {
            parameter: kind(decay_groups([parameter], weight_decay), lr=learning_rate, **options)  # type: ignore[call-arg]
            for parameter in trained
        }
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._step) for parameter in trained]

    def _step(self, parameter: Tensor) -> None:
        self.optimizers[parameter].step()  # type: ignore[index]
        parameter.grad = None

    def set_learning_rate(self, rate: float) -> None:
        """For the next backward pass."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = rate

    def remove(self) -> None:
        """Take the hooks away: gradients stay again."""
        for hook in self._hooks:
            hook.remove()
