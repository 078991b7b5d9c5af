"""Written files are used: Accelerate and DeepSpeed read them on real gloo ranks and do what they say.

Ranks are started twice, two and four, by our engine with the libraries loaded, and each does all that is asked of so
many; what they find they write into files of their own. The real ``accelerate launch`` starts the two machines; that
its variables are ours is held by `test_launch_environment`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.configs.cases import GOLDEN, small
from tests.configs.mistake_cases import GONE, changed
from tests.installed import skip_without
from tests.ports import free_port
from workshop import launch
from workshop.configs import (
    Overrides,
    accelerate_config,
    accelerate_yaml,
    deepspeed_config,
    deepspeed_json,
    find_mistakes,
)
from workshop.facts.layout import Layout
from workshop.facts.run import Run

skip_without("accelerate", "deepspeed")

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = str(ROOT / "examples" / "any_engine" / "accelerate_any.py")
LOOP = Overrides(program="accelerate", classes=("GPT", "Layer"), layer="Layer")
LAYERS = 2


def on_ranks(number: int, cases: dict[str, dict], folder: Path) -> list[dict]:
    """What each rank found, in order of rank."""
    (folder / "cases.json").write_text(json.dumps(cases))
    script = launch.Script(PROGRAMS / "on_ranks.py", (str(folder),))
    launch.torchrun(script, number, limits=launch.Limits(timeout=300))
    return [json.loads((folder / f"found_{rank}.json").read_text()) for rank in range(number)]


# ------------------------------------------------------------------ what is asked of two ranks

FSDP = accelerate_config(small(shard=2, zero=3, precision="fp32"))
ZERO2 = accelerate_config(small(shard=2, zero=2, precision="fp32"), "deepspeed")
ZERO3 = accelerate_config(small(shard=2, zero=3, precision="fp32"), "deepspeed")
DDP = accelerate_config(small(replicate=2, precision="fp32"))
SIZES = "parallelism_config.parallelism_config_"
WRAP, CLASS = "fsdp_config.fsdp_auto_wrap_policy", "fsdp_config.fsdp_transformer_layer_cls_to_wrap"
TRAINED = {"ddp": ("MULTI_GPU", 1), "fsdp": ("FSDP", 2), "deepspeed": ("DEEPSPEED", 1)}

YAMLS: dict[str, tuple[dict, dict]] = {
    "fsdp": (FSDP, {}),
    "fsdp-recompute-adapter": (changed(FSDP, {"fsdp_config.fsdp_activation_checkpointing": True}), {"adapter": True}),
    "fsdp-whole-gradients": (FSDP, {"sync": False}),
    "fsdp-sharded-gradients": (FSDP, {"sync": True}),
    "wrong-no-class": (changed(FSDP, {CLASS: GONE}), {}),
    "layers-named-by-the-model": (changed(FSDP, {CLASS: GONE}), {"names_layers": True}),
    "wrong-class-unknown": (changed(FSDP, {CLASS: "Layr"}), {}),
    "wrong-class-blank": (changed(FSDP, {CLASS: "GPT, Layer"}), {}),
    "wrong-class-of-the-whole": (changed(FSDP, {CLASS: "GPT"}), {}),
    "wrong-size-0": (changed(FSDP, {WRAP: "SIZE_BASED_WRAP", "fsdp_config.fsdp_min_num_params": 0}), {}),
    "wrong-no-wrap": (changed(FSDP, {WRAP: "NO_WRAP"}), {}),
    "wrong-sp": (changed(FSDP, {f"{SIZES}dp_shard_size": 2, f"{SIZES}sp_size": 2}), {}),
    "zero2": (ZERO2, {"state_dict": True}),
    "zero3": (ZERO3, {"state_dict": True}),
    "wrong-zero3-save": (changed(ZERO3, {"deepspeed_config.zero3_save_16bit_model": False}), {"state_dict": True}),
    "wrong-clip-0": (changed(ZERO2, {"deepspeed_config.gradient_clipping": 0.0}), {}),
    "wrong-unread": (changed(ZERO2, {"deepspeed_config.offload_optimizer": "cpu"}), {}),
    "wrong-replicas": (changed(ZERO3, {f"{SIZES}dp_replicate_size": 2}), {}),
    "wrong-shards": (changed(DDP, {f"{SIZES}dp_shard_size": 2}), {}),
    "wrong-cp": (changed(DDP, {f"{SIZES}cp_size": 2}), {}),
}  # fmt: skip

STAGES = {
    "0": {"replicate": 2, "zero": 0},
    "1": {"shard": 2, "zero": 1},
    "2": {"shard": 2, "zero": 2},
    "3": {"shard": 2, "zero": 3},
    "2-offload": {"shard": 2, "zero": 2, "offload": "optimizer"},
    "3-offload": {"shard": 2, "zero": 3, "offload": "params"},
}


def jsons() -> dict[str, dict]:
    """Every stage and offload, and mistakes that DeepSpeed does not mention."""
    written = {}
    for name, layout in STAGES.items():
        run = Run(
            "gpt-1m", "this-machine", Layout(precision="fp32", **layout), 2, 16, accumulation=2,
            implementation="deepspeed",
        )  # fmt: skip
        config = json.loads(deepspeed_json(run))
        for offloaded in ("offload_optimizer", "offload_param"):  # there is no GPU to pin for
            config["zero_optimization"].get(offloaded, {}).update(pin_memory=False)
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
    return written


JSONS = jsons()
BARE = {
    kind: changed(config, {"use_cpu": True})
    for kind, config in (("FSDP", FSDP), ("MULTI_GPU", DDP), ("DEEPSPEED", ZERO2))
}


@pytest.fixture(scope="module")
def two(loaded_engine, tmp_path_factory) -> list[dict]:
    """Everything that two ranks are asked, in one launch."""
    cases: dict[str, dict] = {
        f"bare {kind}": {"kind": "bare", "config": config} for kind, config in BARE.items()
    }
    cases["alone"] = {"kind": "alone"}
    for name, (_, steps) in TRAINED.items():
        golden = yaml.safe_load((GOLDEN / f"{name}-2-fp32.yaml").read_text())
        cases[f"train {name}"] = {"kind": "train", "config": golden, "accumulation": steps}
    cases |= {f"yaml {name}": {"kind": "yaml", "config": c, "with": w} for name, (c, w) in YAMLS.items()}
    cases |= {f"json {name}": {"kind": "json", "config": config} for name, config in JSONS.items()}
    return on_ranks(2, cases, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("name", TRAINED)
def test_a_script_trains_the_same_under_every_engine(name, two):
    """The golden file itself: same script, same losses as plain PyTorch; FSDP accumulates."""
    found, alone = two[0][f"train {name}"], two[0]["alone"]["losses"]
    engine, steps = TRAINED[name]
    assert (found["engine"], found["ranks"], found["accumulation"]) == (engine, 2, steps)
    assert found["losses"] == pytest.approx(alone, abs=1e-5)
    assert alone[0] - min(alone) > 0.005  # it trained


MACHINE = """
import os, runpy, sys
from workshop.site.current import launcher_variables
machine = os.environ["RANK"]
for name in launcher_variables(os.environ):
    del os.environ[name]
sys.argv = ["accelerate launch", *options, "--machine_rank", machine, script]
runpy.run_module("accelerate.commands.launch", run_name="__main__")
"""


def test_two_machines_meet(tmp_path, two):
    """A file for two nodes, given to the real launcher twice: on this machine, as on two.

    Each of two ranks is a machine: it forgets that it is a rank and becomes ``accelerate launch``.
    """
    written = yaml.safe_load((GOLDEN / "ddp-16-fp16.yaml").read_text())  # of 16 GPUs on two nodes
    config = written | {"num_processes": 2, "mixed_precision": "no"}
    assert (config["num_machines"], config["rdzv_backend"]) == (2, "c10d")
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(config))
    where = ["--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]
    told = {"options": ["--config_file", str(path), *where], "script": SCRIPT}
    printed = launch.torchrun(MACHINE, 2, variables=told, limits=launch.Limits(timeout=200)).text
    (line,) = re.findall(r"^\[rank.*?\] (\{.*)$", printed, re.MULTILINE)  # rank 0 alone prints
    found = json.loads(line)
    assert (found["engine"], found["num_processes"]) == ("MULTI_GPU", 2)
    assert found["losses"] == pytest.approx(two[0]["alone"]["losses"], abs=1e-5)


def test_deepspeed_does_what_the_json_says(two):
    found = {name: two[0][f"json {name}"] for name in JSONS}
    assert {name: found[name]["stage"] for name in STAGES} == {name: int(name[0]) for name in STAGES}
    assert {name for name in STAGES if found[name]["offload"]} == {"2-offload", "3-offload"}
    for name in STAGES:
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
        told = find_mistakes(JSONS[name], Overrides(program="deepspeed"))
        assert [(m.key, m.kind) for m in told] == [(key, "silent")]
    assert find_mistakes(JSONS["bf16"]) == []


def test_accelerate_does_what_the_yaml_says(two):
    """Sections and what they do, and mistakes that pass in silence."""
    found = {name: two[0][f"yaml {name}"] for name in YAMLS}
    assert all(one["ranks"] == 2 for one in found.values() if "ranks" in one)
    units = {name: one["units"] for name, one in found.items() if one.get("engine") == "FSDP"}
    one_unit = ("wrong-no-class", "wrong-size-0", "wrong-no-wrap", "wrong-class-of-the-whole")
    assert {name for name, number in units.items() if number == 1} == set(one_unit)
    del units["fsdp-recompute-adapter"]  # where the wrapper of a layer counts beside the layer
    assert {number for name, number in units.items() if name not in one_unit} == {LAYERS + 1}
    for name, words in (
        ("wrong-class-unknown", "Layr"),
        ("wrong-class-blank", " Layer"),
        ("wrong-cp", "fsdp_plugin"),
    ):
        assert words in found[name]["refused"]
    adapter = found["fsdp-recompute-adapter"]
    assert adapter["adapter_tensors"] == 0 < adapter["lora_tensors"]
    # between micro-batches: whole on every rank unless told otherwise (a note of read_config)
    sharded = [found[f"fsdp-{what}-gradients"]["sharded_gradients"] for what in ("whole", "sharded")]
    assert sharded[0] == 0 < sharded[1]
    assert (found["zero2"]["stage"], found["zero3"]["stage"]) == (2, 3)
    assert found["zero2"]["clipping"] == found["zero3"]["clipping"] == 1e9
    assert found["wrong-clip-0"]["clipping"] == 1.0
    assert found["zero3"]["state_dict"] == found["zero2"]["state_dict"] > 0
    assert found["wrong-zero3-save"]["state_dict"] == "Cannot get 16bit model weights"


def test_a_mesh_that_nobody_looks_at(two):
    """Replicas under ZeRO-3 are sharded all the same, and shards under DDP are whole."""
    (first, second), whole = two, two[0]["yaml fsdp"]["whole"]
    assert first["yaml fsdp"]["held"] < 0.6 * whole
    assert first["yaml wrong-replicas"]["held"] == first["yaml zero3"]["held"] < 0.6 * whole
    assert (first["yaml wrong-shards"]["ddp"], first["yaml wrong-shards"]["held"]) == (True, whole)
    assert (
        first["yaml wrong-sp"]["first"] != second["yaml wrong-sp"]["first"]
    )  # one sequence each, not half of one


@pytest.mark.parametrize("name", YAMLS)
def test_wrong_files_are_told_and_right_ones_are_not(name):
    config, wanted = YAMLS[name]
    overrides = Overrides(program="accelerate") if wanted.get("names_layers") else LOOP
    told = [mistake for mistake in find_mistakes(config, overrides) if mistake.is_certain]
    depends = name == "wrong-no-class"  # on the model: this one does not name its layers
    assert bool(told) == (name.startswith("wrong") and not depends), [str(mistake) for mistake in told]


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="these go wrong where there is no GPU")
def test_on_cpus_nobody_works_together(two):
    """Exit code 0, two processes, and each alone; DeepSpeed at least stops. `find_mistakes` names it."""
    for kind in ("FSDP", "MULTI_GPU"):
        assert [rank[f"bare {kind}"] for rank in two] == [
            {"engine": "NO", "rank": 0, "ranks": 1, "refused": ""}
        ] * 2
        assert [mistake.kind for mistake in find_mistakes(BARE[kind])] == ["silent"]
    stopped = [rank["bare DEEPSPEED"] for rank in two]
    assert all("2 != 2 * 1 * 2" in one["refused"] or "4 !=" in one["refused"] for one in stopped), stopped
    assert [mistake.kind for mistake in find_mistakes(BARE["DEEPSPEED"])] == ["stops"]


# ------------------------------------------------------------------ what is asked of four

REPLICATE = "from transformers.integrations.tensor_parallel import ReplicateParallel"


@pytest.fixture(scope="module")
def four(loaded_engine, tmp_path_factory) -> list[dict]:
    run = Run("gpt-1m", "this-machine", Layout(replicate=2, shard=2, zero=3, precision="fp32"), 4, 32)
    hybrid = yaml.safe_load(accelerate_yaml(run))
    cut = changed(FSDP, {"num_processes": 4, f"{SIZES}dp_shard_size": 2, f"{SIZES}tp_size": 2})
    cases = {name: {"kind": "yaml", "config": config} for name, config in (("hybrid", hybrid), ("cut", cut))}
    cases["import"] = {"kind": "import", "line": REPLICATE}
    return on_ranks(4, cases, tmp_path_factory.mktemp("four"))


def test_hybrid_sharding_makes_the_mesh(four):
    """Two replicas of two shards."""
    assert four[0]["hybrid"]["mesh"] == {"dp_replicate": 2, "dp_shard": 2}
    assert 0.4 < four[0]["hybrid"]["held"] / four[0]["hybrid"]["whole"] < 0.6


def test_tensor_parallelism_fails_or_does_nothing(four):
    """A model that is not cut stays whole on the ranks of tp; for one that is cut, the import is not there."""
    assert four[0]["cut"]["mesh"] == {"dp_shard": 2, "tp": 2}
    assert 0.4 < four[0]["cut"]["held"] / four[0]["cut"]["whole"] < 0.6  # sharded two ways, not four
    assert "cannot import name 'ReplicateParallel'" in four[0]["import"]["refused"]
