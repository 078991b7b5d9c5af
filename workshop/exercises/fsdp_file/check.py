"""Exercise: complete a configuration, for any number of nodes.

The check reads the file back, as `workshop configs read` does, and asks for the run that was wanted.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

# nodes, GPUs of a node, the model and its layers' class
CASES = ((1, 8, "llama-3-8b", "LlamaDecoderLayer"), (4, 8, "qwen3-8b", "Qwen3DecoderLayer"))


def check(names: dict[str, Any]) -> str:
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
        answer = "no number of ranks" if run is None else f"{run.layout.world_size} ranks"
        raise Wrong(f"`{written}` is for {answer}; wanted {ranks}: num_processes counts all nodes.")
    if run.layout.zero != 2:
        raise Wrong(
            f"`{written}` gathers weights again for backward (ZeRO stage {run.layout.zero}); "
            "wanted them kept from forward to backward (stage 2): do not reshard after forward."
        )
