"""A run in the words of other programs, and their files read back into a run.

Accelerate, DeepSpeed and PyTorch's FSDP each want to be told the same few facts in a language of their own.
Here one pure function translates each of them from a `Run`::

    accelerate_yaml(run)        the YAML of `accelerate launch`: DDP, FSDP2 or DeepSpeed     accelerate_yaml
    deepspeed_json(run)         the JSON of DeepSpeed, every stage, offload, 1-bit           deepspeed_json
    fsdp_plugin_arguments(run)  what FullyShardedDataParallelPlugin takes, and Trainer       fsdp_policy
    vllm_command(serving, checkpoint), sglang_command    the lines that start a server        serve_command

and the other way round::

    read_config(text, overrides)   somebody's file as a `Run`: Accelerate, DeepSpeed,        reading, formats
                                   torchtitan, Megatron-LM, NeMo
    find_mistakes(text)            what goes wrong with the first two, and the cure          mistakes

Nothing here imports torch, accelerate or deepspeed: a configuration can be written and read anywhere.
"""

from workshop.configs.accelerate_yaml import accelerate_config, accelerate_yaml
from workshop.configs.deepspeed_json import deepspeed_config, deepspeed_json
from workshop.configs.engines import ENGINES, engine_of
from workshop.configs.fsdp_policy import fsdp_plugin_arguments, trainer_arguments
from workshop.configs.launch_environment import accelerate_environment
from workshop.configs.onebit import OneBit
from workshop.configs.overrides import Overrides
from workshop.configs.reading import Reading, find_mistakes, read_config
from workshop.configs.serve_command import sglang_command, vllm_command

Given = Overrides
"""The name of `Overrides` in earlier versions."""

__all__ = [
    "ENGINES",
    "Given",
    "OneBit",
    "Overrides",
    "Reading",
    "accelerate_config",
    "accelerate_environment",
    "accelerate_yaml",
    "deepspeed_config",
    "deepspeed_json",
    "engine_of",
    "find_mistakes",
    "fsdp_plugin_arguments",
    "read_config",
    "sglang_command",
    "trainer_arguments",
    "vllm_command",
]
