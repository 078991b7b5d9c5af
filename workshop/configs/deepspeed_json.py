"""A run as DeepSpeed's JSON: every ZeRO stage, with the optimizer or the weights on the CPU, or 1-bit.

    deepspeed.initialize(model=model, optimizer=optimizer, config="ds.json")

Three numbers decide the batch, and any two give the third; all three are written, so that a file moved to
another number of GPUs stops instead of training with another batch::

    train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * data-parallel ranks

Clipping is always written too. DeepSpeed 0.19 clips gradients at norm 1.0 when the file says nothing;
earlier ones did not clip. Keys are those of DeepSpeed 0.19 (github
deepspeedai/DeepSpeed, deepspeed/runtime/config.py, runtime/zero/config.py; deepspeed.ai/docs/config-json).
"""

from __future__ import annotations

import json
from typing import Any

from workshop.configs.engines import MIXED_PRECISION, chosen_engine
from workshop.configs.onebit import OneBit
from workshop.facts.run import Run

OPTIMIZER_TYPES = {"adamw": "AdamW", "adam": "Adam", "lion": "Lion", "muon": "Muon"}


def deepspeed_config(
    run: Run,
    *,
    lr: float | None = None,
    gradient_clipping: float = 0.0,
    onebit: OneBit | None = None,
) -> dict[str, Any]:
    """The file as a dictionary.

    Args:
        run: what is to be trained.
        lr: with it the file names the run's optimizer too, and the script makes none; without it the script
            does (as Accelerate expects).
        gradient_clipping: largest norm of the gradient; 0: off.
        onebit: a 1-bit optimizer in place of the run's; stage 0 only.

    Raises:
        ValueError: DeepSpeed cannot do this run (every reason is told), or has no such optimizer.
    """
    chosen_engine(run, "deepspeed")
    config: dict[str, Any] = {
        "train_batch_size": run.global_batch,
        "train_micro_batch_size_per_gpu": run.micro_batch,
        "gradient_accumulation_steps": run.accumulation,
        "gradient_clipping": gradient_clipping,
        "zero_optimization": _zero(run),
        "steps_per_print": 1_000_000_000,
    }
    width = MIXED_PRECISION["deepspeed"][run.layout.precision]
    if width != "no":
        config[width] = {"enabled": True}
    if onebit is not None:
        config["optimizer"] = _onebit(run, onebit)
    elif lr is not None:
        config["optimizer"] = _optimizer(run, lr)
    return config


def _zero(run: Run) -> dict[str, Any]:
    layout = run.layout
    section: dict[str, Any] = {"stage": layout.zero}
    if layout.zero == 0:
        return section
    section |= {"overlap_comm": True, "contiguous_gradients": True}
    if layout.zero < 3:
        section["reduce_scatter"] = True
    else:
        section["stage3_gather_16bit_weights_on_model_save"] = True
    if layout.offload in ("optimizer", "params"):
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if layout.offload == "params":
        section["offload_param"] = {"device": "cpu", "pin_memory": True}
    return section


def _optimizer(run: Run, lr: float) -> dict[str, Any]:
    if run.optimizer not in OPTIMIZER_TYPES:
        raise ValueError(
            f"DeepSpeed makes no optimizer {run.optimizer!r} by name (it has {', '.join(OPTIMIZER_TYPES)}); "
            "leave lr out, and make it in the script"
        )
    params: dict[str, Any] = {"lr": lr}
    if run.optimizer == "adam":
        params["adam_w_mode"] = False  # or "Adam" is AdamW
    return {"type": OPTIMIZER_TYPES[run.optimizer], "params": params}


def _onebit(run: Run, onebit: OneBit) -> dict[str, Any]:
    if run.layout.zero:
        raise ValueError(
            f"zero = {run.layout.zero} with {onebit.name}: it compresses the momentum of all parameters, so "
            "every rank must hold it whole; use zero = 0"
        )
    return onebit.section()


def deepspeed_json(run: Run, **settings: Any) -> str:
    """The text of `deepspeed_config`. JSON has no comments: `unset_by_deepspeed` lists what is missing."""
    return json.dumps(deepspeed_config(run, **settings), indent=2) + "\n"
