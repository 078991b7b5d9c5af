"""1-bit Adam, 0/1 Adam and 1-bit LAMB: the optimizers section for a DeepSpeed that still has them.

After ``freeze_step`` steps of plain Adam the variance is frozen, and from then on only the signs of the
momentum travel, with what the signs left out kept for the next step (error feedback). Tang et al. 2021,
"1-bit Adam", arXiv 2102.02888; Lu et al. 2022, "0/1 Adam", arXiv 2202.06009; Li et al. 2021, "1-bit
LAMB", arXiv 2104.06069. Names and parameters: deepspeed.ai/tutorials/onebit-adam, zero-one-adam, onebit-lamb.

They need the whole momentum on every rank, so they work at ZeRO stage 0 (DeepSpeed's own assertion for
1-bit Adam; github deepspeedai/DeepSpeed, issue 5046). DeepSpeed 0.19.8 no longer has them (pull request
8490); lesson ``27_fewer_bytes`` writes 1-bit Adam by hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from workshop.facts.checks import check_choice, check_not_negative

NAMES = ("OneBitAdam", "ZeroOneAdam", "OneBitLamb")
GONE_IN = (0, 19, 8)
"""The oldest version that was seen without them."""


@dataclass(frozen=True)
class OneBit:
    """A 1-bit optimizer. ``freeze_step``: plain steps before it; for ZeroOneAdam, when variances freeze.

    ``deepspeed_version`` is the version that will read the file: it must still have the optimizer.
    """

    name: str
    lr: float
    freeze_step: int
    deepspeed_version: str
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_choice("1-bit optimizer", self.name, NAMES)
        check_not_negative("freeze_step", self.freeze_step)
        check_has_onebit(self.name, self.deepspeed_version)

    def section(self) -> dict[str, Any]:
        """The JSON's ``optimizer``."""
        freeze = {"var_freeze_step": self.freeze_step} if self.name == "ZeroOneAdam" else {}
        return {
            "type": self.name,
            "params": {
                "lr": self.lr,
                "weight_decay": self.weight_decay,
                **(freeze or {"freeze_step": self.freeze_step}),
                "cuda_aware": False,
                "comm_backend_name": "nccl",
            },
        }


def check_has_onebit(name: str, version: str) -> None:
    """ValueError where that version of DeepSpeed has dropped the optimizer, or is no version."""
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if numbers is None:
        raise ValueError(f"deepspeed_version = {version!r} is no version; for example '0.16.9'")
    if tuple(int(number or 0) for number in numbers.groups()) >= GONE_IN:
        raise ValueError(
            f"DeepSpeed {version} has no {name}: it dropped its 1-bit optimizers "
            "(github deepspeedai/DeepSpeed, pull request 8490). Use a version before 0.19, or DDP with the "
            "1-bit hook of lesson 27_fewer_bytes"
        )
