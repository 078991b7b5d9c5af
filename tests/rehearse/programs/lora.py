"""LoRA by peft on transformers' Llama, in bf16 with checkpointing, under DDP."""

import torch
import torch.distributed as dist
import transformers
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
config = transformers.LlamaConfig(
    vocab_size=1024,
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=352,
    use_cache=False,
)
model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
model.gradient_checkpointing_enable({"use_reentrant": False})
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
model = DistributedDataParallel(model.train())
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for _ in range(4):
    tokens = torch.randint(0, 1024, (2, 128))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")
dist.destroy_process_group()
