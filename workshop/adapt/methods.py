"""The ways to adapt a model that peft knows, behind one call.

=============  ===========================================================================  ==================
method         what is trained                                                              paper (arXiv)
=============  ===========================================================================  ==================
``full``       everything
``lora``       a low-rank change beside some matrices                                       2106.09685
``dora``       the same, and the length of each row                                         2402.09353
``adalora``    a low-rank change, the rank dealt out anew to where it helps                 2303.10512
``ia3``        one factor for each key, value and hidden unit of the MLP                    2205.05638
``prompt``     a few vectors put before the embedded text                                   2104.08691
``p-tuning``   the same, made by a small network                                            2103.10385
=============  ===========================================================================  ==================

Prompts cost positions in every sequence and change no weight; the others change weights and can be merged
(all but ``prompt`` and ``p-tuning``).

Two silent failures are caught here. An adapter can be *saved with no tensors in it* (peft's own state dict
under FSDP2 with activation checkpointing is empty: the wrapper's name hides the parameters from it), so
`adapter_state` finds them by itself and `save_adapter` refuses to write nothing. And AdaLoRA needs a call
after each step, which a plain training loop does not make: `after_step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workshop.facts.checks import check_choice
from workshop.process.quiet import quietly

METHODS = ("full", "lora", "dora", "adalora", "ia3", "prompt", "p-tuning")
WRAPPERS = ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module.", "_orig_mod.", "module.")
LLAMA_TARGETS = ("q_proj", "v_proj")


def adapt(
    model: nn.Module,
    method: str,
    rank: int = 8,
    targets: Sequence[str] = LLAMA_TARGETS,
    num_tokens: int = 8,
    num_steps: int = 100,
) -> nn.Module:
    """Freeze a transformers causal language model and add what ``method`` trains.

    Args:
        model: changed in place; keep the result, which wraps it.
        method: one of `METHODS`.
        rank: of ``lora``, ``dora`` and ``adalora``; alpha is twice that.
        targets: last names of the maps that get a low-rank change.
        num_tokens: of ``prompt`` and ``p-tuning``.
        num_steps: of the whole training; only ``adalora`` needs to know.

    Raises ValueError: an unknown method, or no map has a target's name (peft's message lists nothing, so
    ours does).
    """
    check_choice("method", method, METHODS)
    if method == "full":
        return model.requires_grad_(True)
    there = {name.rpartition(".")[2] for name, m in model.named_modules() if hasattr(m, "in_features")}
    if missing := set(targets) - there:
        raise ValueError(
            f"no linear map is called {', '.join(sorted(missing))}; there are {', '.join(sorted(there))}"
        )
    with quietly():
        from peft import get_peft_model

        return get_peft_model(model, _config(method, rank, list(targets), num_tokens, num_steps))


def _config(method: str, rank: int, targets: list[str], num_tokens: int, num_steps: int) -> Any:
    import peft

    task: dict[str, Any] = {"task_type": "CAUSAL_LM"}
    low_rank: dict[str, Any] = {"r": rank, "lora_alpha": 2 * rank, "target_modules": targets, **task}
    if method in ("lora", "dora"):
        return peft.LoraConfig(use_dora=method == "dora", **low_rank)
    if method == "adalora":
        del low_rank["r"]  # begins half as large again, and a third of it is taken away on the way
        return peft.AdaLoraConfig(
            init_r=rank + rank // 2, target_r=rank, total_step=num_steps, tinit=num_steps // 5,
            tfinal=num_steps // 5, deltaT=max(1, num_steps // 20), **low_rank,
        )  # fmt: skip
    if method == "ia3":
        return peft.IA3Config(
            target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"], **task
        )
    if method == "prompt":
        return peft.PromptTuningConfig(num_virtual_tokens=num_tokens, **task)
    return peft.PromptEncoderConfig(num_virtual_tokens=num_tokens, encoder_hidden_size=128, **task)


def after_step(model: nn.Module, step: int) -> None:
    """Call it after each optimizer step, before the gradients go: AdaLoRA deals its ranks out anew."""
    update = getattr(getattr(model, "base_model", None), "update_and_allocate", None)
    if update is not None:
        update(step)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that an optimizer would step, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """What was trained, by names without wrappers: whole on every rank, on the CPU, shaped as its parameter.

    Every rank of an FSDP group must call it: sharded tensors are gathered.

    Raises ValueError: nothing is trained, or a tensor holds what is not a number.
    """
    state = {}
    for name, parameter in trained(model).items():
        tensor = parameter.detach()
        gather = getattr(tensor, "full_tensor", None)  # of a DTensor
        state[clean_name(name)] = (gather() if gather else tensor).cpu()
    if not state:
        raise ValueError("this model trains nothing, so its adapter would be saved empty: was it adapted?")
    if bad := [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]:
        raise ValueError(f"{bad[0]} holds values that are not numbers: saving it would keep a broken adapter")
    return state


def clean_name(name: str) -> str:
    """A parameter's name without what DDP, FSDP, checkpointing and compile put into it."""
    for wrapper in WRAPPERS:
        name = name.removeprefix(wrapper) if wrapper == "module." else name.replace(wrapper, "")
    return name


def save_adapter(model: nn.Module, folder: str | Path, state: dict[str, Tensor] | None = None) -> Path:
    """Write the adapter of a peft model as peft does, so that ``PeftModel.from_pretrained`` reads it.

    ``state`` is `adapter_state`, tensors by name, where it was gathered before (FSDP); returns the file
    with the tensors.

    Raises ValueError: no tensor would be written, or fewer numbers than were trained.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    inner: Any = model.module if hasattr(model, "module") else model
    state = adapter_state(model) if state is None else state
    tensors = get_peft_model_state_dict(inner, state_dict=dict(state))
    config = inner.peft_config["default"]
    # Of a prompt the vectors are kept, not the network that made them; AdaLoRA gives up ranks.
    shrinks = config.is_prompt_learning or config.peft_type == "ADALORA"
    trained, kept = (sum(t.numel() for t in each.values()) for each in (state, tensors))
    if not tensors or (kept < trained and not shrinks):
        raise ValueError(
            f"the adapter has {trained:,} trained numbers and {kept:,} would be saved: the names do not "
            f"match ({next(iter(state))}). Pass the model that peft made, or its adapter_state"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    place = folder / "adapter_model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, place)
    return place
