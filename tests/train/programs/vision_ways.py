"""A ViT trained three steps in every way beside one process: losses, and what it answers afterwards."""

import gc

import torch
import torch.distributed as dist
import torch.nn.functional as F

from workshop import report
from workshop.facts.layout import Layout
from workshop.facts.vision import CoAtNetSpec, ViTSpec
from workshop.parallel.batch_norm import SharedBatchNorm
from workshop.parallel.vision_stages import build_vision
from workshop.predict.vision.ways import Way
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
# Stages have other images at other times: norms that waited for each other would wait for ever.
coatnet = CoAtNetSpec(
    "coatnet", (1, 1, 1, 1, 1), (8, 8, 8, 32, 32), image_size=32, num_classes=10, channels=1
)
trainer = VisionTrainer(coatnet, Way(Layout(pipeline=2), 2, (range(3), range(3, 6))), share_norms=True)
trainer.step(torch.randn(4, 1, 32, 32), torch.arange(4))
report(shared=sum(isinstance(module, SharedBatchNorm) for module in trainer.model.modules()))
try:
    VisionTrainer(SPEC, Way(Layout(replicate=4)))
except ValueError as error:
    report(said=str(error))
dist.destroy_process_group()
