"""The configuration files of the exercise `wrong_settings`: each has one thing wrong with it, but one.

People in a hurry write such files. A test holds every answer against `workshop.configs.find_mistakes`, and
that against what Accelerate and DeepSpeed really do.
"""

from __future__ import annotations

NOTHING = "nothing"

FILES = {
    "a": """\
# a machine without GPUs: one model, sharded over two processes
distributed_type: FSDP
use_cpu: true
num_machines: 1
num_processes: 2
mixed_precision: 'no'
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Layer
""",
    "b": """\
# Llama 3 8B, one node of 8 GPUs, everything sharded
distributed_type: FSDP
num_machines: 1
num_processes: 8
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
""",
    "c": """\
# the same on 4 nodes of 8 GPUs
distributed_type: FSDP
num_machines: 4
num_processes: 8
main_process_ip: node-0
rdzv_backend: c10d
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
""",
    "d": """\
# one week on 8 GPUs, then accelerator.save_model(model, "final")
distributed_type: DEEPSPEED
num_machines: 1
num_processes: 8
mixed_precision: bf16
deepspeed_config:
  zero_stage: 3
  zero3_init_flag: true
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
""",
    "e": """\
# ZeRO-2 with the optimizer on the CPU
distributed_type: DEEPSPEED
num_machines: 1
num_processes: 8
mixed_precision: bf16
deepspeed_config:
  zero_stage: 2
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: cpu
""",
    "f": """\
# like ZeRO-2: keep the weights between forward and backward
distributed_type: FSDP
num_machines: 1
num_processes: 8
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
""",
}

ANSWERS = {
    "a": ("use_cpu", "distributed_type"),
    "b": ("fsdp_auto_wrap_policy",),
    "c": ("num_processes", "num_machines"),
    "d": ("zero3_save_16bit_model",),
    "e": (NOTHING,),
    "f": ("fsdp_sharding_strategy", "fsdp_reshard_after_forward"),
}
"""Right answers by file; the first is the key that `find_mistakes` names."""
