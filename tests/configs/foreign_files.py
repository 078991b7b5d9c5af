"""The twins of public files in `tests/configs/foreign`: who reads each, and what is truly wrong with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "foreign"


@dataclass(frozen=True)
class Twin:
    """A file, the program that reads it, and the keys of its mistakes (of kind "stops" first).

    ``is_refused``: whether the library ends when it loads the file. ``why_not``: why it does not, though a mistake
    of kind "stops" is told.
    """

    name: str
    program: str
    stops: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    why_not: str = ""

    @property
    def path(self) -> Path:
        return FOLDER / self.name

    @property
    def reader(self) -> str:
        """Of `programs/library_reads.py`."""
        return (
            "yaml"
            if self.name.endswith("yaml")
            else {"trainer": "trainer", "deepspeed": "engine"}[self.program]
        )

    @property
    def is_refused(self) -> bool:
        return bool(self.stops) and not self.why_not

    def as_loaded(self) -> dict[str, Any]:
        """The content; the path of a JSON inside made whole, and the batch that of one rank."""
        if self.name.endswith("json"):
            return json.loads(self.path.read_text("utf-8"))
        config = yaml.safe_load(self.path.read_text("utf-8"))
        section = config.get("deepspeed_config", {})
        if "deepspeed_config_file" in section:
            section["deepspeed_config_file"] = str(FOLDER / section["deepspeed_config_file"])
        return config


ZERO = "zero_optimization"
TWINS = (
    Twin("accelerate_deepspeed.yaml", "accelerate"),
    Twin("accelerate_fp8.yaml", "accelerate"),
    Twin("accelerate_fsdp1.yaml", "accelerate"),
    Twin("accelerate_multi_node.yaml", "accelerate"),
    Twin("accelerate_multi_xpu.yaml", "accelerate"),
    Twin("accelerate_nd.yaml", "accelerate"),
    Twin("accelerate_single.yaml", "accelerate"),
    Twin("accelerate_slurm_fsdp.yaml", "accelerate", why_not="the launcher's own flag gives the processes"),
    Twin(
        "accelerate_tp_hsdp.yaml",
        "accelerate",
        stops=("parallelism_config.parallelism_config_tp_size",),
        why_not="it ends in prepare(), with a model that is cut",
    ),
    Twin("trl_alst.yaml", "trainer", silent=("deepspeed_config.seq_parallel_communication_data_type",)),
    Twin(
        "trl_alst_of_an_older_accelerate.yaml",
        "trainer",
        stops=("parallelism_config.parallelism_config_cp_backend",),
        silent=(
            "parallelism_config.parallelism_config_cp_seq_length_is_variable",
            "parallelism_config.parallelism_config_cp_attn_implementation",
        ),
    ),
    Twin("trl_context_parallel.yaml", "trainer"),
    Twin("trl_fsdp2.yaml", "trainer"),
    Twin("trl_zero3.yaml", "trainer"),
    Twin("accelerate_zero1.json", "trainer"),
    Twin("accelerate_zero3_offload.json", "trainer"),
    Twin("axolotl_zero1.json", "trainer", silent=("gradient_clipping",)),
    Twin("axolotl_zero2_compile.json", "trainer", stops=("compile.disable", "compile.backend")),
    Twin("axolotl_zero3.json", "trainer"),
    Twin("axolotl_zero3_offload.json", "trainer"),
    Twin("llamafactory_autotp.json", "trainer"),
    Twin("llamafactory_fp8.json", "trainer", silent=("fp8",)),
    Twin("megatron_deepspeed_moq.json", "deepspeed", stops=("curriculum_learning",)),
    Twin(
        "transformers_zero3.json",
        "trainer",
        stops=(f"{ZERO}.reduce_bucket_size", "train_micro_batch_size_per_gpu"),
        silent=("gradient_clipping",),
    ),
)
