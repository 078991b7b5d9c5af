"""What goes wrong with ``parallelism_config``: the mesh of ranks that Accelerate makes, and who looks at it.

FSDP2 cuts by it. DeepSpeed reads ``sp_size`` alone (Ulysses), DistributedDataParallel nothing; elsewhere
Accelerate refuses it. Source: github huggingface/accelerate, src/accelerate/parallelism_config.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from workshop.configs.known_keys import (
    CP_BACKENDS,
    CP_STRATEGIES,
    MULTI_DEVICE,
    SP_ATTENTION,
    SP_BACKENDS,
)
from workshop.configs.mistakes.fsdp import fsdp_section
from workshop.configs.mistakes.mistake import Mistake, table_at, whole_number
from workshop.facts.checks import nearest

AXES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
WHERE = "parallelism_config"


def mesh_sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """Size of each axis; 1 where the file does not say, 0 where it says nonsense."""
    mesh = table_at(config, WHERE)
    return {axis: whole_number(mesh.get(f"{WHERE}_{axis}_size", 1)) or 0 for axis in AXES}


def mesh_mistakes(config: Mapping[str, Any]) -> Iterator[Mistake]:
    """Everything found wrong with ``parallelism_config``."""
    mesh = table_at(config, WHERE)
    if not mesh:
        return
    sizes = mesh_sizes(config)
    nonsense = [axis for axis, size in sizes.items() if size < 1]
    for axis in nonsense:
        value = mesh[f"{WHERE}_{axis}_size"]
        yield Mistake(
            f"{WHERE}.{WHERE}_{axis}_size",
            "stops",
            f"{value!r} is not a whole number of at least 1",
            "1, or more",
        )
    yield from _choices(mesh, sizes)
    if not nonsense:
        yield from _combinations(sizes)
        yield from _by_engine(config, sizes)


def _choices(mesh: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[Mistake]:
    """Words that do not exist; some are read only when their axis is cut."""
    for name, choices, is_read in (
        ("cp_backend", CP_BACKENDS, True),
        ("sp_backend", SP_BACKENDS, True),
        ("cp_comm_strategy", CP_STRATEGIES, sizes["cp"] > 1),
        ("sp_attn_implementation", SP_ATTENTION, sizes["sp"] > 1),
    ):
        value = mesh.get(f"{WHERE}_{name}")
        of_the_hub = name == "sp_attn_implementation" and "/" in str(value) and "flash-attn" in str(value)
        if is_read and value is not None and value not in choices and not of_the_hub:
            problem = f"there is no {value!r}{nearest(str(value), choices)}"
            yield Mistake(f"{WHERE}.{WHERE}_{name}", "stops", problem, f"one of {', '.join(choices)}")


def _combinations(sizes: Mapping[str, int]) -> Iterator[Mistake]:
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        yield Mistake(WHERE, "stops", "cp_size and sp_size both cut the sequence", "one of them: 1")
    if sizes["dp_replicate"] > 1 and sizes["dp_shard"] == 1 and max(sizes["tp"], sizes["cp"]) > 1:
        problem = "replicas that are not sharded cannot be cut by tp_size or cp_size"
        yield Mistake(WHERE, "stops", problem, "dp_shard_size of 2 or more, or dp_replicate_size: 1")


def _by_engine(config: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[Mistake]:
    kind, ranks = config.get("distributed_type"), whole_number(config.get("num_processes"))
    version = str(fsdp_section(config).get("fsdp_version", 1))
    if kind == "FSDP" and version == "2":
        yield from _fsdp2(sizes)
    elif kind in MULTI_DEVICE:
        yield from _ddp(sizes)
    elif kind == "DEEPSPEED":
        yield from _deepspeed(sizes)
    elif prod(sizes.values()) > 1:
        cure = "distributed_type: FSDP with fsdp_version: 2, or take it out"
        if kind == "FSDP":
            yield Mistake(WHERE, "stops", "FSDP1 does not take it", cure)
        else:
            yield Mistake(WHERE, "silent", f"{kind} does not read it: nothing in it happens", cure)
        return
    product = prod(sizes.values())
    unchecked = sizes["sp"] > 1 or (kind in MULTI_DEVICE and product == 1)  # DeepSpeed cuts for itself
    if ranks and product != ranks and not unchecked:
        cuts = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "every size 1"
        problem = f"{cuts} = {product} ranks, and num_processes is {ranks}"
        yield Mistake(WHERE, "stops", problem, "the product of the sizes must be num_processes")


def _fsdp2(sizes: Mapping[str, int]) -> Iterator[Mistake]:
    if sizes["dp_shard"] == 1 and sizes["cp"] == 1:
        problem = "dp_shard_size and cp_size are 1: FSDP has no ranks to shard over"
        yield Mistake(f"{WHERE}.{WHERE}_dp_shard_size", "stops", problem, "dp_shard_size of 2 or more")
    if sizes["tp"] > 1:
        yield Mistake(
            f"{WHERE}.{WHERE}_tp_size",
            "stops",
            "with accelerate 1.15 and transformers 5.23 a model that is cut by tensor parallelism fails at "
            "an import "
            "(ReplicateParallel), and one that is not stays whole on every rank",
            "transformers' own DistributedConfig(tp_size=..., fsdp_size=...)",
        )
    if sizes["sp"] > 1:
        problem = "only DeepSpeed cuts sequences by sp_size: here the ranks of it see different batches"
        yield Mistake(
            f"{WHERE}.{WHERE}_sp_size", "silent", problem, "cp_size, or distributed_type: DEEPSPEED"
        )


def _ddp(sizes: Mapping[str, int]) -> Iterator[Mistake]:
    if sizes["cp"] > 1:
        problem = "context parallelism works with FSDP2 only"
        cure = "distributed_type: FSDP, fsdp_version: 2"
        yield Mistake(f"{WHERE}.{WHERE}_cp_size", "stops", problem, cure)
    elif sizes["dp_shard"] > 1 or sizes["sp"] > 1:
        problem = (
            "DistributedDataParallel looks at none of it: nothing is sharded, every rank holds everything"
        )
        yield Mistake(WHERE, "silent", problem, "distributed_type: FSDP, fsdp_version: 2")


def _deepspeed(sizes: Mapping[str, int]) -> Iterator[Mistake]:
    if sizes["dp_replicate"] > 1 and sizes["sp"] == 1:
        problem = "DeepSpeed shards over all ranks, whatever dp_replicate_size says"
        yield Mistake(f"{WHERE}.{WHERE}_dp_replicate_size", "silent", problem, "take it out")
