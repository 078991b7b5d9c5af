"""A vision transformer as image repositories write it: truncated normal weights, a drop rate for each block out
of `linspace`, a loader with shuffling and workers, accuracy over all ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class DropPath(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        if self.rate == 0.0 or not self.training:
            return x
        keep = 1 - self.rate
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask.div_(keep) if keep > 0.0 else x


class Block(nn.Module):
    def __init__(self, width, heads, rate):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop_path = DropPath(rate) if rate > 0.0 else nn.Identity()

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.drop_path(self.attention(y, y, y, need_weights=False)[0])
        return x + self.drop_path(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    def __init__(self, width=64, depth=3, heads=4, patch=4, classes=10, drop_path=0.2):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (32 // patch) ** 2 + 1, width))
        rates = [rate.item() for rate in torch.linspace(0, drop_path, depth)]
        self.blocks = nn.Sequential(*[Block(width, heads, rate) for rate in rates])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02, a=-0.02, b=0.02)
            nn.init.zeros_(module.bias)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(VisionTransformer())
    data = TensorDataset(torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,)))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=1, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    for epoch in range(1):
        sampler.set_epoch(epoch)
        right = torch.zeros(1)
        for images, labels in loader:
            logits = model(images)
            loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
            if not torch.isfinite(loss):
                raise SystemExit("the loss is not finite")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (logits.argmax(dim=1) == labels).sum().item()
        scheduler.step()
        dist.all_reduce(right)
        print(f"epoch {epoch}: {right.item() / len(data):.2%}")
    dist.destroy_process_group()


main()
