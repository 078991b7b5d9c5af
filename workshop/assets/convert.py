"""The program that `language_model.convert` runs: from a GGUF file to a plain Llama in bf16.

    python -m workshop.assets.convert FOLDER_WITH_THE_GGUF NEW_FOLDER

A process of its own: it needs torch, transformers and a gigabyte of memory for half a minute, and the one who
asks (a command line, a notebook, a rank) should keep none of that.

A model read from GGUF carries a quantizer that refuses to be saved, so its weights are put into a Llama of
the same shape that never knew of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def write_plain_llama(source: Path, into: Path) -> None:
    """De-quantize the GGUF file and save model (bf16) and tokenizer without a trace of it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    quantized = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    shape = quantized.config.to_dict()
    for made_by_reading in ("quantization_config", "_name_or_path"):
        shape.pop(made_by_reading, None)
    plain = LlamaForCausalLM(LlamaConfig(**shape)).bfloat16()
    plain.load_state_dict(quantized.state_dict())
    plain.tie_weights()
    plain.save_pretrained(into)
    tokenizer.save_pretrained(into)


if __name__ == "__main__":
    if not (Path(sys.argv[1]) / GGUF).is_file():
        sys.exit(f"there is no {GGUF} in {sys.argv[1]}")
    write_plain_llama(Path(sys.argv[1]), Path(sys.argv[2]))
