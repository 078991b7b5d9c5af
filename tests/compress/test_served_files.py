"""The files that lesson 43 writes are those of NVIDIA's Model Optimizer: names, shapes, types and values.

And its script for tomorrow takes models that are not the example's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.installed import skip_without

LESSON = Path(__file__).parents[2] / "notebooks/source/day4_fp8/43_fp8_inference.py"
PROGRAM = """
import contextlib, copy, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=256, tie_word_embeddings=True, dtype="bfloat16", architectures=["LlamaForCausalLM"])
tokens = torch.randint(0, 256, (2, 32))
import modelopt.torch.quantization as mtq
from modelopt.torch.export import export_hf_checkpoint, export_tensorrt_llm_checkpoint
recipe = copy.deepcopy(mtq.FP8_DEFAULT_CFG)
recipe["quant_cfg"].append({"quantizer_name": "*[kv]_bmm_quantizer", "cfg": {"num_bits": (4, 3), "axis": None}})
for which in ("hf", "engine"):
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).bfloat16().eval()
    if which == "hf":
        model.save_pretrained(sys.argv[1] + "/plain")
        torch.save(tokens, sys.argv[1] + "/tokens.pt")
    model = mtq.quantize(model, recipe, lambda inner: inner(tokens))
    if which == "hf":
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=sys.argv[1] + "/hf")
    else:
        export_tensorrt_llm_checkpoint(model, "llama", torch.bfloat16, sys.argv[1] + "/engine", 1, 1)
"""


def cells(*begin: str) -> str:
    """The lesson's cells of code that hold these words, in order."""
    found = []
    for words in begin:
        (cell,) = [
            cell
            for cell in re.split(r"(?m)^# %%(?: .*)?$", LESSON.read_text(encoding="utf-8"))
            if words in cell and not cell.lstrip().startswith("# ")
        ]
        found.append(cell)
    return "\n".join(found)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with modelopt's two exports of a small Llama, and the names that the lesson's cells leave."""
    skip_without("modelopt")
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("served")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, by_the_lesson(folder)


def by_the_lesson(folder: Path) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    from workshop.compress.quantize_model import layer_linears

    model = AutoModelForCausalLM.from_pretrained(folder / "plain", dtype=torch.float32).eval()
    model.requires_grad_(False)
    names: dict[str, Any] = {"torch": torch, "device": torch.device("cpu"), "smol": model, "results": {}}
    names |= {"linears": layer_linears(model), "layer_linears": layer_linears, "config": model.config}
    names["tokenizer"] = SimpleNamespace(save_pretrained=lambda folder: None)  # the small Llama has none
    solution = Path(__file__).parents[2] / "workshop/exercises/scales_of/solution.py"
    exec(solution.read_text(), names)
    exec(cells("LARGEST = {", "class Linear8", "def calibrate(").split("entered = inputs_of")[0], names)
    names["channel_max"] = names["calibrate"](names["inputs_of"](model, torch.load(folder / "tokens.pt")))
    exec(cells("def static(").split("for kind, layers")[0], names)
    linear8 = names["Linear8"]
    made = {n: linear8(m.weight.float(), "e4m3", "tensor") for n, m in names["linears"].items()}
    names["made"] = {"e4m3": made}
    exec(cells("served = made[", "producer = {"), names)
    names["read"] = names["tensors"]
    exec(cells("PLACES = {", "engine = {", '"architecture": "LlamaForCausalLM"'), names)
    return names


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Names, types, shapes; what codes and scales stand for, to a fraction of FP8's own error."""
    import torch

    assert set(ours) == set(theirs)
    for name, wanted in theirs.items():
        found = ours[name]
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
        if wanted.dtype == torch.float8_e4m3fn:
            end = "_scale" if f"{name}_scale" in ours else "s_scaling_factor"
            pair = [tensors[name].float() * tensors[name + end].float() for tensors in (ours, theirs)]
            # it rounds once, from 16 bits; what the lesson fuses has been rounded twice
            assert (pair[0] - pair[1]).norm() < 0.08 * pair[1].norm(), name
        elif "layernorm" in name or "embed" in name or "ln_f" in name or "norm" in name:
            assert torch.equal(found, wanted), name
        elif not name.endswith(("k_scale", "v_scale")):  # the lesson's are 1: see below
            assert torch.allclose(found.float(), wanted.float(), rtol=0.01), name


def test_the_folder_for_servers_is_modelopts(written: tuple[Path, dict[str, Any]]) -> None:
    from safetensors.torch import load_file

    folder, lesson = written
    same(lesson["tensors"], load_file(folder / "hf" / "model.safetensors"))
    ours, theirs = (
        json.loads((where / "hf_quant_config.json").read_text())
        for where in (lesson["folder"], folder / "hf")
    )
    assert ours["producer"]["name"] == theirs["producer"]["name"] == "modelopt"  # vLLM goes by it
    for field in ("quant_algo", "kv_cache_quant_algo"):
        assert ours["quantization"][field] == theirs["quantization"][field]


def test_the_engines_checkpoint_is_modelopts(written: tuple[Path, dict[str, Any]]) -> None:
    from safetensors.torch import load_file

    folder, lesson = written
    theirs = load_file(folder / "engine" / "rank0.safetensors")
    # newer engines read one factor for keys and one for values beside the documented one
    extra = {name for name in theirs if re.search(r"\.[kv]_cache_scaling_factor$", name)}
    same(lesson["engine"], {name: value for name, value in theirs.items() if name not in extra})
    config = json.loads((folder / "engine" / "config.json").read_text())
    for field, value in lesson["settings"].items():
        assert config[field] == value, field


SCRIPT = re.compile(r'(?s)# %% tags=\["script"\]\n# %%torchrun[^\n]*\n(.*?)\n# %% ')
MODEL, BATCHES = "model = nn.Sequential(*layers).to(device)  # yours", "range(4)]  # yours"


def tomorrow(
    path: Path, monkeypatch: pytest.MonkeyPatch, model: str, batches: str = BATCHES
) -> dict[str, Any]:
    """Run the script with another model and other batches in the two marked places; the names that it leaves."""
    (source,) = SCRIPT.findall(LESSON.read_text(encoding="utf-8"))
    assert source.count(MODEL) == source.count(BATCHES) == 1
    monkeypatch.setenv("CHECKPOINT", str(path / "to_fp8.safetensors"))
    names: dict[str, Any] = {}
    exec(source.replace(MODEL, model).replace(BATCHES, batches), names)
    return names


def test_tomorrows_script_takes_layers_without_a_bias_in_16_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    model = "model = nn.Sequential(nn.Linear(64, 256, bias=False), *layers[1:]).to(device, torch.bfloat16)"
    names = tomorrow(tmp_path, monkeypatch, model, "range(4)]\nbatches = [b.bfloat16() for b in batches]")
    assert 0.02 < names["off"] < 0.08
    assert {name.rpartition(".")[2] for name in names["read"] if name.startswith("0.")} == set(
        names["PARTS"]
    ) - {"bias"}
    assert names["model"](names["batches"][0]).dtype == torch.bfloat16
    assert f"for {2 * (2 * 64 * 256 + 64):,}" in capsys.readouterr().out


def test_tomorrows_script_leaves_zeros_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = f"{MODEL}\nlayers[0].weight.data.zero_()"
    assert 0 < tomorrow(tmp_path, monkeypatch, model)["off"] < 0.08


def test_tomorrows_script_names_a_layer_that_no_batch_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = f"{MODEL}\nmodel[1].spare = nn.Linear(8, 8)"
    with pytest.raises(ValueError, match=r"no input of 1\.spare in 4 batches: take others"):
        tomorrow(tmp_path, monkeypatch, model)
