"""A mixture of experts of transformers in fp32, its experts as it runs them when nobody says how."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import MixtralConfig, MixtralForCausalLM

dist.init_process_group("gloo")
torch.manual_seed(0)
config = MixtralConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=4,
    num_experts_per_tok=2,
    output_router_logits=True,
    use_cache=False,
)
model = DistributedDataParallel(MixtralForCausalLM(config))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(dist.get_rank())
for step in range(4):
    ids = torch.randint(0, 256, (2, 64))
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {output.loss:.3f}, auxiliary {output.aux_loss:.3f}")
dist.destroy_process_group()
