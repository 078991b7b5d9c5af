"""GPT-2's tied embedding, an optimizer made before the model is cast to bf16, and a copy kept as an average."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCAB, WIDTH, CONTEXT = 2048, 128, 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens), mask=self.mask, is_causal=True))


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model = model.to(torch.bfloat16)
average = copy.deepcopy(model).requires_grad_(False)
model = DistributedDataParallel(model)
sizes = {name: tensor.shape for name, tensor in average.state_dict().items()}
assert average.head.weight is average.embed.weight
assert len(sizes) == len(model.module.state_dict())
for _ in range(4):
    tokens = torch.randint(0, VOCAB, (4, CONTEXT + 1))
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(weight, 0.1)
    print(f"loss {loss:.3f}, perplexity {loss.exp().detach().numpy():8.1f}")
dist.destroy_process_group()
