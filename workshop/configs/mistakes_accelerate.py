"""What goes wrong with an Accelerate YAML: processes and machines, sections nobody reads, FSDP, DeepSpeed.

Sources, where not seen by trial: github huggingface/accelerate, src/accelerate/commands/launch.py
(`_validate_launch_command`, `launch_command`), src/accelerate/utils/launch.py, utils/dataclasses.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workshop.configs.given import Given
from workshop.configs.known_keys import ACCELERATE, SECTIONS
from workshop.configs.mistakes_fsdp import fsdp_mistakes
from workshop.configs.silent_mistakes import Mistake, misspelt, truth
from workshop.facts.checks import nearest

Config = Mapping[str, Any]


def accelerate_mistakes(config: Config, given: Given) -> list[Mistake]:
    """Everything found wrong, in the order of the file's own logic."""
    uncounted = [*_counts(config)]
    if uncounted:  # the other rules count with them
        return [*_words(config), *_keys(config), *uncounted]
    return [
        *_words(config),
        *_keys(config),
        *_one_process(config, given),
        *_machines(config, given),
        *_unread_sections(config),
        *_mesh(config),
        *fsdp_mistakes(config, given),
        *_deepspeed(config),
    ]


def _words(config: Config) -> Iterator[Mistake]:
    """``no`` without quotes is false in YAML 1.1."""
    for key in ("distributed_type", "mixed_precision"):
        if config.get(key) is False:
            yield Mistake(
                key, "stops", "no without quotes is false to YAML; Accelerate wants the word", f"{key}: 'no'"
            )
    if "distributed_type" not in config:
        yield Mistake("distributed_type", "stops", "it is missing", "say MULTI_GPU, FSDP, DEEPSPEED or 'NO'")


def _counts(config: Config) -> Iterator[Mistake]:
    """Numbers that are none: quotes make a word of one."""
    mesh = config.get("parallelism_config") or {}
    counted = {key: config[key] for key in ("num_processes", "num_machines") if key in config}
    counted |= {f"parallelism_config.{key}": value for key, value in mesh.items() if key.endswith("_size")}
    for key, value in counted.items():
        if value is not None and type(value) is not int:
            cure = "write the number, without quotes"
            yield Mistake(key, "stops", f"{value!r} is not a whole number", cure)


def _keys(config: Config) -> Iterator[Mistake]:
    for key in config:
        if key not in ACCELERATE:
            yield Mistake(
                key,
                "stops",
                f"Accelerate knows no such key{nearest(key, ACCELERATE)}",
                "correct it or take it out",
            )
    for section, known in SECTIONS.items():
        prefix = "fsdp_" if section == "fsdp_config" else ""
        yield from misspelt(config.get(section) or {}, section, known, prefix)


def _one_process(config: Config, given: Given) -> Iterator[Mistake]:
    """More processes are asked for than will work together."""
    kind, ranks = config.get("distributed_type"), config.get("num_processes") or 1
    if ranks < 2:
        return
    torchrun = f"torchrun --nproc-per-node {ranks} train.py, with ACCELERATE_USE_CPU=true set"
    if kind in ("MULTI_CPU", "NO") and not (config.get("mpirun_config") or {}).get("mpirun_hostfile"):
        yield Mistake(
            "distributed_type",
            "silent",
            f"{kind} starts one process, whatever num_processes says ({ranks}), and ends with exit code 0",
            torchrun if kind == "MULTI_CPU" else "MULTI_GPU, FSDP or DEEPSPEED",
        )
    elif truth(config.get("use_cpu")) and kind == "DEEPSPEED":
        yield Mistake("use_cpu", "stops", "DeepSpeed finds a batch for one process", "use_cpu: false")
    elif truth(config.get("use_cpu")) or (given.on_cpu and kind in ("FSDP", "MULTI_GPU")):
        yield Mistake(
            "use_cpu",
            "silent",
            f"without GPUs {kind} starts {ranks} processes, and each believes that it is rank 0 of 1: "
            "nothing is shared and nothing is sharded",
            f"assert accelerator.num_processes == {ranks} in the script; on CPUs "
            + (
                torchrun
                if kind != "FSDP"
                else "examples/any_engine/accelerate_any.py shows what makes it work"
            ),
        )


def _machines(config: Config, given: Given) -> Iterator[Mistake]:
    ranks, nodes = config.get("num_processes"), config.get("num_machines") or 1
    if not isinstance(ranks, int) or nodes < 2:
        return
    each = ranks // nodes
    if ranks % nodes:
        yield Mistake(
            "num_processes",
            "silent",
            f"{ranks} do not divide over {nodes} machines: each starts {each}, {each * nodes} in all",
            f"num_processes counts all machines: a multiple of {nodes}",
        )
    cluster = given.cluster(ranks)
    if cluster is not None and not cluster.shared_memory and each < cluster.devices_per_node:
        full = cluster.devices_per_node * nodes
        yield Mistake(
            "num_processes",
            "silent",
            f"it counts the processes of all {nodes} machines together: each starts {each}, and "
            f"{cluster.devices_per_node - each} of its {cluster.devices_per_node} devices stay idle",
            f"num_processes: {full}",
        )
    if not config.get("main_process_ip") and "machine_rank" in config:
        yield Mistake(
            "main_process_ip",
            "stops",
            "several machines must know where to meet; without it they wait for a host called None",
            "name the first node here, or give --main_process_ip to accelerate launch",
        )
    if (config.get("rdzv_backend") or "static") == "static" and "machine_rank" in config:
        yield Mistake(
            "machine_rank",
            "stops",
            f"one file for all machines makes each of them number {config['machine_rank']}: they wait for "
            "the others",
            "give --machine_rank on each machine, or rdzv_backend: c10d",
        )


def _unread_sections(config: Config) -> Iterator[Mistake]:
    kind = config.get("distributed_type")
    for section, reader in (("fsdp_config", "FSDP"), ("deepspeed_config", "DEEPSPEED")):
        if config.get(section) and kind != reader:
            yield Mistake(
                section,
                "silent",
                f"distributed_type is {kind}, so nobody reads this section: nothing in it happens",
                f"distributed_type: {reader}, or take the section out",
            )


def _mesh(config: Config) -> Iterator[Mistake]:
    mesh = config.get("parallelism_config") or {}
    if not mesh:
        return
    version = str((config.get("fsdp_config") or {}).get("fsdp_version", 1))
    if config.get("distributed_type") != "FSDP" or version != "2":
        yield Mistake(
            "parallelism_config",
            "stops",
            "it works with FSDP2 only",
            "distributed_type: FSDP, fsdp_version: 2",
        )
    axes = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    sizes = {axis: mesh.get(f"parallelism_config_{axis}_size") or 1 for axis in axes}
    product = 1
    for size in sizes.values():
        product *= size
    ranks = config.get("num_processes")
    if ranks and product != ranks:
        told = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "every size 1"
        yield Mistake(
            "parallelism_config", "stops", f"{told} = {product} ranks, and num_processes is {ranks}",
            "the product of the sizes must be num_processes",
        )  # fmt: skip
    if sizes["tp"] > 1:
        yield Mistake(
            "parallelism_config.parallelism_config_tp_size",
            "stops",
            "with accelerate 1.15 and transformers 5.23 it fails at an import (ReplicateParallel)",
            "transformers' own DistributedConfig(tp_size=..., fsdp_size=...)",
        )


def _deepspeed(config: Config) -> Iterator[Mistake]:
    section = config.get("deepspeed_config") or {}
    if config.get("distributed_type") != "DEEPSPEED":
        return
    if section.get("deepspeed_config_file"):
        yield from _said_twice(config, section)
        return
    stage = int(section.get("zero_stage", 2))
    yield from _stage(section, stage)
    clip = section.get("gradient_clipping")
    if clip is None or clip == "auto" or float(clip) == 0:
        told = "nothing" if clip is None else repr(clip)
        yield Mistake(
            "deepspeed_config.gradient_clipping",
            "silent",
            f"with {told} here gradients are clipped at norm 1.0, and accelerator.clip_grad_norm_(..., "
            "max_norm) does not change that: DeepSpeed clips, by this key alone",
            "write the norm you want; 1.0e+9 where you want none",
        )


def _said_twice(config: Config, section: Mapping[str, Any]) -> Iterator[Mistake]:
    """What a deepspeed_config_file forbids beside it."""
    once = (
        "gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
        "offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path",
        "zero3_save_16bit_model",
    )  # fmt: skip
    twice = [key for key in once if key in section]
    twice += ["mixed_precision"] if config.get("mixed_precision") is not None else []
    if twice:
        yield Mistake(
            "deepspeed_config.deepspeed_config_file",
            "stops",
            f"the JSON file says these, so the YAML must not: {', '.join(twice)}",
            "take them out of the YAML",
        )


def _stage(section: Mapping[str, Any], stage: int) -> Iterator[Mistake]:
    if "zero_stage" not in section:
        yield Mistake(
            "deepspeed_config.zero_stage", "silent", "without this key it is stage 2", "write the stage"
        )
    for what, least in (("param", 3), ("optimizer", 1)):
        device = section.get(f"offload_{what}_device") or "none"
        if device != "none" and stage < least:
            yield Mistake(
                f"deepspeed_config.offload_{what}_device",
                "silent",
                f"{device} at stage {stage}: only stage {least}{'' if least == 3 else ' and above'} offloads "
                "it; it stays on the device",
                f"zero_stage: {least}, or 'none'",
            )
    if stage == 3 and not truth(section.get("zero3_save_16bit_model")):
        yield Mistake(
            "deepspeed_config.zero3_save_16bit_model",
            "stops",
            "training works, and at its end accelerator.get_state_dict and save_model raise: no rank has the "
            "weights",
            "zero3_save_16bit_model: true",
        )
    if stage == 3 and "zero3_init_flag" in section and not truth(section["zero3_init_flag"]):
        yield Mistake(
            "deepspeed_config.zero3_init_flag",
            "costly",
            "every process first makes the whole model in its own memory: eight on a node, eight models",
            "zero3_init_flag: true (from_pretrained then makes shards)",
        )
