"""Files of other people: what they say, what is missing, what nobody understands."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from workshop.configs import Overrides, read_config
from workshop.facts.layout import Layout
from workshop.predict.memory import predict_memory

# As `accelerate config` writes it (accelerate 1.15), answers for FSDP on 8 GPUs.
ASKED = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_version: 2
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
LLAMA = Overrides(model="llama-3-8b", device="H100", micro_batch=1, seq_len=8192)


def test_a_file_as_accelerate_asks_for_it():
    found = read_config(ASKED, LLAMA)
    assert found.kind == "accelerate"
    assert found.run.layout == Layout(shard=8, zero=3, recompute="full")
    assert (found.run.cluster.name, found.run.accumulation) == ("8xH100", 1)
    assert found.mistakes == ()
    assert found.unread == ()
    assert predict_memory(found.run).fits


def test_what_is_missing_is_named_with_examples():
    found = read_config(ASKED)
    assert found.run is None
    assert found.lacking == ('model ("llama-3-8b")', 'device ("H100")', "seq_len (8192)", "micro_batch (1)")
    assert "to say what it needs, give also model" in str(found)
    assert str(found).startswith("accelerate: fsdp, ZeRO stage 3, 8 ranks, mixed precision bf16\n")


def test_settings_that_nothing_takes_into_account_are_named():
    text = ASKED.replace("debug: false", "gpu_ids: 0,1")
    assert read_config(text).unread == ("gpu_ids: '0,1'",)


def test_fsdp1_is_read_as_what_it_does():
    text = ASKED.replace("fsdp_version: 2", "fsdp_version: 1\n  fsdp_sharding_strategy: SHARD_GRAD_OP")
    found = read_config(text, LLAMA)
    assert found.run.layout.zero == 2
    assert "FSDP1, SHARD_GRAD_OP: memory is predicted as FSDP2's" in found.parsed.notes
    assert read_config(text.replace("SHARD_GRAD_OP", "3")).parsed.engine == "ddp"  # NO_SHARD, by its number


def test_a_json_with_two_of_three_numbers():
    text = '{"train_batch_size": 256, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1}}'
    found = read_config(text, Overrides(model="llama-3-8b", device="H100", seq_len=4096, num_processes=32))
    assert (found.run.micro_batch, found.run.accumulation, found.run.global_batch) == (2, 4, 256)
    assert read_config(text).lacking[-1] == "num_processes (64)"  # the micro-batch follows from it


def test_auto_is_not_said():
    text = (
        '{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", '
        '"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}'
    )
    assert read_config(text).lacking[-3:] == (
        "num_processes (64)",
        "micro_batch (1)",
        'precision ("deepspeed-bf16")',
    )
    given = Overrides(
        "llama-3-8b",
        "H100",
        micro_batch=2,
        seq_len=4096,
        accumulation=8,
        precision="deepspeed-bf16",
        num_processes=8,
    )
    run = read_config(text, given).run
    assert (run.global_batch, run.layout.precision) == (128, "deepspeed-bf16")


@pytest.mark.parametrize(
    ("text", "given", "told"),
    [
        ("a: [", Overrides(), "the text is neither YAML nor JSON"),
        ("{'a': 1}", Overrides(), "the text is neither YAML nor JSON"),
        ("- a\n- b", Overrides(), "the text holds no settings"),
        (
            "learning_rate: 3",
            Overrides(),
            "keys of neither an Accelerate YAML nor a DeepSpeed JSON: learning_rate",
        ),
        ("distributed_type: FDSP", Overrides(), "unknown distributed_type 'FDSP'; did you mean 'FSDP'"),
        (ASKED.replace("bf16", "bf17"), Overrides(), "unknown mixed_precision 'bf17'; did you mean 'bf16'"),
        (ASKED, Overrides(model="llama-3-8c"), "unknown model 'llama-3-8c'; did you mean 'llama-3-8b'"),
        (
            ASKED,
            Overrides("llama-3-8b", "H100", 1, 8192, precision="fp32"),
            "precision = 'fp32', but the file says fsdp",
        ),
        (
            ASKED,
            Overrides("llama-3-8b", "H100", 1, 8192, recompute="none"),
            "the file says recompute = 'full', and you",
        ),
        ('{"zero_optimization": {"stage": 4}}', Overrides(), "unknown zero_optimization.stage 4"),
        (
            '{"fp16": {"enabled": true}, "bf16": {"enabled": true}, "train_batch_size": 8}',
            Overrides(),
            "fp16 and bf16 are both on",
        ),
        (
            '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}',
            Overrides(num_processes=4),
            "train_batch_size 64 is 2 a GPU times 4 steps on 8 ranks, not on 4: there DeepSpeed stops",
        ),
    ],
)
def test_what_cannot_be_read_is_told(text, given, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        read_config(text, given)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_config(tmp_path / "nowhere.yaml")


def test_neither_torch_nor_accelerate_is_needed():
    code = (
        "import sys; from workshop.configs import read_config, accelerate_yaml, deepspeed_json\n"
        f"read_config({ASKED!r})\n"
        "assert not {'torch', 'accelerate', 'deepspeed', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 4096 --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000 --bf16 "
)
TITAN = '[job]\n[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 4096\n[parallelism]\n'
NEMO = "trainer: {{precision: bf16-mixed{}}}\nmodel: {{micro_batch_size: 1, megatron_amp_O2: true{}}}\n"


def test_nothing_wrong_is_said_only_where_it_was_looked_for():
    for text in (MEGATRON, TITAN + "tensor_paralel_degree = 2\n"):
        told = str(read_config(text))
        assert "nothing wrong was found" not in told
        assert "mistakes are not looked for" in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MEGATRON + "--fp16", "--bf16 and --fp16 are both there"),
        (MEGATRON + "--expert-model-parallel-size 8", "without --num-experts"),
        (MEGATRON + "--tensor-model-parallel-size 0", "--tensor-model-parallel-size must be a whole number of at "),
        (MEGATRON.replace("--num-layers 32", "--num-layers 0"), "--num-layers must be a whole number of at least 1"),
        (MEGATRON.replace("--seq-length 4096", f"--seq-length {'9' * 26}"), "--seq-length must be"),
        (TITAN + "tensor_parallel_degree = 0\n", "tensor_parallel_degree must be a whole number of at least 1"),
        (TITAN + "data_parallel_shard_degree = 0\n", "data_parallel_shard_degree must be .* or -1"),
        (TITAN + "data_parallel_replicate_degree = 0\n", "data_parallel_replicate_degree must be"),
        (TITAN + "context_parallel_degree = nan\n", "context_parallel_degree must be a whole number, not nan"),
        (TITAN + "pipeline_parallel_degree = inf\n", "pipeline_parallel_degree must be a whole number, not inf"),
        (NEMO.format("", ", tensor_model_parallel_size: 0"), "tensor_model_parallel_size must be"),
        (NEMO.format(", devices: 0", ""), "trainer.devices must be a whole number of at least 1"),
    ],
)  # fmt: skip
def test_a_size_is_one(text, said):
    with pytest.raises(ValueError, match=said):
        read_config(text, Overrides(device="H100"))


@pytest.mark.parametrize(
    ("devices", "ranks"), [("", 0), (", devices: -1", 0), (", devices: 8, num_nodes: 2", 16)]
)
def test_nemo_counts_the_ranks_that_it_is_told(devices, ranks):
    assert read_config(NEMO.format(devices, "")).parsed.ranks == ranks


@pytest.mark.parametrize("wrong", [0, 1.5, True, "eight"])
def test_a_wrong_batch_is_not_said_to_be_missing(wrong):
    key = "train_micro_batch_size_per_gpu"
    found = read_config({key: wrong, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}})
    (told,) = [mistake for mistake in found.mistakes if mistake.key == key]
    assert repr(wrong) in told.what


def test_a_number_without_an_end_is_no_count_of_elements():
    section = {"stage": 3, "stage3_max_live_parameters": float("inf")}
    found = read_config({"train_batch_size": 8, "zero_optimization": section, "bf16": {"enabled": True}})
    assert "zero_optimization.stage3_max_live_parameters" in [mistake.key for mistake in found.certain]


def test_a_key_that_stands_twice_in_a_yaml_is_told():
    text = (
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nnum_processes: 2\n"
        "fsdp_config:\n  fsdp_version: 1\n  fsdp_version: 2\n"
    )
    told = str(read_config(text))
    assert "silent: num_processes: said twice; YAML keeps the last, 2" in told
    assert "silent: fsdp_config.fsdp_version: said twice; YAML keeps the last, 2" in told
    once = "base: &base {num_machines: 1}\n<<: *base\n<<: *base\ndistributed_type: NO\n"
    assert "twice" not in str(read_config(once))


def test_ranks_that_contradict_the_file_are_refused():
    text = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n"
    for source in (text, MEGATRON):
        with pytest.raises(ValueError, match="the file says num_processes = 8, and you 4"):
            read_config(source, Overrides(device="H100", num_processes=4))


@pytest.mark.parametrize("name", ["optimizer", "precision", "recompute"])
def test_a_name_that_does_not_exist_is_told_before_anything_is_lacking(name):
    with pytest.raises(ValueError, match=f"unknown {name} 'foo'"):
        Overrides(**{name: "foo"})


def test_a_message_is_not_as_long_as_what_it_is_about():
    nest = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(6):
        nest += f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 10)}]\n"
    with pytest.raises(ValueError, match="fsdp_config holds") as told:
        read_config(f"{nest}distributed_type: FSDP\nfsdp_config: *a6\n")
    assert len(str(told.value)) < 1000


def test_no_experts_are_said_as_zero_too():
    """As Megatron-LM's own arguments have it: `num_experts == 0` is a dense model."""
    read = read_config(MEGATRON + "--num-experts 0", Overrides(device="H100"))
    assert not read.run.model.is_moe
