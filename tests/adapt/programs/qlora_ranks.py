"""QLoRA on two ranks, seeded differently, beside one process: DDP by hand and by bitsandbytes, FSDP."""

import gc

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from workshop import report
from workshop.adapt import methods, qlora
from workshop.adapt.lora import add_lora
from workshop.process.quiet import quietly

with quietly():
    from peft import get_peft_model_state_dict
    from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
TOKENS = torch.randint(64, (4, 12), generator=torch.Generator().manual_seed(1))


def build(seed, way, library=False):
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 64}
    config = LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, use_cache=False)
    base = qlora.quantize_base(
        LlamaForCausalLM(config), way, storage=torch.float32 if way != "hand" else torch.uint8
    )
    return methods.adapt(base, "lora", rank=4) if library else add_lora(base, rank=4)


def train(model, tokens, steps=5):
    optimizer = torch.optim.AdamW(methods.trained(model).values(), lr=1e-2, foreach=False)
    losses = []
    for _ in range(steps):
        with torch.no_grad():  # an evaluation before each step must do no harm
            model.eval()(input_ids=tokens)
        loss = model.train()(input_ids=tokens, labels=tokens).loss
        loss.backward()
        qlora.check_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().float())
    return torch.stack(losses)


def shared(losses):
    dist.all_reduce(losses)
    return (losses / world_size).tolist()


def shard(model, layers, recompute=False):
    for i, layer in enumerate(layers):
        fully_shard(layer)
        if recompute:
            layers[i] = checkpoint_wrapper(layer)
    fully_shard(model)


mine, found = TOKENS.chunk(world_size)[rank], {}
for way in qlora.WAYS:
    model = build(rank, way)
    qlora.take_from_rank_0(model)
    model = DistributedDataParallel(model)
    found[f"ddp {way}"] = shared(train(model, mine))
    found[f"alone {way}"] = train(build(0, way), TOKENS).tolist()

model = build(rank, "bitsandbytes")
qlora.take_from_rank_0(model)
shard(model, model.model.layers)
weight = model.model.layers[0].self_attn.q_proj.base.weight
sharded = (isinstance(weight, DTensor), weight.to_local().numel(), weight.numel())
found["fsdp bitsandbytes"] = shared(train(model, mine))

model = build(rank, "bitsandbytes", library=True)
qlora.take_from_rank_0(model)
shard(model, model.base_model.model.model.layers, recompute=True)
found["fsdp peft, recompute"] = shared(train(model, mine))
pefts_own = len(get_peft_model_state_dict(model))
ours = {name: list(tensor.shape) for name, tensor in methods.adapter_state(model).items()}
report(losses=found, sharded=sharded, pefts_own=pefts_own, ours=ours)
gc.collect()
dist.destroy_process_group()
