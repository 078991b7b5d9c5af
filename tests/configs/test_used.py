"""Written files are used: `accelerate launch` and DeepSpeed read them on real gloo ranks and do what they say."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.configs.cases import GOLDEN, small
from tests.configs.test_silent_mistakes import changed
from workshop.configs import (
    accelerate_config,
    accelerate_yaml,
    deepspeed_config,
    deepspeed_json,
    find_mistakes,
)
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.launch.environment import scrubbed

pytest.importorskip("accelerate")
pytest.importorskip("deepspeed")

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = str(ROOT / "examples" / "any_engine" / "accelerate_any.py")
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def start(command: list[str]) -> subprocess.Popen:
    """In a session of its own, so that a launcher's ranks end with it."""
    environment = scrubbed(os.environ) | {
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def end(process: subprocess.Popen, timeout: float = 110) -> str:
    """What it printed; its ranks are gone whatever happened."""
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, out[-1000:] + err[-3000:]
    return out


def last_json(printed: str) -> dict:
    lines = [
        line.removeprefix("FOUND ") for line in printed.splitlines() if line.startswith(("FOUND {", "{"))
    ]
    assert len(lines) == 1, printed
    return json.loads(lines[0])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The losses of one process without any launcher."""
    found = last_json(end(start([sys.executable, SCRIPT])))
    assert (found["engine"], found["num_processes"]) == ("NO", 1)
    return found["losses"]


@pytest.mark.parametrize(
    ("name", "engine", "steps"), [("ddp", "MULTI_GPU", 1), ("fsdp", "FSDP", 2), ("deepspeed", "DEEPSPEED", 1)]
)
def test_accelerate_launch_trains_the_same_under_every_engine(name, engine, steps, alone):
    """The golden file itself, by the real launcher, on two ranks: same script, same losses; FSDP accumulates."""
    file = ["--config_file", str(GOLDEN / f"{name}-2-fp32.yaml"), "--main_process_port", "0"]
    printed = end(start([*ACCELERATE, *file, SCRIPT, "--accumulation", str(steps)]))
    found = last_json(printed)
    assert (found["engine"], found["num_processes"], found["accumulation"]) == (engine, 2, steps)
    assert found["losses"] == pytest.approx(alone, abs=1e-5)
    assert alone[0] - min(alone) > 0.005  # it trained


def test_two_machines_meet(tmp_path, alone):
    """A file for two nodes, started twice: on this machine, as on two."""
    written = yaml.safe_load((GOLDEN / "ddp-16-fp16.yaml").read_text())  # of 16 GPUs on two nodes
    config = written | {"num_processes": 2, "mixed_precision": "no"}
    assert (config["num_machines"], config["rdzv_backend"]) == (2, "c10d")
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(config))
    where = ["--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]
    nodes = [
        start([*ACCELERATE, "--config_file", str(path), *where, "--machine_rank", str(rank), SCRIPT])
        for rank in range(2)
    ]
    try:
        printed = [end(node) for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
    found = last_json("".join(printed))
    assert (found["engine"], found["num_processes"]) == ("MULTI_GPU", 2)
    assert found["losses"] == pytest.approx(alone, abs=1e-5)


def test_deepspeed_does_what_the_json_says(tmp_path):
    """Every stage and offload, and the mistakes that DeepSpeed does not mention, in one launch of two ranks."""
    cases = {
        "0": {"replicate": 2, "zero": 0},
        "1": {"shard": 2, "zero": 1},
        "2": {"shard": 2, "zero": 2},
        "3": {"shard": 2, "zero": 3},
        "2-offload": {"shard": 2, "zero": 2, "offload": "optimizer"},
        "3-offload": {"shard": 2, "zero": 3, "offload": "params"},
    }
    written = {}
    for name, layout in cases.items():
        run = Run(
            "gpt-1m", "this-machine", Layout(precision="fp32", **layout), 2, 16, accumulation=2,
            implementation="deepspeed",
        )  # fmt: skip
        config = json.loads(deepspeed_json(run))
        for offloaded in ("offload_optimizer", "offload_param"):
            config["zero_optimization"].get(offloaded, {}).update(
                pin_memory=False
            )  # there is no GPU to pin for
        if "offload" in layout:
            config["zero_force_ds_cpu_optimizer"] = False  # its own Adam is compiled for a minute
        written[name] = config
    half = deepspeed_config(
        Run("gpt-1m", "this-machine", Layout(shard=2, zero=2, precision="deepspeed-bf16"), 4, 16)
    )
    written["bf16"] = half
    written["wrong-auto"] = half | {"bf16": {"enabled": "auto"}}
    written["wrong-clip"] = {key: value for key, value in half.items() if key != "gradient_clipping"}
    written["wrong-name"] = half | {"gradient_clippping": 5.0}
    for name, config in written.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    found = last_json(end(start([*TORCHRUN, "2", str(PROGRAMS / "deepspeed_reads.py"), str(tmp_path)])))

    assert {name: found[name]["stage"] for name in cases} == {name: int(name[0]) for name in cases}
    assert {name for name in cases if found[name]["offload"]} == {"2-offload", "3-offload"}
    for name in cases:
        assert (found[name]["width"], found[name]["clipping"], found[name]["batch"]) == ("float32", 0.0, 8)
        assert found[name]["losses"] == pytest.approx(found["0"]["losses"], abs=1e-5), name
    assert found["0"]["losses"][-1] < found["0"]["losses"][0]
    assert found["bf16"]["width"] == "bfloat16"
    # what was asked and what was done, and that we say so
    assert (found["wrong-auto"]["width"], found["wrong-clip"]["clipping"], found["wrong-name"]["clipping"]) == (
        "float32", 1.0, 0.0,
    )  # fmt: skip
    for name, key in (
        ("wrong-auto", "bf16.enabled"),
        ("wrong-clip", "gradient_clipping"),
        ("wrong-name", "gradient_clippping"),
    ):
        assert [(m.key, m.kind) for m in find_mistakes(written[name])] == [(key, "silent")]
    assert find_mistakes(half) == []


def test_accelerate_does_what_the_yaml_says(tmp_path):
    """Sections and what they do, and mistakes that pass in silence, in one launch of two ranks."""
    fsdp = accelerate_config(small(shard=2, zero=3, precision="fp32"))
    zero3 = accelerate_config(small(shard=2, zero=3, precision="fp32"), "deepspeed")
    zero2 = accelerate_config(small(shard=2, zero=2, precision="fp32"), "deepspeed")
    layers, wrong = 2, "fsdp_config.fsdp_auto_wrap_policy"
    cases = {
        "fsdp": fsdp,
        "fsdp-recompute-adapter": changed(fsdp, {"fsdp_config.fsdp_activation_checkpointing": True, "with_adapter": True}),
        "fsdp-whole-gradients": changed(fsdp, {"with_sync": False}),
        "fsdp-sharded-gradients": changed(fsdp, {"with_sync": True}),
        "wrong-no-class": changed(fsdp, {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": None}),
        "wrong-size-0": changed(fsdp, {wrong: "SIZE_BASED_WRAP", "fsdp_config.fsdp_min_num_params": 0}),
        "wrong-no-wrap": changed(fsdp, {wrong: "NO_WRAP"}),
        "zero2": changed(zero2, {"with_state_dict": True}),
        "zero3": changed(zero3, {"with_state_dict": True}),
        "wrong-zero3-save": changed(
            zero3, {"deepspeed_config.zero3_save_16bit_model": False, "with_state_dict": True}
        ),
        "wrong-clip-0": changed(zero2, {"deepspeed_config.gradient_clipping": 0.0}),
        "wrong-unread": changed(zero2, {"deepspeed_config.offload_optimizer": "cpu"}),
    }  # fmt: skip
    for name, config in cases.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
    found = last_json(end(start([*TORCHRUN, "2", str(PROGRAMS / "accelerate_reads.py"), str(tmp_path)])))

    assert all(one["ranks"] == 2 for one in found.values())
    assert found["fsdp"]["units"] == layers + 1
    assert {name: one["units"] for name, one in found.items() if name.startswith("wrong-") and one["engine"] == "FSDP"} == {
        "wrong-no-class": 1, "wrong-size-0": 1, "wrong-no-wrap": 1,
    }  # fmt: skip
    assert (
        found["fsdp-recompute-adapter"]["adapter_tensors"]
        == 0
        < found["fsdp-recompute-adapter"]["lora_tensors"]
    )
    # between micro-batches: whole on every rank unless told otherwise (a note of read_config)
    assert (
        found["fsdp-whole-gradients"]["sharded_gradients"]
        == 0
        < found["fsdp-sharded-gradients"]["sharded_gradients"]
    )
    assert (found["zero2"]["stage"], found["zero3"]["stage"]) == (2, 3)
    assert found["zero2"]["clipping"] == found["zero3"]["clipping"] == 1e9
    assert found["wrong-clip-0"]["clipping"] == 1.0
    assert found["zero3"]["state_dict"] == found["zero2"]["state_dict"] > 0
    assert found["wrong-zero3-save"]["state_dict"] == "Cannot get 16bit model weights"
    for name, config in cases.items():
        config = {key: value for key, value in config.items() if not key.startswith("with_")}
        assert bool(find_mistakes(config)) == name.startswith("wrong"), name


def test_hybrid_sharding_makes_the_mesh(tmp_path):
    """Four ranks: two replicas of two shards."""
    run = Run("gpt-1m", "this-machine", Layout(replicate=2, shard=2, zero=3, precision="fp32"), 4, 32)
    (tmp_path / "hybrid.yaml").write_text(accelerate_yaml(run))
    found = last_json(end(start([*TORCHRUN, "4", str(PROGRAMS / "accelerate_reads.py"), str(tmp_path)])))
    assert found["hybrid"]["mesh"] == {"dp_replicate": 2, "dp_shard": 2}


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="these go wrong where there is no GPU")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("MULTI_CPU", ["process with RANK None: rank 0 of 1, NO"]),
        ("FSDP", ["process with RANK 0: rank 0 of 1, NO", "process with RANK 1: rank 0 of 1, NO"]),
    ],
)
def test_the_silent_mistakes_of_cpus_are_real(kind, said, tmp_path):
    """Exit code 0, and nobody works together; `find_mistakes` names it."""
    config = accelerate_config(small(shard=2, zero=3, precision="fp32"))
    config |= {"distributed_type": kind, "use_cpu": True}
    if kind == "MULTI_CPU":
        del config["fsdp_config"]
    path = tmp_path / "cpu.yaml"
    path.write_text(yaml.safe_dump(config))
    who = str(PROGRAMS / "who_am_i.py")
    printed = end(start([*ACCELERATE, "--config_file", str(path), "--main_process_port", "0", who]))
    assert sorted(line for line in printed.splitlines() if line.startswith("process")) == said
    assert [mistake.kind for mistake in find_mistakes(config)] == ["silent"]
