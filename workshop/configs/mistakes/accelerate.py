"""What goes wrong with an Accelerate YAML: words, processes and machines, sections nobody reads, DeepSpeed.

Sources, where not seen by trial: github huggingface/accelerate, src/accelerate/commands/launch.py
(`_validate_launch_command`, `launch_command`), src/accelerate/utils/launch.py, utils/dataclasses.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workshop.configs.known_keys import (
    ACCELERATE,
    COMPUTE_ENVIRONMENTS,
    DISTRIBUTED_TYPES,
    DYNAMO_BACKENDS,
    FP8_BACKENDS,
    MIXED_PRECISION,
    MULTI_DEVICE,
    MULTINODE_LAUNCHERS,
    OFFLOAD_DEVICES,
    OTHER_FLAGS,
    SAID_IN_THE_JSON,
    SECTIONS,
)
from workshop.configs.mistakes.fsdp import fsdp_mistakes
from workshop.configs.mistakes.mesh import mesh_mistakes
from workshop.configs.mistakes.mistake import Mistake, kind_among, misspelt, table_at, truth, whole_number
from workshop.configs.overrides import Overrides
from workshop.facts.checks import nearest

Config = Mapping[str, Any]
ALL_FLAGS = [*OTHER_FLAGS, *(key for keys, _ in SECTIONS.values() for key in keys)]


def accelerate_mistakes(config: Config, overrides: Overrides) -> list[Mistake]:
    """Everything found wrong, in the order of the file's own logic."""
    uncounted = [*_counts(config)]
    if uncounted:  # the other rules count with them
        return [*_words(config), *_keys(config), *uncounted]
    return [
        *_words(config),
        *_keys(config),
        *_one_process(config, overrides),
        *_machines(config, overrides),
        *_unread_sections(config),
        *mesh_mistakes(config),
        *fsdp_mistakes(config, overrides),
        *_deepspeed(config, overrides),
    ]


def _words(config: Config) -> Iterator[Mistake]:
    """Choices, and ``no`` without quotes, which is false in YAML 1.1."""
    kind, ranks = config.get("distributed_type"), config.get("num_processes")
    problem = "no without quotes is false to YAML"
    environment = config.get("compute_environment", "LOCAL_MACHINE")
    if environment not in COMPUTE_ENVIRONMENTS:  # taken for a file of SageMaker's, whose keys are others
        yield _unknown("compute_environment", environment, COMPUTE_ENVIRONMENTS)
    if "distributed_type" not in config:
        yield Mistake("distributed_type", "stops", "it is missing", "say MULTI_GPU, FSDP, DEEPSPEED or 'NO'")
    elif kind is False and ranks is None:
        problem += ": Accelerate does not see 'NO' in it, and asks for num_processes"
        yield Mistake("distributed_type", "stops", problem, "distributed_type: 'NO'")
    elif kind is False and whole_number(ranks) != 1:
        problem += f": one process is started, whatever num_processes says ({ranks})"
        yield Mistake("distributed_type", "silent", problem, "MULTI_GPU, FSDP or DEEPSPEED")
    elif kind is not False and kind not in DISTRIBUTED_TYPES:
        yield _unknown("distributed_type", kind, DISTRIBUTED_TYPES)
    width = config.get("mixed_precision")
    if width is False:
        problem = "no without quotes is false to YAML; Accelerate wants the word"
        yield Mistake("mixed_precision", "stops", problem, "mixed_precision: 'no'")
    elif width is not None and str(width).lower() not in MIXED_PRECISION:
        yield _unknown("mixed_precision", width, MIXED_PRECISION)
    for section, key, choices in (
        ("dynamo_config", "dynamo_backend", DYNAMO_BACKENDS),
        ("fp8_config", "fp8_backend", FP8_BACKENDS),
    ):
        inside = table_at(config, section)
        value = inside.get(key) or inside.get(key.partition("_")[2])
        if section == "fp8_config":
            is_known = value in choices or str(width).lower() != "fp8"  # read letter for letter, if at all
        else:
            is_known = str(value).upper() in choices
        if value is not None and not is_known:
            yield _unknown(f"{section}.{key}", value, choices)


def _unknown(key: str, value: Any, choices: list[str]) -> Mistake:
    problem = f"there is no {value!r}{nearest(str(value), choices)}"
    return Mistake(key, "stops", problem, f"one of {', '.join(choices)}")


def _counts(config: Config) -> Iterator[Mistake]:
    """Numbers that are none. A word such as "8" passes where nobody divides by it."""
    machines = config.get("num_machines", 1)
    if type(machines) is not int:
        problem = f"{machines!r} is not a whole number"
        yield Mistake("num_machines", "stops", problem, "write the number, without quotes")
    ranks = config.get("num_processes")
    several = type(machines) is int and machines > 1
    if "num_processes" in config and (whole_number(ranks) is None or (several and type(ranks) is not int)):
        problem = f"{ranks!r} is not a whole number"
        yield Mistake("num_processes", "stops", problem, "write the number, without quotes")


def _keys(config: Config) -> Iterator[Mistake]:
    for key in config:
        if key not in ACCELERATE:
            problem = f"Accelerate knows no such key{nearest(key, ACCELERATE)}"
            yield Mistake(key, "stops", problem, "correct it or take it out")
    for section, (known, prefix) in SECTIONS.items():
        flags = known if prefix else [*known, *ALL_FLAGS]
        yield from misspelt(table_at(config, section), section, flags, prefix)
    chosen = config.get("gpu_ids")
    if chosen is not None and not isinstance(chosen, str):
        problem = f"{chosen!r} is a number; Accelerate splits a text at its commas"
        yield Mistake("gpu_ids", "stops", problem, f"gpu_ids: '{chosen}'")
    elif chosen not in (None, "all") and "," not in chosen and _starts_several(config):
        problem = f"{chosen!r} is one device, and {config['distributed_type']} wants two at least"
        yield Mistake("gpu_ids", "stops", problem, "gpu_ids: all, or several: '0,1'")


def _starts_several(config: Config) -> bool:
    return config.get("distributed_type") in MULTI_DEVICE and (config.get("num_machines") or 1) < 2


def _one_process(config: Config, overrides: Overrides) -> Iterator[Mistake]:
    """More processes are asked for than will work together."""
    kind, ranks = config.get("distributed_type"), whole_number(config.get("num_processes")) or 1
    on_cpu = truth(config.get("use_cpu"))
    if ranks < 2:
        return
    torchrun = f"torchrun --nproc-per-node {ranks} train.py, with ACCELERATE_USE_CPU=true set"
    if kind in ("MULTI_CPU", "NO") and not table_at(config, "mpirun_config").get("mpirun_hostfile"):
        yield Mistake(
            "distributed_type",
            "silent",
            f"{kind} starts one process, whatever num_processes says ({ranks}), and ends with exit code 0",
            torchrun if kind == "MULTI_CPU" else "MULTI_GPU, FSDP or DEEPSPEED",
        )
    elif on_cpu and kind == "DEEPSPEED":
        yield Mistake(
            "use_cpu",
            "stops",
            "the launcher of DEEPSPEED does not read it: with GPUs they are used; without, DeepSpeed finds "
            "a batch "
            "for one process",
            "use_cpu: false",
        )
    elif kind in ("FSDP", "MULTI_GPU") and (on_cpu or overrides.on_cpu):
        unread = f"the launcher of {kind} does not read it: with GPUs they are used; " if on_cpu else ""
        yield Mistake(
            "use_cpu",
            "silent",
            f"{unread}without GPUs {kind} starts {ranks} processes, and each believes that it is rank 0 of "
            "1: "
            "nothing is shared and nothing is sharded",
            f"assert accelerator.num_processes == {ranks} in the script; on CPUs "
            + (
                torchrun
                if kind != "FSDP"
                else "examples/any_engine/accelerate_any.py shows what makes it work"
            ),
        )


def _machines(config: Config, overrides: Overrides) -> Iterator[Mistake]:
    ranks, nodes = whole_number(config.get("num_processes")), config.get("num_machines") or 1
    if nodes < 2:
        return
    if ranks:
        yield from _processes_of_each(ranks, nodes, overrides)
    launcher = table_at(config, "deepspeed_config").get("deepspeed_multinode_launcher") or "pdsh"
    if config.get("distributed_type") == "DEEPSPEED" and launcher != "standard":
        if launcher == "pdsh" and not table_at(config, "deepspeed_config").get("deepspeed_hostfile"):
            yield Mistake(
                "deepspeed_config.deepspeed_hostfile",
                "silent",
                "the launcher is pdsh, and there is no host file: DeepSpeed trains on this machine alone, "
                f"not on {nodes}",
                "deepspeed_hostfile: PATH, or deepspeed_multinode_launcher: standard",
            )
        return
    if not config.get("main_process_ip") and "machine_rank" in config:
        yield Mistake(
            "main_process_ip",
            "stops",
            "several machines must know where to meet; without it they wait for a host called None",
            "name the first node here, or give --main_process_ip to accelerate launch",
        )
    if (config.get("rdzv_backend") or "static") == "static" and "machine_rank" in config:
        number = config["machine_rank"]
        yield Mistake(
            "machine_rank",
            "depends",
            f"this is the file of machine {number}: used on another machine too, both are number {number}, "
            "and wait",
            "a file for each machine, or accelerate launch --machine_rank N, or rdzv_backend: c10d",
        )


def _processes_of_each(ranks: int, nodes: int, overrides: Overrides) -> Iterator[Mistake]:
    each = ranks // nodes
    if ranks % nodes:
        yield Mistake(
            "num_processes",
            "silent",
            f"{ranks} do not divide over {nodes} machines: each starts {each}, {each * nodes} in all",
            f"num_processes counts all machines: a multiple of {nodes}",
        )
    cluster = overrides.cluster(ranks)
    if cluster is not None and not cluster.shared_memory and each < cluster.devices_per_node:
        full = cluster.devices_per_node * nodes
        yield Mistake(
            "num_processes",
            "silent",
            f"it counts the processes of all {nodes} machines together: each starts {each}, and "
            f"{cluster.devices_per_node - each} of its {cluster.devices_per_node} devices stay idle",
            f"num_processes: {full}",
        )


def _unread_sections(config: Config) -> Iterator[Mistake]:
    kind = config.get("distributed_type")
    for section, reader in (("fsdp_config", "FSDP"), ("deepspeed_config", "DEEPSPEED")):
        if table_at(config, section) and kind != reader:
            yield Mistake(
                section,
                "silent",
                f"distributed_type is {kind}, so nobody reads this section: nothing in it happens",
                f"distributed_type: {reader}, or take the section out",
            )
    if table_at(config, "fp8_config") and str(config.get("mixed_precision")).lower() != "fp8":
        problem = f"mixed_precision is {config.get('mixed_precision')!r}, so nobody reads this section"
        yield Mistake("fp8_config", "silent", problem, "mixed_precision: fp8, or take the section out")


def _deepspeed(config: Config, overrides: Overrides) -> Iterator[Mistake]:
    section = table_at(config, "deepspeed_config")
    if config.get("distributed_type") != "DEEPSPEED":
        return
    launcher = section.get("deepspeed_multinode_launcher")
    if launcher not in (None, *MULTINODE_LAUNCHERS) and (config.get("num_machines") or 1) > 1:
        yield _unknown("deepspeed_config.deepspeed_multinode_launcher", launcher, MULTINODE_LAUNCHERS)
    if section.get("deepspeed_config_file"):
        yield from _said_twice(config, section)
        return
    stage = whole_number(section.get("zero_stage", 2))
    if stage not in (0, 1, 2, 3):
        yield _unknown("deepspeed_config.zero_stage", section["zero_stage"], ["0", "1", "2", "3"])
        return
    if "zero_stage" not in section:
        problem = "without this key it is stage 2"
        yield Mistake("deepspeed_config.zero_stage", "silent", problem, "write the stage")
    yield from _offload(section, stage)
    yield from _saving(section, stage, overrides)
    yield from _clipping(section.get("gradient_clipping"), overrides)


def _said_twice(config: Config, section: Config) -> Iterator[Mistake]:
    """What a deepspeed_config_file forbids beside it."""
    twice = [key for key in SAID_IN_THE_JSON if key in section]
    twice += ["mixed_precision"] if config.get("mixed_precision") is not None else []
    if twice:
        yield Mistake(
            "deepspeed_config.deepspeed_config_file",
            "stops",
            f"the JSON file says these, so the YAML must not: {', '.join(twice)}",
            "take them out of the YAML",
        )


def _offload(section: Config, stage: int) -> Iterator[Mistake]:
    for what, least in (("param", 3), ("optimizer", 1)):
        key = f"deepspeed_config.offload_{what}_device"
        device = section.get(f"offload_{what}_device") or "none"
        if str(device).lower() not in OFFLOAD_DEVICES:
            yield _unknown(key, device, OFFLOAD_DEVICES)
        elif device != "none" and stage < least:
            problem = (
                f"{device} at stage {stage}: only stage {least}{'' if least == 3 else ' and above'} "
                "offloads it; "
            )
            problem += (
                "it stays on the device"
                if least == 3
                else "DeepSpeed's CPU optimizer refuses weights on a GPU"
            )
            cure = f"zero_stage: {least}, or 'none'"
            yield Mistake(key, "silent" if least == 3 else "stops", problem, cure)
        path = section.get(f"offload_{what}_nvme_path")
        if device == "nvme" and path not in (None, "none"):
            yield Mistake(
                f"deepspeed_config.offload_{what}_nvme_path",
                "silent",
                f"the launcher does not hand {path!r} on: DeepSpeed offloads into a folder called none",
                "say it in a deepspeed_config_file",
            )


def _saving(section: Config, stage: int, overrides: Overrides) -> Iterator[Mistake]:
    if stage != 3 or truth(section.get("zero3_save_16bit_model")):
        return
    kind = kind_among(overrides.readers(via_accelerate=True), {"accelerate"}, "stops")
    if kind:
        problem = (
            "training works, and at its end accelerator.get_state_dict and save_model raise: no rank has "
            "the weights"
        )
        problem += "; Trainer saves shards, for zero_to_fp32.py" if kind == "depends" else ""
        yield Mistake(
            "deepspeed_config.zero3_save_16bit_model", kind, problem, "zero3_save_16bit_model: true"
        )


def _clipping(clip: Any, overrides: Overrides) -> Iterator[Mistake]:
    key = "deepspeed_config.gradient_clipping"
    written = "nothing" if clip is None else repr(clip)
    cure = "write the norm you want; 1.0e+9 where you want none"
    fixed = (
        f"with {written} here gradients are clipped at norm 1.0, and accelerator.clip_grad_norm_(..., "
        "max_norm) does "
        "not change that: DeepSpeed clips, by this key alone"
    )
    if clip is None or clip == "auto":
        kind = kind_among(overrides.readers(via_accelerate=True), {"accelerate"}, "silent")
        if kind == "depends":
            fixed = (
                f"with {written} here Trainer's max_grad_norm decides, and under a loop of Accelerate's own "
                "norm 1.0"
            )
        if kind:
            yield Mistake(key, kind, fixed, cure)
    elif _number(clip) is None:
        yield Mistake(key, "stops", f"{clip!r} is not a number", cure)
    elif _number(clip) == 0:
        yield Mistake(key, "silent", fixed, cure)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
