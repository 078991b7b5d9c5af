"""Optimizers by name, and what each keeps for every parameter it trains.

The state is the part of training that people forget: AdamW's two moments in fp32 are 8 bytes for a parameter
whose weight takes 2 or 4. `STATE` says it for each name, and a test counts the bytes of the real objects.

=============  ===========================  ============  ==================================================
name           kept for each parameter      bytes (fp32)  paper
=============  ===========================  ============  ==================================================
sgd            nothing                      0
sgd-momentum   momentum                     4             Sutskever et al. 2013 (ICML, "On the importance of
                                                          initialization and momentum")
lion           momentum                     4             Chen et al. 2023, arXiv 2302.06675, algorithm 2
muon           momentum; of embeddings,     4 and 8       Jordan et al. 2024 (kellerjordan.github.io/posts/
               head and norms two moments                 muon); Liu et al. 2025, arXiv 2502.16982
adafactor      a row and a column of sums   about 0       Shazeer and Stern 2018, arXiv 1804.04235, alg. 4
adam, adamw    two moments                  8             Kingma and Ba 2014, arXiv 1412.6980; Loshchilov and
                                                          Hutter 2017, arXiv 1711.05101
adamw-8bit     two moments in blocks        2             Dettmers et al. 2021, arXiv 2110.02861
=============  ===========================  ============  ==================================================

Weight decay touches matrices only: norms and biases are one-dimensional and have no direction to shrink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from workshop.facts.checks import check_choice

Group = dict[str, Any]


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum (Chen et al. 2023, arXiv 2302.06675, algorithm 2); one moment.

    The step has the same size for every weight, so the learning rate is a third to a tenth of AdamW's.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; the momentum is born in the first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                update = torch.lerp(weight.grad, state["momentum"], first).sign_()
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                state["momentum"].lerp_(weight.grad, 1 - second)
        return loss


@dataclass(frozen=True)
class Kept:
    """What an optimizer keeps: full-size moments (as in `facts.precision.MOMENTS`) and bytes of each."""

    moments: int
    moment_bytes: float | None = None  # None: as wide as the weight

    def bytes_per_parameter(self, weight_bytes: float = 4.0) -> float:
        """Bytes of state for each trained parameter kept in ``weight_bytes``."""
        return self.moments * (weight_bytes if self.moment_bytes is None else self.moment_bytes)


STATE = {
    "sgd": Kept(0),
    "sgd-momentum": Kept(1),
    "lion": Kept(1),
    "muon": Kept(1),
    "adafactor": Kept(0),
    "adam": Kept(2),
    "adamw": Kept(2),
    "adamw-8bit": Kept(2, 1.0),
}
"""What each name keeps. Adafactor's rows and columns vanish beside its matrices: 1/rows + 1/columns."""


def optimizer_class(name: str) -> tuple[type[torch.optim.Optimizer], Group]:
    """The class behind a name and its options, for who builds it over tensors of their own (ZeRO by hand).

    Raises:
        ValueError: the name is unknown (the message lists the known), or is no single class.
        ImportError: 8-bit states need a library that is not installed; the message says which.
    """
    check_choice("optimizer", name, STATE)
    if name == "muon":
        raise ValueError(
            "muon is two optimizers, one for inner matrices and AdamW for the rest: name another"
        )
    return (_adamw_8bit(), {"betas": BETAS}) if name == "adamw-8bit" else _CLASSES[name]


def build_optimizers(
    name: str, model: nn.Module, learning_rate: float, weight_decay: float = 0.0
) -> list[torch.optim.Optimizer]:
    """The optimizer of that name over the model's trainable parameters: a list of one; two for Muon.

    Build it after the model is sharded: its state then is of shards. Errors are those of `optimizer_class`,
    and ValueError where nothing is trainable.
    """
    groups = decay_groups(_trained(model), weight_decay)
    if name == "muon":
        return _muon(model, learning_rate, weight_decay)
    kind, options = optimizer_class(name)
    return [kind(groups, lr=learning_rate, **options)]  # type: ignore[call-arg]


def _trained(model: nn.Module) -> list[nn.Parameter]:
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("the model has no trainable parameter: every requires_grad is False")
    return trained


def decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[Group]:
    """Parameters in two groups: matrices decay, vectors do not. No empty group.

    Parameters over different meshes (a matrix that tensor ranks have cut, a norm that all have) get groups of
    their own: an optimizer updates a group at once, and torch does not mix them.
    """
    groups: dict[tuple[bool, Any], Group] = {}
    for parameter in parameters:
        is_matrix = parameter.ndim >= 2
        decay = weight_decay if is_matrix else 0.0
        key = (not is_matrix, getattr(parameter, "device_mesh", None))
        groups.setdefault(key, {"params": [], "weight_decay": decay})["params"].append(parameter)
    return sorted(groups.values(), key=lambda group: group["params"][0].ndim < 2)


def _muon(model: nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between embedding and head, AdamW for the rest (2502.16982, section 2.2).

    Each of its updates has the root mean square of AdamW's, so both take one learning rate.
    """
    ends = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    ends |= {id(m.weight) for name, m in model.named_modules() if name.endswith("lm_head")}
    is_inner = {id(p) for p in _trained(model) if p.ndim == 2 and id(p) not in ends}
    if not is_inner:
        raise ValueError("muon works on matrices between embedding and head, and this model has none")
    inner = [p for p in _trained(model) if id(p) in is_inner]
    rest = [p for p in _trained(model) if id(p) not in is_inner]
    muon = torch.optim.Muon(
        inner, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.AdamW(decay_groups(rest, weight_decay), lr=learning_rate, **ADAM)]


def _adamw_8bit() -> type[torch.optim.Optimizer]:
    """torchao's: one class for CPU, GPUs and sharded weights."""
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise ImportError(
            "optimizer 'adamw-8bit' comes from torchao, which is not installed: pip install torchao "
            "(or choose adafactor or lion, which need no library)"
        ) from error
    return AdamW8bit


BETAS = (0.9, 0.95)
"""Of Adam, as language models are trained since GPT-3 (arXiv 2005.14165, appendix B)."""
ADAM: Group = {"betas": BETAS, "fused": True}  # fused: the whole update in one kernel, without temporaries
_CLASSES: dict[str, tuple[type[torch.optim.Optimizer], Group]] = {
    "sgd": (torch.optim.SGD, {}),  # its fused kernel does not take sharded weights
    "sgd-momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "lion": (Lion, {}),
    "adafactor": (torch.optim.Adafactor, {}),
    "adam": (torch.optim.Adam, ADAM),
    "adamw": (torch.optim.AdamW, ADAM),
}
