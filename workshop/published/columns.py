"""The canonical columns of a measured run, each with its unit and meaning.

A centre writes its own runs in these columns, one row a run, as CSV; an empty cell means that it is not
known. Without `model`, `seq_len`, `micro_batch_sequences`, `device`, `num_devices`, `precision` and `stack`
nothing can be predicted; what else is empty is assumed, and `workshop validate --runs FILE --assumptions`
lists it. A column may be left out where all its cells would be empty.
"""

from __future__ import annotations

COLUMNS: dict[str, str] = {
    "name": "what you call the run",
    "model": "a name of the catalogue (llama-3.1-8b), or any name with the shape columns filled; options: "
    "further fields of the shape (positions=learned, norm=layernorm, dropout=yes ...)",
    "num_layers": "transformer layers",
    "hidden_size": "elements of a token between layers",
    "num_heads": "query heads",
    "kv_heads": "key-value heads (empty: as many as heads)",
    "ffn_hidden_size": "inner elements of the MLP (empty: 4 x hidden_size)",
    "vocab_size": "rows of the embedding, before any padding",
    "gated_mlp": "yes or no: three matrices (SwiGLU) or two",
    "tied_embeddings": "yes or no: the output head is the embedding",
    "num_experts": "experts of a mixture layer; empty for a dense model",
    "experts_per_token": "experts that a token visits",
    "moe_ffn_hidden_size": "inner elements of one expert",
    "shared_experts": "experts of that size that every token visits",
    "seq_len": "tokens of a sequence; options: target= tokens of a decoder beside an encoder, document= "
    "tokens of the documents that a sequence is packed with",
    "global_batch_sequences": "sequences of an optimizer step, of all ranks",
    "micro_batch_sequences": "sequences that pass a rank at once",
    "device": "a name of the catalogue (H100, A100-80GB)",
    "num_devices": "devices of the run, all degrees multiplied",
    "devices_per_node": "devices that share a node (empty: as the vendor builds it)",
    "network_gbps_per_device": "Gbit/s between nodes, one way, for each device (empty: as the vendor builds "
    "it)",
    "tensor": "tensor-parallel degree",
    "sequence_parallel": "yes or no: norms and dropout cut along the sequence by the tensor ranks",
    "pipeline": "pipeline stages",
    "virtual_stages": "chunks of layers on each stage",
    "schedule": "1f1b, interleaved ...; options: group= micro-batches of a chunk's turn, first= and last= "
    "layers of the first and last stage, ends=yes where embedding and loss count as layers",
    "context": "context-parallel degree; option: method= ring (if left out), ulysses or all_gather",
    "expert": "expert-parallel degree; option: tensor= ranks that cut each expert",
    "data": "data-parallel ranks; option: shard= those that share state, if others hold copies of it",
    "zero_stage": "0, 1 optimizer, 2 gradients too, 3 parameters too (FSDP)",
    "precision": "a recipe of workshop.facts.precision (fsdp-bf16, megatron-bf16, megatron-fp8 ...)",
    "recompute": "none, selective or full; options: modules=, every=, layers=",
    "attention": "flash-1, flash-triton, flash-2, flash-3 (or cuDNN's) or unfused (empty: the stack's); "
    "option: kept= what backward keeps (flash, flash-copy, unfused)",
    "optimizer": "adamw, adamw-8bit, sgd ...",
    "adapter": "lora, adapter, adapter-v2; options: targets=, base_bits=, num_trainable=, weight_bytes=",
    "adapter_rank": "rank of the adapter",
    "offload": "none, optimizer, params or activations: what stays on the host",
    "compile": "yes or no: torch.compile (empty: the stack's)",
    "stack": "the training stack (torchtitan, megatron-core, nemo ...); options: time.FIELD= of "
    "rates.Software, memory.FIELD= of facts.implementation.Implementation",
    "seconds_per_step": "seconds of an optimizer step",
    "tokens_per_second_per_device": "tokens a second, of one device",
    "model_tflops_per_device": "TFLOP/s of one device, recomputation not counted",
    "hardware_tflops_per_device": "TFLOP/s of one device, recomputation counted",
    "flops_counted": "how the two are counted: model (each product) or megatron (Megatron-LM's formula)",
    "mfu": "model FLOPs over the 16-bit peak, 0 to 1",
    "memory_allocated_GB": "10^9 bytes: torch.cuda.max_memory_allocated, the rank that needs most",
    "memory_reserved_GB": "10^9 bytes: torch.cuda.max_memory_reserved, the rank that needs most",
    "memory_device_GB": "10^9 bytes: what nvidia-smi shows, the rank that needs most",
    "memory_activations_GB": "10^9 bytes saved for backward by the layers; a figure, not a measurement",
    "memory_stage": "the pipeline stage whose memory it is; -1 the last (empty: that which needs most)",
    "out_of_memory": "yes where the run failed for want of memory",
    "source": "where the figures were read",
    "note": "what else a reader should know",
    "table": "the published table",
    "line": "its line there",
    "group": "rows that are fitted on, or held back, together",
}
ASSUMED = "assumed_"
"""Before a column's name: what the source leaves open about it, and what was assumed."""

REQUIRED = ("model", "seq_len", "micro_batch_sequences", "device", "num_devices", "precision", "stack")
