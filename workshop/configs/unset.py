"""What a file cannot say of a run, and where it is said instead.

No file of Accelerate or DeepSpeed holds a whole run. What it leaves out is said by the script, and a reader
must ask for it. These lists stand as comments at the top of every written file, and are the arguments of
`read_config`.
"""

from __future__ import annotations

from workshop.facts.run import Run

Unset = dict[str, str]
"""Field of the run -> its value and where to say it, in words."""


def unset_by_accelerate(run: Run, engine: str, full_recompute_is_set: bool) -> Unset:
    """What an Accelerate YAML leaves to the script."""
    elsewhere = _unset_by_any(run) | {
        "micro_batch": f"{run.micro_batch}: DataLoader(batch_size={run.micro_batch})",
    }
    if engine != "deepspeed" and run.accumulation == 1:
        elsewhere["accumulation"] = "1: as it is without a word"
    elif engine == "ddp":
        elsewhere["accumulation"] = (
            f"{run.accumulation}: Accelerator(gradient_accumulation_steps={run.accumulation})"
        )
    elif engine == "fsdp":  # without sync_each_batch every rank keeps whole gradients between micro-batches
        elsewhere["accumulation"] = (
            f"{run.accumulation}: Accelerator(gradient_accumulation_plugin="
            f"GradientAccumulationPlugin(num_steps={run.accumulation}, sync_each_batch=True))"
        )
    if not full_recompute_is_set:
        elsewhere |= _recompute(run)
    if run.layout.precision == "bf16":
        elsewhere["precision"] = "bf16: the script makes the model in bfloat16"
    return elsewhere


def unset_by_deepspeed(run: Run, *, optimizer_is_set: bool = False) -> Unset:
    """What a DeepSpeed JSON leaves to the script and the launcher."""
    elsewhere = _unset_by_any(run)
    if optimizer_is_set:
        del elsewhere["optimizer"]
    return elsewhere | {"world_size": f"{run.layout.world_size}: of the launcher"} | _recompute(run)


def _unset_by_any(run: Run) -> Unset:
    elsewhere = {
        "model": f"{run.model.name}: the script makes it",
        "seq_len": f"{run.seq_len}: of the batches",
        "optimizer": f"{run.optimizer}: the script makes it",
    }
    if run.adapter is not None:
        elsewhere["adapter"] = f"{run.adapter.method}, rank {run.adapter.rank}: the script adds it"
    return elsewhere


def _recompute(run: Run) -> Unset:
    if run.layout.recompute == "none":
        return {}
    return {"recompute": f"{run.layout.recompute}: model.gradient_checkpointing_enable() or the like"}


def comment_lines(unset: Unset) -> list[str]:
    """The list as lines of comment."""
    return ["# Said elsewhere, because this file cannot say it:"] + [
        f"#   {name} = {words}" for name, words in unset.items()
    ]
