"""A ViT trained three steps in every way beside one process: losses, and what it answers afterwards."""

import gc

import torch
import torch.distributed as dist
import torch.nn.functional as F

from workshop import report
from workshop.facts.layout import Layout
from workshop.facts.vision import ViTSpec
from workshop.parallel.vision_stages import build_vision
from workshop.predict.vision_plan import Way
from workshop.train.vision import VisionTrainer

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
SPEC = ViTSpec("vit", 2, 32, 4, patch_size=7, image_size=28, num_classes=10, channels=1)
torch.manual_seed(5)
images, labels = torch.randn(3, 8, 1, 28, 28), torch.randint(10, (3, 8))
CUTS = (range(2), range(2, 4))
ways = [Way(Layout(replicate=2), m) for m in (1, 2)] + [Way(Layout(shard=2, zero=z), 2) for z in (1, 2, 3)]
ways += [
    Way(Layout(tensor=2)),
    Way(Layout(pipeline=2), 4, CUTS),
    Way(Layout(pipeline=2, schedule="gpipe"), 2, CUTS),
]


def alone():
    torch.manual_seed(0)
    model = build_vision(SPEC)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    losses = []
    for x, y in zip(images, labels, strict=True):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses), model(images[0]).detach()


wanted, answers = alone()
for way in ways:
    torch.manual_seed(rank)  # rank 0 draws the weights of one process, the other ranks others
    trainer = VisionTrainer(SPEC, way)
    losses = []
    for x, y in zip(images, labels, strict=True):
        loss = trainer.step(x, y)
        told = torch.stack([torch.zeros(()) if loss is None else loss, torch.tensor(float(loss is not None))])
        dist.all_reduce(told)  # the mean over the ranks that have a loss
        losses.append(told[0] / told[1])
    apart = (torch.stack(losses) - wanted).abs().max().item()
    report(
        **{str(way): {"losses": apart, "answers": (trainer.logits(images[0]) - answers).abs().max().item()}}
    )
    del trainer
    gc.collect()
try:
    VisionTrainer(SPEC, Way(Layout(replicate=4)))
except ValueError as error:
    report(said=str(error))
dist.destroy_process_group()
