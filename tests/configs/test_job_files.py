"""Job files of torchtitan, Megatron-LM and NeMo: round trips over many layouts, twins of public files, refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.configs import job_texts
from tests.configs.foreign_files import FOLDER
from workshop.configs import Overrides, formats, read_config
from workshop.configs.formats.shell import commands
from workshop.configs.formats.shell_words import UnreadableScriptError
from workshop.facts import catalogue
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.memory import predict_memory

# ------------------------------------------------------------------ round trips


def titan_grid():
    cuts = product(((1, 64, 1, 1, 1), (2, 16, 2, 1, 1), (1, 8, 4, 2, 1), (2, 4, 2, 1, 4)), (2, 3))
    policies = (("none", 0), ("full", 0), ("selective", 0), ("full", 4))
    for ((replicate, shard, tensor, context, pipeline), zero), (recompute, layers), precision in product(
        cuts, policies, ("fsdp-bf16", "fsdp-fp8", "fp32")
    ):
        layout = Layout(
            replicate=replicate, shard=shard, zero=zero, tensor=tensor, sequence_parallel=tensor > 1, context=context,
            pipeline=pipeline, schedule="interleaved" if pipeline > 1 else "1f1b",
            virtual_stages=2 if pipeline > 1 else 1, embedding_in_stages=pipeline > 1, recompute=recompute,
            recompute_layers=layers, recompute_modules=("ops",) if recompute == "selective" else (),
            precision=precision, offload="params" if recompute == "full" and pipeline == 1 else "none",
        )  # fmt: skip
        how = implementation(
            "torchtitan", compile=recompute == "none", loss="loss-parallel" if tensor > 1 else "eager",
            step_room=4.0 if precision == "fp32" else 0.0,
        )  # fmt: skip
        yield Run(
            "llama-3-8b", f"{layout.world_size}xH100", layout, 2, 4096, accumulation=4, implementation=how
        )


def megatron_grid(name: str):
    cuts = ((1, 8, 1, 1, 1, 1), (2, 2, 4, 1, 2, 2), (1, 2, 2, 2, 4, 1), (4, 1, 8, 1, 1, 1))
    policies = (("none", 1, 0), ("selective", 1, 0), ("full", 2, 0), ("full", 1, 3))
    recipes = ["megatron-bf16", "megatron-fp8", "deepspeed-bf16", "fp32"]
    for cut, (recompute, every, layers), precision, zero in product(cuts, policies, recipes, (0, 1)):
        replicate, shard, tensor, context, pipeline, virtual = cut
        if zero == 0:
            replicate, shard = replicate * shard, 1
        elif name == "nemo":  # says nothing of replicas
            replicate, shard = 1, replicate * shard
        layout = Layout(
            replicate=replicate, shard=shard, zero=zero, tensor=tensor, sequence_parallel=tensor > 1, context=context,
            pipeline=pipeline, virtual_stages=virtual, recompute=recompute, recompute_every=every,
            recompute_layers=layers, precision=precision,
        )  # fmt: skip
        how = implementation(
            "megatron", attention="flash", dropout=False,
            loss="vocab-parallel-fused" if recompute == "none" else "vocab-parallel",
        )  # fmt: skip
        yield Run(
            catalogue.model("llama-2-70b").resized(dropout=True), f"{layout.world_size}xH100", layout, 1, 4096,
            global_batch=layout.data_parallel * 8, implementation=how,
        )  # fmt: skip


def same(found: Run | None, run: Run) -> None:
    """Equal but for the model's name and source, which these files do not hold."""
    assert found is not None
    model = found.model.resized(name=run.model.name, source=run.model.source)
    assert replace(found, model=model) == run


def test_torchtitan_gives_the_run_back():
    runs = [*titan_grid()]
    for run in runs:
        text = job_texts.torchtitan(run)
        same(read_config(text, Overrides(device=run.cluster.name)).run, run)
    assert len(runs) > 80


def test_torchtitan_gathers_keys_unless_it_is_told_to_hand_them_on():
    run = next(run for run in titan_grid() if run.layout.context > 1)
    line = 'context_parallel_rotate_method = "alltoall"\n'
    for text, method in (
        (line, "ring"),
        (line.replace("alltoall", "allgather"), "all_gather"),
        ("", "all_gather"),
    ):
        told = job_texts.torchtitan(run).replace(line, text)
        found = read_config(told, Overrides(device=run.cluster.name)).run
        assert found is not None
        assert found.layout == replace(run.layout, context_method=method)
    with pytest.raises(ValueError, match="rotate_method.*alltoall"):
        read_config(job_texts.torchtitan(run).replace(line, line.replace("alltoall", "both")), Overrides())


@pytest.mark.parametrize("name", ["megatron", "nemo"])
def test_megatron_and_nemo_give_the_run_back(name):
    runs = [*megatron_grid(name)]
    for run in runs:
        text = getattr(job_texts, name)(run)
        reading = read_config(text, Overrides(device="H100"))
        assert (reading.kind, reading.not_modelled) == (name, ())
        same(reading.run, run)
    assert len(runs) > 100


def test_experts_of_megatron_come_back():
    layout = Layout(
        shard=16,
        zero=1,
        tensor=2,
        sequence_parallel=True,
        expert=8,
        expert_tensor=1,
        precision="megatron-bf16",
    )
    how = implementation("megatron", attention="flash", dropout=False)
    model = catalogue.model("mixtral-8x7b").resized(dropout=True)
    run = Run(model, "32xH100", layout, 1, 4096, global_batch=64, implementation=how)
    found = read_config(job_texts.megatron(run), Overrides(device="H100")).run
    assert found is not None
    assert found.layout == run.layout
    assert found.model.num_params == model.num_params
    assert predict_memory(found).device[0] == predict_memory(run).device[0]


# ------------------------------------------------------------------ twins of public files

TWINS = {
    "torchtitan_llama3_70b.toml": (
        Overrides(device="256xH100"),
        {"replicate": 2, "shard": 16, "zero": 3, "tensor": 8, "precision": "fsdp-fp8", "recompute": "full"},
        (4, 1, 128, 4096, "llama-3-70b"),
    ),
    "torchtitan_of_2024.toml": (
        Overrides(device="64xA100-80GB"),
        {"shard": 4, "zero": 2, "tensor": 2, "context": 2, "pipeline": 4, "virtual_stages": 2, "recompute_layers": 2},
        (1, 6, 24, 2048, "llama-3-8b"),
    ),
    "torchtitan_experts.toml": (
        Overrides(device="32xH100"),
        {"shard": 32, "zero": 2, "expert": 16, "expert_tensor": 1, "recompute_modules": ("ops",)},
        (2, 1, 64, 4096, "deepseek-v2-lite"),
    ),
    "megatron_gpt.sh": (
        Overrides(device="A100-80GB"),
        {"replicate": 4, "zero": 0, "tensor": 4, "pipeline": 6, "precision": "megatron-bf16"},
        (2, 96, 768, 1024, "megatron-gpt-48x6144"),
    ),
    "megatron_llama_fp8.sh": (
        Overrides(device="H100"),
        {"shard": 2, "zero": 1, "tensor": 2, "context": 2, "precision": "megatron-fp8-params"},
        (1, 32, 64, 4096, "megatron-gpt-32x4096"),
    ),
    "megatron_experts.txt": (
        Overrides(device="64xH100"),
        {"shard": 16, "expert": 8, "expert_tensor": 1, "pipeline": 2, "virtual_stages": 4, "recompute": "full"},
        (1, 16, 256, 4096, "megatron-gpt-24x2048"),
    ),
    "nemo_llama.yaml": (
        Overrides(model="llama-2-13b", device="A100-80GB"),
        {"shard": 4, "zero": 1, "tensor": 2, "pipeline": 4, "virtual_stages": 5, "recompute": "selective"},
        (2, 16, 128, 2048, "llama-2-13b"),
    ),
    "nemo_launcher_gpt3.yaml": (
        Overrides(device="H100"),
        {"shard": 8, "tensor": 8, "pipeline": 2, "recompute": "full", "recompute_layers": 3, "precision": "megatron-fp8"},
        (2, 32, 512, 1024, "nemo-24x6144"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_read_and_predicted(name):
    overrides, cuts, batch = TWINS[name]
    reading = read_config(FOLDER / name, overrides)
    assert (reading.mistakes, reading.not_modelled, reading.lacking) == ((), (), ())
    run = reading.run
    assert {field: getattr(run.layout, field) for field in cuts} == cuts
    assert (run.micro_batch, run.accumulation, run.global_batch, run.seq_len, run.model.name) == batch
    assert predict_memory(run).device.min() > 1e9
    assert reading.parsed.without_effect  # a person sees what was passed over
    assert f"without effect on the prediction: {reading.parsed.without_effect[0]}" in str(reading)


def test_a_shape_that_has_a_name_is_the_catalogues():
    """8.03 billion parameters by arguments, as Llama 3 8B has by name."""
    run = read_config(FOLDER / "megatron_llama_fp8.sh", Overrides(device="H100")).run
    assert run.model.num_params == catalogue.model("llama-3-8b").num_params


def test_a_tokenizer_hides_the_vocabulary():
    reading = read_config(FOLDER / "nemo_llama.yaml", Overrides(device="H100"))
    assert reading.lacking == ('model ("llama-3-8b")',)
    with pytest.raises(ValueError, match="llama-2-7b is not the file's model: .*num_layers = 40, not 32"):
        read_config(FOLDER / "nemo_llama.yaml", Overrides(device="H100", model="llama-2-7b"))


# ------------------------------------------------------------------ nothing is passed over in silence

SMALLEST = {
    "torchtitan": (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 2048\n[parallelism]\n',
        "{0}.{1}",
    ),
    "megatron": (
        "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64 --micro-batch-size 1 --bf16",
        "",
    ),
}


def asked_names(module: str, pattern: str) -> set[str]:
    """Names that a reader asks for, from its source."""
    folder = Path(formats.__file__).parent
    text = "".join(path.read_text("utf-8") for path in folder.glob(f"{module}*.py"))
    return set(re.findall(pattern, text))


@pytest.mark.parametrize("module", ["torchtitan", "nemo", "megatron"])
def test_a_name_that_is_asked_for_is_never_unknown(module):
    """Each modelled setting, at a harmless value in a small file, is read and not refused as unknown."""
    pattern = {"megatron": r'"(--[a-z0-9_-]+)"', "nemo": r'"((?:model|trainer)\.[\w.]+)"'}.get(
        module, r'"((?:training|parallelism|model|optimizer|activation_checkpoint|compile|float8)\.\w+)"'
    )
    names = asked_names(module, pattern)
    assert len(names) > 20
    unknown = [name for name in sorted(names) if any(name in told for told in unknown_with(module, name))]
    assert unknown == []


def unknown_with(module: str, name: str) -> list[str]:
    for value in (
        False,
        1,
        0,
        "none",
        "",
        "2",
        "bf16",
        "rmsnorm",
        "adamw",
        "AdamW",
        "float32",
        "op",
        "fused",
    ):
        try:
            reading = read_config(small_file(module, name, value))
        except ValueError:
            continue
        return [told for told in reading.not_modelled if "not known here" in told]
    return []


def small_file(module: str, name: str, value) -> object:
    if module == "megatron":
        base = "--num-layers 4 --hidden-size 64 --num-attention-heads 2 --seq-length 64 --micro-batch-size 1 --bf16"
        return base if value is False else f"{base} {name} {value}" if value != "" else f"{base} {name}"
    if module == "nemo":
        base = {
            "trainer": {"devices": 1},
            "model": {"micro_batch_size": 1, "num_layers": 4, "hidden_size": 64},
        }
    else:
        base = {
            "model": {"name": "llama3", "flavor": "8B"},
            "training": {"seq_len": 64},
            "parallelism": {"x": None},
        }
    *sections, last = name.split(".")
    place = base
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    return base


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--new-thing 3", "--new-thing = '3': not known here"),
        ("--use-torch-fsdp2", "--use-torch-fsdp2 = True: torch's FSDP2"),
        ("--pipeline-model-parallel-layout Et*3|t*3L", "stages cut by hand"),
        ("--cpu-offloading-num-layers 4", "activations moved to the host"),
        ("--optimizer lion", "--optimizer = 'lion': known: adam"),
        ("--main-grads-dtype bf16", "moments, gradients and weights are modelled in fp32"),
        ("--account-for-loss-in-pipeline-split", "only both ends together"),
    ],
)
def test_an_argument_that_matters_and_is_not_modelled_is_refused_by_name(text, told):
    base = (
        "--num-layers 4 --hidden-size 64 --num-attention-heads 2 --seq-length 64 --micro-batch-size 1 --bf16"
    )
    reading = read_config(f"{base} {text}", Overrides(device="8xH100"))
    assert reading.run is None
    assert any(told in reason for reason in reading.not_modelled), reading.not_modelled
    assert "not modelled: " in str(reading)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ('[model]\nflavor = "8B"\nconverters = ["mx"]', "mx is not modelled"),
        (
            '[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "DualPipeV"',
            "known: 1f1b",
        ),
        ("[fault_tolerance]\nenable = true", "replicas that come and go"),
        ('[activation_checkpoint]\nmode = "memory_budget"', "within a budget"),
        ("[training]\nseq_length = 5", "training.seq_length = 5: not known here"),
        ('[optimizer]\nname = "Shampoo"', "known: adamw"),
    ],
)
def test_what_torchtitan_asks_and_is_not_modelled_is_refused_by_name(change, told):
    text = f'[job]\ndescription = ""\n[lr_scheduler]\nwarmup_steps = 1\n{change}\n'
    text += "" if "[model]" in change else '[model]\nflavor = "8B"\n'
    reading = read_config(text, Overrides(device="8xH100"))
    assert any(told in reason for reason in reading.not_modelled), reading.not_modelled
    assert reading.run is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[training]\nseq_len = 'x'\n[job]\na = 1\n[model]\nflavor = '8B'",
            "training.seq_len must be a whole number",
        ),
        (
            "--num-layers two --hidden-size 8 --seq-length 8 --bf16 --fp16",
            "--num-layers must be a whole number",
        ),
        ("--num-layers 2 --position-embedding-type rop --hidden-size 8 --bf16", "did you mean 'rope'"),
    ],
)
def test_a_wrong_value_is_told(text, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        read_config(text)


# ------------------------------------------------------------------ scripts


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("A=3\nrun --n $A --m ${A} --o ${B:-4} --p $((A*2+1))", ["run", "--n", "3", "--m", "3", "--o", "4", "--p", "7"]),
        ("A=(--x 1 \\\n  # remark\n  --y '2 3')\nrun ${A[@]}", ["run", "--x", "1", "--y", "2", "3"]),
        ("A=(--y '2 3')\nrun \"${A[@]}\"", ["run", "--y", "2 3"]),
        ('A="--x 1"\nA+=" --y 2"\nrun $A', ["run", "--x", "1", "--y", "2"]),
        ("A=()\nA+=(--x 1)\nA+=(--y 2)\nrun ${A[*]}", ["run", "--x", "1", "--y", "2"]),
        ("if [ 2 -gt 1 ]; then A=--yes; else A=--no; fi\nrun $A", ["run", "--yes"]),
        ('T=x\nif [[ "$T" == "y" ]]; then A=--y; elif [[ -z "" && $T = x ]]; then A=--x; fi\nrun $A', ["run", "--x"]),
        ("f() { echo hi; }\nfor i in 1 2; do echo $i; done\nrun --x `date +%s` $(pwd)", ["run", "--x", "`date +%s`", "$(pwd)"]),
        ("export A=1 B=2\nrun --x $A$B", ["run", "--x", "12"]),
        ('D="$(dirname "$0")/x"\nrun --d "$D"', ["run", "--d", '$(dirname "$0")/x']),
    ],
)  # fmt: skip
def test_a_script_is_followed_without_running_it(script, words):
    assert commands(script)[-1] == words


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("for t in 1 2; do A=$t; done\nrun $A", "line 1: 'A=$t' is set inside 'for'"),
        ("if [ -f /x ]; then A=(--x 1); fi\nrun ${A[@]}", "A depends on the condition of line 1"),
        ("cat <<END\nx\nEND\n", "line 1: a here-document"),
        ('run "x', "has no end"),
    ],
)
def test_what_only_a_shell_could_decide_is_refused(script, told):
    with pytest.raises(UnreadableScriptError, match=re.escape(told)):
        commands(script)


def test_nothing_of_a_script_is_run(tmp_path):
    mark = tmp_path / "ran"
    script = f"A=$(touch {mark})\n`touch {mark}`\ntouch {mark}\nrun --num-layers $(touch {mark}) --a 1 --b 2 --c 3\n"
    with pytest.raises(ValueError, match="--num-layers must be a whole number, not '\\$\\(touch"):
        read_config(script)
    assert not mark.exists()
