"""The lines that start vLLM and SGLang, to the letter, and what is refused."""

from __future__ import annotations

import shlex

import pytest

from workshop.cli import main
from workshop.configs import serve_command, sglang_command, vllm_command
from workshop.configs.serving_options import SGLANG, SGLANG_CHOICES, VLLM, VLLM_CHOICES
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.serving import Serving


def served(tensor=1, cluster="", **changes):
    layout = Layout(tensor=tensor, **changes.pop("layout", {}))
    run = Run(
        changes.pop("model", "llama-3.1-8b"),
        cluster or f"{layout.world_size}xH100",
        layout,
        micro_batch=changes.pop("batch", 64),
        seq_len=8192,
    )
    return Serving(run, **changes)


def test_vllm_to_the_letter():
    wanted = served(2, weights="fp8", kv="fp8", batched_tokens=2048, layout={"replicate": 2})
    assert shlex.join(vllm_command(wanted, "meta-llama/Llama-3.1-8B")) == (
        "vllm serve meta-llama/Llama-3.1-8B --dtype bfloat16 --tensor-parallel-size 2 --data-parallel-size 2 "
        "--max-model-len 8192 --max-num-seqs 64 --block-size 16 --kv-cache-dtype fp8 "
        "--gpu-memory-utilization 0.9 --enable-chunked-prefill --max-num-batched-tokens 2048 "
        "--enable-prefix-caching --quantization fp8"
    )


def test_sglang_to_the_letter():
    wanted = served(2, weights="fp8", kv="fp8", batched_tokens=2048, layout={"replicate": 2})
    assert shlex.join(sglang_command(wanted, "meta-llama/Llama-3.1-8B")) == (
        "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --dtype bfloat16 --tp-size 2 "
        "--dp-size 2 --context-length 8192 --max-running-requests 64 --page-size 16 "
        "--kv-cache-dtype fp8_e4m3 --mem-fraction-static 0.9 --chunked-prefill-size 2048 --quantization fp8"
    )


def test_a_draft_pipeline_and_whole_prompts():
    wanted = served(draft="tiny", draft_tokens=4, prefix_cache=False, layout={"pipeline": 2})
    vllm, sglang = vllm_command(wanted, "a folder"), sglang_command(wanted, "a folder")
    assert vllm[2] == "a folder"
    assert vllm[-1] == '{"model": "tiny", "num_speculative_tokens": 4}'
    assert {"--no-enable-prefix-caching", "--no-enable-chunked-prefill"} <= set(vllm)
    assert vllm[vllm.index("--max-num-batched-tokens") + 1] == "8192"
    assert vllm[vllm.index("--pipeline-parallel-size") + 1] == "2"
    assert "--disable-radix-cache" in sglang
    assert sglang[sglang.index("--chunked-prefill-size") + 1] == "-1"
    assert sglang[sglang.index("--speculative-num-draft-tokens") + 1] == "5"


def test_experts_over_all_ranks():
    wanted = served(4, model="qwen3-30b-a3b", layout={"expert": 4, "expert_tensor": 1})
    assert "--enable-expert-parallel" in vllm_command(wanted, "m")
    words = sglang_command(wanted, "m")
    assert words[words.index("--ep-size") + 1] == "4"
    half = served(4, model="qwen3-30b-a3b", layout={"expert": 2, "expert_tensor": 1})
    with pytest.raises(
        ValueError, match="expert = 2: experts are dealt out over all 4 ranks.*use expert = 4"
    ):
        vllm_command(half, "m")


def test_the_models_own_format_is_auto_and_others_have_names():
    for kv, dtype, vllm, sglang in (
        ("bf16", "bf16", "auto", "auto"),
        ("fp8", "bf16", "fp8", "fp8_e4m3"),
        ("bf16", "deepspeed-fp16", "bfloat16", "bfloat16"),
    ):
        wanted = served(kv=kv, layout={"precision": dtype})
        for command, value in ((vllm_command, vllm), (sglang_command, sglang)):
            words = command(wanted, "m")
            assert words[words.index("--kv-cache-dtype") + 1] == value
    assert "int8_per_token_head" in vllm_command(served(kv="int8"), "m")


def test_int8_is_made_by_vllm_and_read_by_sglang():
    assert vllm_command(served(weights="int8"), "m")[-1] == "int8_per_channel_weight_only"
    with pytest.raises(ValueError, match="SGLang makes fp8 from 16 bits by itself.*quantized_checkpoint"):
        sglang_command(served(weights="int8"), "m")
    assert "--quantization" not in sglang_command(served(weights="int8"), "m", quantized_checkpoint=True)
    with pytest.raises(ValueError, match="weights = 'int4': vLLM makes fp8, int8"):
        vllm_command(served(weights="int4"), "m")


def test_all_that_is_wrong_is_said_at_once():
    wanted = served(weights="nf4", kv="int8", kv_layers=4, quantized_head=True)
    with pytest.raises(ValueError, match="SGLang cannot serve this run:") as told:
        sglang_command(wanted, "-m")
    for words in (
        "checkpoint '-m'",
        "kv_layers = 4",
        "quantized_head",
        "weights = 'nf4'",
        "kv = 'int8' is not",
    ):
        assert words in str(told.value)


def test_nodes_chunks_and_lines():
    with pytest.raises(ValueError, match="16xH100 is 2 nodes: one line starts the ranks of one"):
        vllm_command(served(8, layout={"pipeline": 2}), "m")
    with pytest.raises(ValueError, match="batched_tokens = 32 is fewer than micro_batch = 64"):
        vllm_command(served(batched_tokens=32), "m")
    with pytest.raises(ValueError, match="more than one line"):
        vllm_command(served(), "m\nrm")
    with pytest.raises(ValueError, match="context = 2"):
        sglang_command(served(layout={"context": 2}), "m")


def test_an_option_that_a_program_does_not_have_is_never_written():
    with pytest.raises(ValueError, match="vLLM has no option --max-num-seq; did you mean 'max-num-seqs'"):
        serve_command._checked("vLLM", [("max-num-seq", "1")], VLLM, VLLM_CHOICES)
    with pytest.raises(ValueError, match="unknown value of SGLang's --dtype 'bf16'"):
        serve_command._checked("SGLang", [("dtype", "bf16")], SGLANG, SGLANG_CHOICES)


def test_the_lists_hold_what_their_pages_name():
    # docs.vllm.ai, "Engine Arguments"; docs.sglang.io, "Server Arguments".
    assert {"tensor-parallel-size", "gpu-memory-utilization", "speculative-config", "host", "port"} <= VLLM
    assert {"model-path", "tp-size", "tensor-parallel-size", "mem-fraction-static", "host", "port"} <= SGLANG
    assert not {name for name in VLLM | SGLANG if name.startswith("-") or "_" in name}
    for takes, choices in (
        (serve_command.VLLM_WEIGHTS, VLLM_CHOICES["quantization"]),
        (serve_command.SGLANG_WEIGHTS, SGLANG_CHOICES["quantization"]),
        (serve_command.VLLM_KV, VLLM_CHOICES["kv-cache-dtype"]),
        (serve_command.SGLANG_KV, SGLANG_CHOICES["kv-cache-dtype"]),
    ):
        assert {value for value in takes.values() if value} <= set(choices)


RUN = """
model = "llama-3.1-8b"
cluster = "2xH100"
micro_batch = 32
seq_len = 4096
[layout]
tensor = 2
precision = "bf16"
"""


def test_the_command_line(tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(RUN, "utf-8")
    assert main(["configs", "vllm", str(path), "some/model", "--weights", "fp8", "--chunk", "1024"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("vllm serve some/model --dtype bfloat16 --tensor-parallel-size 2 ")
    assert main(["configs", "sglang", str(path), "some/model", "--kv", "fp8"]) == 0
    assert "--kv-cache-dtype fp8_e4m3" in capsys.readouterr().out
    assert main(["configs", "sglang", str(path), "some/model", "--weights", "int4"]) == 2
    assert "SGLang cannot serve this run" in capsys.readouterr().err


def test_the_same_run_predicted(tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(RUN, "utf-8")
    assert main(["predict", str(path), "--serve", "1024", "256", "--engine", "sglang"]) == 0
    said = capsys.readouterr().out
    assert "served by sglang: 32 requests of 1,024 + 256 tokens" in said
    assert "first token after" in said
    assert main(["predict", str(path), "--serve", "4000", "256"]) == 2
    assert "seq_len is 4096" in capsys.readouterr().err
    many = tmp_path / "many.toml"
    many.write_text(RUN.replace("= 32", "= 3200"), "utf-8")
    assert main(["predict", str(many), "--serve", "1024", "256", "--json"]) == 1
    assert '"fits": false' in capsys.readouterr().out
