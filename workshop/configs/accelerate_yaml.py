"""A run as the YAML of ``accelerate launch``: DDP, FSDP2 or DeepSpeed.

The file answers three questions: how many processes on how many machines, which engine, and that engine's own
few settings. ``accelerate launch`` turns the answers into environment variables and starts torchrun;
``Accelerator()`` reads the variables (`launch_environment` is that translation, written out). So one script
trains under every engine, and the file decides which.

Defaults are not relied upon: what matters is written even where it is the default, because defaults of
several keys have changed between versions, and the default of ``fsdp_version`` is still 1. Names are those of
accelerate 1.15 (github huggingface/accelerate, src/accelerate/commands/launch.py, commands/config).
"""

from __future__ import annotations

from typing import Any

from workshop.configs.engines import MIXED_PRECISION, chosen_engine
from workshop.configs.fsdp_policy import wrapped_class
from workshop.configs.unset import comment_lines, unset_by_accelerate
from workshop.facts.run import Run

DISTRIBUTED_TYPE = {"ddp": "MULTI_GPU", "fsdp": "FSDP", "deepspeed": "DEEPSPEED"}

NEVER_CLIPS = 1e9
"""A norm that no gradient has. In this file ``gradient_clipping: 0`` would not mean "off": Accelerate drops a
zero, and DeepSpeed (since 0.19) clips at 1.0 when it is told nothing."""


def accelerate_config(
    run: Run,
    engine: str | None = None,
    *,
    wrap_class: str = "",
    gradient_clipping: float = 0.0,
    deepspeed_file: str = "",
) -> dict[str, Any]:
    """The file as a dictionary.

    Args:
        run: what is to be trained.
        engine: ``"ddp"``, ``"fsdp"`` or ``"deepspeed"``; by default `engine_of` the run.
        wrap_class: class of the model's layers, for FSDP; known for models of the catalogue.
        gradient_clipping: largest norm of the gradient under DeepSpeed, which clips by itself; 0: off.
        deepspeed_file: path of a DeepSpeed JSON (`deepspeed_json`) that says the rest.

    Raises:
        ValueError: The engine cannot do this run (every reason is told), or ranks do not divide over nodes.
    """
    engine = chosen_engine(run, engine)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(run, engine),
        "use_cpu": False,
        **_machines(run),
        "mixed_precision": MIXED_PRECISION[engine][run.layout.precision],
    }
    if engine == "fsdp":
        config["fsdp_config"] = _fsdp(run, wrap_class)
        if run.layout.replicate > 1:
            config["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": run.layout.replicate,
                "parallelism_config_dp_shard_size": run.layout.shard,
            }
    elif engine == "deepspeed" and deepspeed_file:
        del config["mixed_precision"]  # said in the JSON; said twice, Accelerate refuses both
        config["deepspeed_config"] = _several_nodes(run) | {
            "deepspeed_config_file": deepspeed_file,
            "zero3_init_flag": run.layout.zero == 3,
        }
    elif engine == "deepspeed":
        config["deepspeed_config"] = _several_nodes(run) | _deepspeed(run, gradient_clipping)
    return config


def _distributed_type(run: Run, engine: str) -> str:
    """The launcher refuses MULTI_GPU for a single process."""
    alone = engine == "ddp" and run.layout.world_size == 1
    return "NO" if alone else DISTRIBUTED_TYPE[engine]


def _machines(run: Run) -> dict[str, Any]:
    """Processes and machines. ``num_processes`` counts all machines together."""
    ranks, nodes = run.layout.world_size, run.cluster.num_nodes
    if run.cluster.shared_memory:
        nodes = 1
    if ranks % nodes:
        raise ValueError(f"{ranks} ranks do not divide over {nodes} nodes of {run.cluster.name}")
    counts: dict[str, Any] = {"num_machines": nodes, "num_processes": ranks}
    if nodes > 1:
        counts |= {"rdzv_backend": "c10d", "same_network": False, "main_process_port": 29500}
    return counts


def _fsdp(run: Run, wrap_class: str) -> dict[str, Any]:
    """FSDP2. It has no key for the dtype of reductions: Accelerate reduces in the compute dtype."""
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": wrapped_class(run, wrap_class),
        "fsdp_reshard_after_forward": run.layout.zero == 3,
        "fsdp_offload_params": run.layout.offload == "params",
        "fsdp_activation_checkpointing": run.layout.recompute == "full",
        "fsdp_activation_checkpointing_offload": run.layout.offload == "activations",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": False,
    }


def _several_nodes(run: Run) -> dict[str, Any]:
    """DeepSpeed's own launcher logs into other nodes by ssh; ``standard`` starts as torchrun does."""
    return {"deepspeed_multinode_launcher": "standard"} if _machines(run)["num_machines"] > 1 else {}


def _deepspeed(run: Run, gradient_clipping: float) -> dict[str, Any]:
    layout = run.layout
    return {
        "zero_stage": layout.zero,
        "gradient_accumulation_steps": run.accumulation,
        "gradient_clipping": gradient_clipping or NEVER_CLIPS,
        "offload_optimizer_device": "cpu" if layout.offload in ("optimizer", "params") else "none",
        "offload_param_device": "cpu" if layout.offload == "params" else "none",
        "zero3_init_flag": layout.zero == 3,
        "zero3_save_16bit_model": layout.zero == 3,
    }


def accelerate_yaml(run: Run, engine: str | None = None, **settings: Any) -> str:
    """The text of `accelerate_config`, below comments: the command, and what the file leaves unset."""
    import yaml

    config = accelerate_config(run, engine, **settings)
    engine = chosen_engine(run, engine)
    recompute_in_file = engine == "fsdp" and run.layout.recompute == "full"
    head = [f"# {run.model.name} on {run.cluster.name} under {engine}. Start it with"]
    head += [f"#   {launch_command(config)}"]
    if config["num_machines"] > 1:
        head += [f"# on each of {config['num_machines']} nodes, with N from 0"]
    head += comment_lines(unset_by_accelerate(run, engine, recompute_in_file))
    return "\n".join(head) + "\n" + yaml.safe_dump(config, sort_keys=False)


def launch_command(config: dict[str, Any]) -> str:
    """How the file is used; on several machines the command is given on each, with the machine's number N."""
    if config["num_machines"] == 1:
        return "accelerate launch --config_file FILE train.py"
    return "accelerate launch --config_file FILE --machine_rank N --main_process_ip FIRST_NODE train.py"
