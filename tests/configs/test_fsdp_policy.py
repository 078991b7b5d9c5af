"""Arguments of the plugin and of Trainer, and the classes that are wrapped."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest

from tests.configs.cases import ACCELERATE, run
from workshop.configs import fsdp_plugin_arguments, trainer_arguments
from workshop.configs.fsdp_policy import FAMILIES, OWN_LAYER, layer_class
from workshop.facts.catalogue import models
from workshop.facts.layout import Layout

FSDP = {name: case[0] for name, case in ACCELERATE.items() if name.startswith("fsdp")}


def test_the_own_models_layer_is_called_so():
    pytest.importorskip("torch")
    from workshop.models.gpt import GPT, GPTConfig

    model = GPT(
        GPTConfig(vocab_size=8, hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=8)
    )
    assert type(model.model.layers[0]).__name__ == OWN_LAYER


def test_transformers_has_every_class():
    spec = importlib.util.find_spec("transformers")
    if spec is None:
        pytest.skip("transformers is not installed")
    folder = Path(spec.origin).parent / "models"
    sources = {path.parent.name: path.read_text("utf-8") for path in folder.glob("*/modeling_*.py")}
    everything = "\n".join(sources.values())
    missing = [name for name in set(FAMILIES.values()) - {OWN_LAYER} if f"\nclass {name}(" not in everything]
    assert missing == []


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama-3-8b", "LlamaDecoderLayer"),
        ("llama-4-scout", "Llama4TextDecoderLayer"),
        ("gpt-1m", "Layer"),
        ("gpt2-xl", "GPT2Block"),
        ("gpt-neox-20b", "GPTNeoXLayer"),
        ("qwen3-8b", "Qwen3DecoderLayer"),
        ("qwen3-30b-a3b", "Qwen3MoeDecoderLayer"),
        ("gemma-2-9b", "Gemma2DecoderLayer"),
        ("gemma-7b", "GemmaDecoderLayer"),
        ("megatron-7.5b", ""),
        ("llama-of-mine", ""),
    ],
)
def test_layers_of_known_models(model, name):
    assert layer_class(model) == name


def test_most_models_are_known():
    unknown = {name.split("-")[0] for name in models() if not layer_class(name)}
    # shapes from papers without a class of transformers' own, or with code of their authors
    assert unknown <= {"megatron", "mt", "gpt3", "internlm", "internlm2", "kimi", "nemotron", "grok"}


def test_an_unknown_class_is_asked_for():
    with pytest.raises(
        ValueError, match=r"the class of megatron-1\.7b's layers is not known.*give wrap_class"
    ):
        fsdp_plugin_arguments(run(Layout(shard=8, zero=3), "megatron-1.7b", seq_len=2048))
    found = fsdp_plugin_arguments(
        run(Layout(shard=8, zero=3), "megatron-1.7b", seq_len=2048), wrap_class="Block"
    )
    assert found["transformer_cls_names_to_wrap"] == ["Block"]


@pytest.mark.parametrize("name", FSDP)
def test_the_plugin_takes_its_arguments(name):
    accelerate = pytest.importorskip("accelerate")
    arguments = fsdp_plugin_arguments(FSDP[name])
    plugin = accelerate.FullyShardedDataParallelPlugin(**arguments)
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is (FSDP[name].layout.zero == 3)
    assert type(plugin.cpu_offload).__name__ == (
        "CPUOffloadPolicy" if FSDP[name].layout.offload == "params" else "OffloadPolicy"
    )
    assert plugin.activation_checkpointing is (FSDP[name].layout.recompute == "full")


def test_trainer_takes_its_arguments(tmp_path):
    transformers = pytest.importorskip("transformers")
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pass  # not needed
    except RuntimeError as error:  # a build for another torch: transformers cannot import its Trainer either
        pytest.skip(f"torchvision does not belong to this torch: {error}")
    wanted = run(Layout(shard=8, zero=2, recompute="full"))
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, **trainer_arguments(wanted) | {"bf16": False}
    )
    assert arguments.fsdp_plugin_args["fsdp_version"] == 2
    assert arguments.fsdp_plugin_args["reshard_after_forward"] is False
    assert arguments.fsdp_plugin_args["transformer_cls_names_to_wrap"] == "LlamaDecoderLayer"
    assert arguments.fsdp_plugin_args["activation_checkpointing"] is True
    assert arguments.gradient_accumulation_steps == 4


@pytest.mark.parametrize(
    ("layout", "more", "told"),
    [
        (Layout(replicate=2, shard=4, zero=3), {}, "no word for hybrid sharding"),
        (Layout(shard=8, zero=3), {"optimizer": "muon"}, "Trainer has no optimizer 'muon' by name"),
    ],
)
def test_what_trainer_cannot_say(layout, more, told):
    with pytest.raises(ValueError, match=told):
        trainer_arguments(run(layout, **more))
