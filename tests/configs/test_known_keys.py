"""The lists of keys, held against the installed accelerate and DeepSpeed: a new version shows here first."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from workshop.configs import known_keys

ASK = """
import json, logging
logging.disable(logging.WARNING)
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

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

DeepSpeedConfig(Watched(train_micro_batch_size_per_gpu=2))
print(json.dumps({
    "cluster": sorted(ClusterConfig.__dataclass_fields__),
    "flags": sorted(action.dest for action in launch_command_parser()._actions),
    "asked": sorted(key for key in asked if isinstance(key, str)),
    "zero": sorted(field.alias or name for name, field in DeepSpeedZeroConfig.model_fields.items()),
}))
"""


@pytest.fixture(scope="module")
def installed():
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    done = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, timeout=100,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_top_of_the_yaml(installed):
    assert set(known_keys.ACCELERATE) - {"fp16", "dynamo_backend"} == set(installed["cluster"])


@pytest.mark.parametrize("section", ["FSDP", "PARALLELISM", "ACCELERATE_DEEPSPEED"])
def test_sections_of_the_yaml(installed, section):
    """Every known key is a flag of the launcher, and no flag of the section is forgotten."""
    known, flags = set(getattr(known_keys, section)), set(installed["flags"])
    assert known <= flags | {"fsdp_ignored_modules"}  # read from the file alone
    prefix = {"FSDP": "fsdp_", "PARALLELISM": "parallelism_config_", "ACCELERATE_DEEPSPEED": "deepspeed_"}[
        section
    ]
    assert {flag for flag in flags if flag.startswith(prefix)} <= known
    assert {flag for flag in flags if flag.startswith(("zero", "offload_", "gradient_"))} <= set(
        known_keys.ACCELERATE_DEEPSPEED
    )


def test_top_of_the_json(installed):
    known = set(known_keys.DEEPSPEED) | set(known_keys.DEEPSPEED_REMOVED)
    assert set(installed["asked"]) <= known
    assert known - set(installed["asked"]) == {"sequence_parallel_size"}  # of zero.Init, in transformers


def test_zero_section_of_the_json(installed):
    assert set(known_keys.ZERO) == set(installed["zero"])


def test_fsdp1_keys_are_keys():
    assert set(known_keys.FSDP1_ONLY) < set(known_keys.FSDP)
