"""Our variables are those that ``accelerate launch`` sets, for every golden file: asked of its own code."""

from __future__ import annotations

import pytest
import yaml

from tests.configs.cases import ACCELERATE, GOLDEN
from workshop.configs import accelerate_environment

OURS = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
NOT_OURS = ("ACCELERATE_DYNAMO_",)  # torch.compile's, set to its defaults


def set_by_accelerate(path, monkeypatch):
    """What the launcher adds to the environment of the ranks, by its own functions."""
    launch = pytest.importorskip("accelerate.commands.launch")
    from accelerate.utils.launch import (
        prepare_deepspeed_cmd_env,
        prepare_multi_gpu_env,
        prepare_simple_launcher_cmd_env,
    )

    for name in [name for name in __import__("os").environ if name.startswith(OURS)]:
        monkeypatch.delenv(name)
    flags = ["--config_file", str(path), "--main_process_ip", "127.0.0.1", "--machine_rank", "0"]
    args = launch.launch_command_parser().parse_args([*flags, "train.py"])
    args, defaults, from_file = launch._validate_launch_command(args)
    args.main_process_port = 0
    if args.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_file else [])]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = prepare_deepspeed_cmd_env(args)
    elif args.use_fsdp or args.multi_gpu:
        environment = prepare_multi_gpu_env(args)
    else:
        _, environment = prepare_simple_launcher_cmd_env(args)
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(OURS) and not name.startswith(NOT_OURS)
    }


@pytest.mark.parametrize("name", ACCELERATE)
def test_the_same_variables(name, monkeypatch):
    path = GOLDEN / f"{name}.yaml"
    assert accelerate_environment(yaml.safe_load(path.read_text())) == set_by_accelerate(path, monkeypatch)


def test_a_key_without_its_prefix_and_an_unknown_key(tmp_path, monkeypatch):
    content = {
        "distributed_type": "FSDP",
        "num_processes": 2,
        "num_machines": 1,
        "fsdp_config": {"version": 2, "fsdp_offload_prams": True, "fsdp_min_num_params": 5},
    }
    path = tmp_path / "short.yaml"
    path.write_text(yaml.safe_dump(content))
    found = accelerate_environment(content)
    assert found == set_by_accelerate(path, monkeypatch)
    assert found["FSDP_VERSION"] == "2"
    assert found["FSDP_OFFLOAD_PARAMS"] == "false"  # the misspelt key did nothing


def test_other_kinds_are_refused():
    with pytest.raises(ValueError, match="distributed_type 'MULTI_CPU'"):
        accelerate_environment({"distributed_type": "MULTI_CPU"})
