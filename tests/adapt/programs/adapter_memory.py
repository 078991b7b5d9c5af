"""Peak bytes of training steps with LoRA and QLoRA on a small Llama, as measured."""

import gc

import torch

from workshop import report
from workshop.adapt import lora, methods, qlora
from workshop.measure import measure
from workshop.process.quiet import quietly

with quietly():
    from transformers import LlamaConfig, LlamaForCausalLM

SHAPE = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 8, "vocab_size": 4096}
HEADS = {"num_attention_heads": 9, "num_key_value_heads": 3}


def peak(way):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, **HEADS, tie_word_embeddings=True, use_cache=False))
    if way == "qlora":
        qlora.quantize_base(model)
    model = methods.adapt(model, "lora") if way == "peft" else lora.add_lora(model)
    optimizer = torch.optim.AdamW(methods.trained(model).values(), lr=1e-3, fused=True)
    tokens = torch.randint(4096, (2, 64))
    gc.collect()
    with measure(model, optimizer) as measured:
        for _ in range(2):
            logits = model(input_ids=tokens).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            del logits
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return {"peak": measured.memory.peak_bytes, "trained": lora.num_trainable(model)}


for way in ("lora", "peft", "qlora"):
    report(**{way: peak(way)})
    gc.collect()
