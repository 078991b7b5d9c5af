"""The lists of keys and choices are those of the installed libraries: a new version shows here first."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.installed import skip_without
from workshop.configs import known_keys

ASK = """
import json, logging
logging.disable(logging.WARNING)
import torch
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import constants, dataclasses
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.inference.config import WeightQuantConfig
from deepspeed.launcher import constants as launchers
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime import config
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero import offload_config as offload
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig, ZeroStageEnum
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

asked = set()

class Watched(dict):
    "A configuration that notes which keys DeepSpeed looks for."
    def get(self, key, default=None):
        asked.add(key)
        return super().get(key, default)
    def __getitem__(self, key):
        asked.add(key)
        return super().__getitem__(key)
    def __contains__(self, key):
        asked.add(key)
        return super().__contains__(key)
    def __copy__(self):
        return Watched(self)
    def keys(self):
        return self

config.DeepSpeedConfig(Watched(train_micro_batch_size_per_gpu=2))
strict = {
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.offload_param": offload.DeepSpeedZeroOffloadParamConfig,
    "zero_optimization.offload_optimizer": offload.DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.zenflow": ZenFlowConfig,
    "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig,
    "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config, "compile": CompileConfig,
    "comms_logger": CommsLoggerConfig, "tensorboard": TensorBoardConfig, "wandb": WandbConfig,
    "csv_monitor": CSVConfig, "comet": CometConfig, "tensor_parallel": TPTrainingConfig,
    "hybrid_engine": config.HybridEngineConfig, "weight_quantization": WeightQuantConfig,
    "timers.throughput": DeepSpeedThroughputTimerConfig,
}

def least(field):
    bounds = [b for b in field.metadata if hasattr(b, "ge") or hasattr(b, "gt")]
    return [b.ge if hasattr(b, "ge") else b.gt + 1 for b in bounds]

print(json.dumps({
    "cluster": sorted(ClusterConfig.__dataclass_fields__),
    "flags": sorted(action.dest for action in launch_command_parser()._actions),
    "asked": sorted(key for key in asked if isinstance(key, str)),
    "removed": sorted(config._REMOVED_TOP_LEVEL_CONFIG_KEYS),
    "zero_removed": sorted(config._REMOVED_ZERO_CONFIG_KEYS),
    "strict": {path: [[field.alias or name, name] for name, field in kind.model_fields.items()] for path, kind in strict.items()},
    "forbids": sorted({kind.model_config["extra"] for kind in strict.values()}),
    "zero_least": {field.alias or name: least(field)[0] for name, field in DeepSpeedZeroConfig.model_fields.items() if least(field)},
    "stages": sorted({stage.value for stage in ZeroStageEnum}),
    "devices": [device.value for device in offload.OffloadDeviceEnum],
    "optimizers": config.DEEPSPEED_OPTIMIZERS,
    "torch_optimizers": sorted(name for name, kind in vars(torch.optim).items() if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)),
    "DISTRIBUTED_TYPES": [kind.value for kind in dataclasses.DistributedType],
    "MIXED_PRECISION": [kind.value for kind in dataclasses.PrecisionType],
    "FP8_BACKENDS": [kind.value for kind in dataclasses.FP8BackendType if kind.value != "NO"],
    "COMPUTE_ENVIRONMENTS": [kind.value for kind in dataclasses.ComputeEnvironment],
    "SHARDING_STRATEGIES": constants.FSDP_SHARDING_STRATEGY,
    "WRAP_POLICIES": constants.FSDP_AUTO_WRAP_POLICY,
    "BACKWARD_PREFETCH": constants.FSDP_BACKWARD_PREFETCH,
    "STATE_DICT_TYPES": constants.FSDP_STATE_DICT_TYPE,
    "DYNAMO_BACKENDS": [kind.value for kind in dataclasses.DynamoBackend],
    "MULTINODE_LAUNCHERS": [*constants.DEEPSPEED_MULTINODE_LAUNCHERS, launchers.IMPI_LAUNCHER],
}))
"""


@pytest.fixture(scope="module")
def installed():
    skip_without("accelerate", "deepspeed")
    done = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, timeout=300,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_top_of_the_yaml(installed):
    assert set(known_keys.ACCELERATE) - {"fp16", "dynamo_backend"} == set(installed["cluster"])


def test_every_flag_of_the_launcher_is_known(installed):
    """In the sections of the YAML and beside them; one key is read from the file alone."""
    known = {key for keys, _ in known_keys.SECTIONS.values() for key in keys} | set(known_keys.OTHER_FLAGS)
    assert known - {"fsdp_ignored_modules"} == set(installed["flags"])


@pytest.mark.parametrize("section", known_keys.SECTIONS)
def test_a_section_has_the_flags_of_its_name(section, installed):
    keys, prefix = known_keys.SECTIONS[section]
    beginning = prefix or f"{section.removesuffix('_config')}_"
    beginning = {"parallelism_": "parallelism_config_", "megatron_lm_": "megatron_lm_"}.get(
        beginning, beginning
    )
    flags = {flag for flag in installed["flags"] if flag.startswith(beginning)}
    assert flags <= set(keys)


def test_what_a_json_forbids_in_the_yaml():
    """The list is Accelerate's own; `test_truth` shows that it refuses them."""
    assert set(known_keys.SAID_IN_THE_JSON) - {"mixed_precision"} <= set(known_keys.ACCELERATE_DEEPSPEED)


def test_top_of_the_json(installed):
    known = set(known_keys.DEEPSPEED) | set(known_keys.DEEPSPEED_REMOVED)
    assert set(installed["asked"]) <= known
    elsewhere = {"sequence_parallel_size", "msamp", "inference"}  # of zero.Init, Accelerate and transformers
    assert known - set(installed["asked"]) == elsewhere


def test_what_deepspeed_has_dropped(installed):
    assert sorted(known_keys.DEEPSPEED_REMOVED) == installed["removed"]
    assert sorted(known_keys.ZERO_REMOVED) == installed["zero_removed"]


@pytest.mark.parametrize("path", known_keys.STRICT)
def test_a_strict_section(path, installed):
    """Its names, their second names, and that it is strict."""
    fields = installed["strict"][path]
    assert set(known_keys.STRICT[path]) == {alias for alias, _ in fields}
    seconds = {name: alias for alias, name in fields if name != alias}
    assert known_keys.SECOND_NAMES.get(path, {}) == seconds
    assert installed["forbids"] == ["forbid"]
    assert set(known_keys.STRICT) == set(installed["strict"])


def test_counts_and_stages(installed):
    assert installed["zero_least"] == known_keys.ZERO_LEAST
    assert installed["stages"] == [0, 1, 2, 3]


def test_optimizers_and_devices(installed):
    assert installed["optimizers"] == known_keys.DEEPSPEED_OPTIMIZERS
    assert set(known_keys.TORCH_OPTIMIZERS) | {"Optimizer"} >= set(installed["torch_optimizers"])
    assert set(known_keys.TORCH_OPTIMIZERS) - set(installed["torch_optimizers"]) <= {
        "Muon"
    }  # since torch 2.9
    assert installed["devices"] == known_keys.OFFLOAD_DEVICES


@pytest.mark.parametrize(
    "name",
    [
        "DISTRIBUTED_TYPES", "MIXED_PRECISION", "FP8_BACKENDS", "COMPUTE_ENVIRONMENTS", "SHARDING_STRATEGIES",
        "WRAP_POLICIES", "BACKWARD_PREFETCH", "STATE_DICT_TYPES", "DYNAMO_BACKENDS", "MULTINODE_LAUNCHERS",
    ],
)  # fmt: skip
def test_choices(name, installed):
    assert set(getattr(known_keys, name)) == set(installed[name])


def test_fsdp1_keys_are_keys():
    assert set(known_keys.FSDP1_ONLY) < set(known_keys.FSDP)
