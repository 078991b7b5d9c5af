"""Exercise: complete a configuration, for any number of nodes.

The check reads the file back, as `workshop configs read` does, and asks for the run that was wanted.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Wrong, call, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Complete `fsdp_file(num_nodes, gpus_per_node, layer)`: the content of an Accelerate file for FSDP2 that shards
weights, gradients and optimizer state over all GPUs, with one unit for each module of class `layer`."""

STUB = '''\
def fsdp_file(num_nodes: int, gpus_per_node: int, layer: str) -> dict:
    """An Accelerate configuration: FSDP2, everything sharded over all GPUs, a unit for each `layer`."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": num_nodes,
        "num_processes": ...,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": ...,
            "fsdp_reshard_after_forward": ...,
            "fsdp_auto_wrap_policy": ...,
            "fsdp_transformer_layer_cls_to_wrap": ...,
        },
    }
'''

SOLUTION = '''\
def fsdp_file(num_nodes: int, gpus_per_node: int, layer: str) -> dict:
    """An Accelerate configuration: FSDP2, everything sharded over all GPUs, a unit for each `layer`."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": num_nodes,
        "num_processes": num_nodes * gpus_per_node,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": layer,
        },
    }
'''

PER_NODE = SOLUTION.replace("num_nodes * gpus_per_node", "gpus_per_node")
FSDP1 = SOLUTION.replace('"fsdp_version": 2', '"fsdp_version": 1')
KEEPS = SOLUTION.replace('"fsdp_reshard_after_forward": True', '"fsdp_reshard_after_forward": False')
NO_WRAP = SOLUTION.replace("TRANSFORMER_BASED_WRAP", "NO_WRAP")
LLAMA_ONLY = SOLUTION.replace('_to_wrap": layer', '_to_wrap": "LlamaDecoderLayer"')

# nodes, GPUs of a node, the model and its layers' class
CASES = ((1, 8, "llama-3-8b", "LlamaDecoderLayer"), (4, 8, "qwen3-8b", "Qwen3DecoderLayer"))


def _check(names: dict[str, Any]) -> str:
    """Each case read back: mistakes first, then the run."""
    from workshop.configs import Overrides, read_config

    for num_nodes, gpus_per_node, model, layer in CASES:
        made = Call((num_nodes, gpus_per_node, layer))
        content = call(names["fsdp_file"], "fsdp_file", made)
        written = made.written("fsdp_file")
        if not isinstance(content, dict):
            raise Wrong(f"`{written}` gave {shown(content)}; wanted a dictionary.")
        given = Overrides(model=model, device="H100", micro_batch=1, seq_len=4096)
        try:
            reading = read_config(content, given)
        except ValueError as error:
            raise Wrong(f"`{written}` cannot be read: {error}") from None
        if reading.mistakes:
            first = reading.mistakes[0]
            raise Wrong(f"`{written}`: {first.key}: {first.what}. Cure: {first.cure}.")
        _compare(written, reading.run, num_nodes * gpus_per_node)
    return "Read back, both files give the run that was wanted, on 8 and on 32 GPUs."


def _compare(written: str, run: Any, ranks: int) -> None:
    if run is None or run.layout.world_size != ranks:
        found = "no number of ranks" if run is None else f"{run.layout.world_size} ranks"
        raise Wrong(f"`{written}` is for {found}; wanted {ranks}: num_processes counts all nodes.")
    if run.layout.zero != 3:
        raise Wrong(
            f"`{written}` keeps weights whole between forward and backward (ZeRO stage {run.layout.zero}); "
            "wanted everything sharded (stage 3): reshard after forward."
        )


FSDP_FILE = Exercise(
    name="fsdp_file",
    day=2,
    question=QUESTION,
    stub=STUB,
    hints=(
        "`num_processes` is the number of ranks on all nodes together.",
        "FSDP2 is version 2, and everything is sharded when weights are resharded after forward.",
        'The policy is "TRANSFORMER_BASED_WRAP"; the class to wrap is `layer`.',
    ),
    solution=SOLUTION,
    defines=("fsdp_file",),
    check=_check,
    shows="Five values are the whole of FSDP in a file; the rest are names.",
    wrong_answers=(
        WrongAnswer("processes of one node", PER_NODE, "stay idle"),
        WrongAnswer("FSDP1", FSDP1, "FSDP1 does not read True here"),
        WrongAnswer("keeps the weights", KEEPS, "wanted everything sharded (stage 3)"),
        WrongAnswer("wraps nothing", NO_WRAP, "nothing is wrapped"),
        WrongAnswer("only Llama", LLAMA_ONLY, "is not the class of qwen3-8b's layers"),
    ),
)
