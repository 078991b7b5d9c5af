"""`workshop configs`: what it writes, what it reads, exit codes, and words for what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from workshop.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = """\
model = "llama-3-8b"
cluster = "64xH100"
micro_batch = 1
global_batch = 512
seq_len = 8192
[layout]
shard = 64
zero = 3
recompute = "full"
"""
LLAMA = ["--model", "llama-3-8b", "--device", "H100", "--micro-batch", "1", "--seq-len", "8192"]


@pytest.fixture
def run_file(tmp_path):
    def write(*changes: tuple[str, str]) -> str:
        text = RUN
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "run.toml"
        path.write_text(text, "utf-8")
        return str(path)

    return write


def said(capsys) -> str:
    return capsys.readouterr().out


def test_accelerate_is_written(run_file, capsys):
    assert main(["configs", "accelerate", run_file()]) == 0
    config = yaml.safe_load(said(capsys))
    assert (config["distributed_type"], config["num_processes"], config["num_machines"]) == ("FSDP", 64, 8)
    assert config["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"] == "LlamaDecoderLayer"


def test_deepspeed_is_written(run_file, capsys):
    path = run_file(("zero = 3", 'zero = 3\nprecision = "deepspeed-bf16"'))
    assert main(["configs", "deepspeed", path, "--lr", "3e-4", "--gradient-clipping", "1"]) == 0
    captured = capsys.readouterr()
    config = json.loads(captured.out)
    assert "#   seq_len = 8192: of the batches" in captured.err  # what the JSON cannot say, beside it
    assert "#   world_size = 64: of the launcher" in captured.err
    assert (config["train_batch_size"], config["gradient_accumulation_steps"]) == (512, 8)
    assert config["optimizer"] == {"type": "AdamW", "params": {"lr": 3e-4}}
    assert (config["gradient_clipping"], config["zero_optimization"]["stage"]) == (1.0, 3)


def test_fsdp_arguments_are_written(run_file, capsys):
    assert main(["configs", "fsdp", run_file()]) == 0
    assert json.loads(said(capsys))["transformer_cls_names_to_wrap"] == ["LlamaDecoderLayer"]
    assert main(["configs", "fsdp", run_file(), "--trainer"]) == 0
    assert json.loads(said(capsys))["fsdp_config"]["version"] == 2


def test_what_was_written_is_read_again(run_file, tmp_path, capsys):
    """Through the command's own process, file and JSON; the numbers are those of `predict`."""
    path = tmp_path / "accelerate.yaml"
    assert main(["configs", "accelerate", run_file(), "--output", str(path)]) == 0
    assert said(capsys) == ""
    command = [
        sys.executable,
        "-m",
        "workshop",
        "configs",
        "read",
        str(path),
        *LLAMA,
        "--accumulation",
        "8",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kind"], found["engine"], found["mistakes"], found["lacking"]) == (
        "accelerate",
        "fsdp",
        [],
        [],
    )
    assert main(["predict", run_file(), "--json"]) == 0
    predicted = json.loads(said(capsys))
    assert found["run"]["layout"] == predicted["run"]["layout"]
    assert found["memory"]["device_bytes"] == pytest.approx(predicted["memory"]["device_bytes"][0], abs=1)
    assert found["traffic"] == predicted["traffic"]


def test_a_person_is_told_what_it_needs(run_file, tmp_path, capsys):
    path = tmp_path / "accelerate.yaml"
    main(["configs", "accelerate", run_file(), "--output", str(path)])
    assert main(["configs", "read", str(path), *LLAMA]) == 0
    text = said(capsys)
    assert "nothing wrong was found" in text
    assert "fits: stage 0 needs" in text
    assert "predicted traffic of one rank in one step" in text
    assert "reduce_scatter" in text
    assert main(["configs", "read", str(path)]) == 0  # nothing wrong, though nothing can be predicted
    assert "to say what it needs, give also model" in said(capsys)


def test_an_adapter_needs_less_and_has_its_own_mistake(run_file, tmp_path, capsys):
    path = tmp_path / "accelerate.yaml"
    main(["configs", "accelerate", run_file(), "--output", str(path)])
    main(["configs", "read", str(path), *LLAMA, "--json"])
    whole = json.loads(said(capsys))
    assert main(["configs", "read", str(path), *LLAMA, "--lora", "16", "--json"]) == 1
    adapter = json.loads(said(capsys))
    assert adapter["memory"]["device_bytes"] < whole["memory"]["device_bytes"]
    assert whole["traffic"]["wire_bytes_by_collective"].keys() == {"all_gather", "reduce_scatter"}
    assert adapter["traffic"] is None
    assert "not predicted for a run with an adapter" in adapter["no_traffic_because"]
    assert ["an empty adapter is saved" in mistake["what"] for mistake in adapter["mistakes"]] == [True]


def test_mistakes_make_exit_code_1(tmp_path, capsys):
    path = tmp_path / "broken.yaml"
    path.write_text("distributed_type: MULTI_CPU\nnum_processes: 4\nnum_machines: 1\nmixed_precision: 'no'\n")
    assert main(["configs", "read", str(path)]) == 1
    text = said(capsys)
    assert "silent: distributed_type: MULTI_CPU starts one process" in text
    assert "cure: torchrun --nproc-per-node 4" in text
    assert main(["configs", "read", str(path), "--json"]) == 1
    assert json.loads(said(capsys))["mistakes"][0]["kind"] == "silent"


@pytest.mark.parametrize(
    ("program", "code", "told"),
    [
        ((), 0, "depends: train_micro_batch_size_per_gpu: "),
        (("--program", "accelerate"), 0, "nothing wrong was found"),
        (("--program", "trainer"), 0, "nothing wrong was found"),
        (("--program", "deepspeed"), 1, "stops: train_micro_batch_size_per_gpu: "),
    ],
)
def test_who_reads_the_file_decides_what_is_wrong_with_it(tmp_path, capsys, program, code, told):
    path = tmp_path / "ds.json"
    config = {"gradient_clipping": 1.0, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    path.write_text(json.dumps(config | {"train_micro_batch_size_per_gpu": "auto"}))
    assert main(["configs", "read", str(path), *program]) == code
    text = said(capsys)
    assert told in text
    assert ('"auto" is filled in by Trainer or Accelerate' in text) == (told != "nothing wrong was found")


def test_a_program_that_reads_no_such_file_is_refused_with_those_that_do(tmp_path, capsys):
    path = tmp_path / "ds.json"
    path.write_text("{}")
    assert main(["configs", "read", str(path), "--program", "deepsped"]) == 2
    told = capsys.readouterr().err
    assert "unknown program 'deepsped'; did you mean 'deepspeed'" in told
    assert "(known: 'accelerate', 'trainer', 'deepspeed')" in told


def test_what_does_not_fit_makes_exit_code_1(tmp_path, capsys):
    path = tmp_path / "ds.json"
    path.write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": 1,
                "gradient_clipping": 1.0,
                "bf16": {"enabled": True},
                "zero_optimization": {"stage": 0},
            }
        )
    )
    assert main(["configs", "read", str(path), *LLAMA[:4], "--seq-len", "4096", "--num-processes", "8"]) == 1
    text = said(capsys)
    assert "nothing wrong was found" in text
    assert "does not fit: stage 0 needs" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["accelerate", "nowhere.toml"], "there is no file nowhere.toml"),
        (["read", "nowhere.yaml"], "there is no file nowhere.yaml"),
        (
            ["accelerate", str(EXAMPLES / "llama-3-8b-64xh100.toml")],
            "tensor = 2: these engines cut the batch",
        ),
        (
            ["accelerate", "RUN", "--engine", "deepsped"],
            "unknown engine 'deepsped'; did you mean 'deepspeed'",
        ),
        (["deepspeed", "RUN"], "precision = 'fsdp-bf16' is not deepspeed's"),
    ],
)
def test_a_wrong_call_has_exit_code_2(run_file, capsys, arguments, told):
    arguments = [run_file() if argument == "RUN" else argument for argument in arguments]
    assert main(["configs", *arguments]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("arguments", [[], ["wrote"], ["read", "x.yaml", "--micro-batch", "0"]])
def test_the_parser_refuses(capsys, arguments):
    with pytest.raises(SystemExit) as error:
        main(["configs", *arguments])
    assert error.value.code == 2
