"""A vision model trained the way a `Way` says: data parallel, ZeRO, tensor or pipeline, one step at a time.

`apply_layout` is for models of one forward call. A pipeline has none, so the vision models get a class of
their own, with one method for all of them::

    trainer = VisionTrainer(spec, way, learning_rate=1e-3)      on every rank
    loss = trainer.step(images, labels)                         the whole batch: a rank takes its own part

ZeRO is the one written by hand (`parallel.zero`), DDP and DTensor are torch's. Batch norm sees what a rank
has in a micro-batch, unless its statistics are shared.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from workshop.parallel.batch_norm import share_batch_norm
from workshop.parallel.materialise import begin_alike, local_device
from workshop.parallel.pipeline import open_wire, run_schedule
from workshop.parallel.vision_plans import cut_vision_by_plan
from workshop.parallel.vision_stages import Spec, boundary_shape, build_vision, cut_vision
from workshop.parallel.zero import zero
from workshop.predict.vision.ways import Way


class VisionTrainer:
    """The model of a spec on this rank, cut as a way says, with AdamW; all ranks begin with rank 0's weights.

    share_norms: batch norm over all data-parallel ranks. Under a pipeline or a tensor cut it changes nothing:
    there every rank that has the layer has all images of the micro-batch.

    Raises ValueError where the layout is for another number of ranks.
    """

    def __init__(
        self, spec: Spec, way: Way, learning_rate: float = 1e-3, *, share_norms: bool = False
    ) -> None:
        ranks = dist.get_world_size()
        if way.layout.world_size != ranks:
            raise ValueError(f"{way} is for {way.layout.world_size} ranks and there are {ranks}")
        self.spec, self.way, self.rank, self.ranks = spec, way, dist.get_rank(), ranks
        self.device = local_device()
        self.model: Any = build_vision(spec).to(self.device)
        begin_alike([*self.model.parameters(), *self.model.buffers()])
        if share_norms and way.layout.data_parallel > 1:
            share_batch_norm(self.model)
        self.wires: dict[int, Any] = {}
        options = {"lr": learning_rate, "weight_decay": 0.0, "fused": True}
        layout = way.layout
        if layout.pipeline > 1:
            self.model = cut_vision(self.model, way.cuts, [self.rank])[self.rank]
        elif layout.tensor > 1:
            cut_vision_by_plan(self.model, init_device_mesh(self.device.type, (ranks,)))
        if layout.zero:
            self.optimizer: torch.optim.Optimizer = zero(self.model, layout.zero, **options)
        else:
            if layout.replicate > 1:
                self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
            whole = [p for p in self.model.parameters() if not isinstance(p, DTensor)]
            cut = [
                p for p in self.model.parameters() if isinstance(p, DTensor)
            ]  # not in one list with others
            groups = [{"params": group} for group in (whole, cut) if group]
            self.optimizer = torch.optim.AdamW(groups, **options)  # type: ignore[arg-type]

    def step(self, images: Tensor, labels: Tensor) -> Tensor | None:
        """Forward, backward, optimizer; the mean loss of what this rank has computed (None: of nothing).

        images, labels: the whole batch, the same on all ranks.
        """
        micro = self.way.micro_batches
        if self.way.layout.data_parallel > 1:
            images, labels = (part.chunk(self.ranks)[self.rank] for part in (images, labels))
        batches = images.to(self.device).chunk(micro), labels.to(self.device).chunk(micro)
        losses = self._pipeline(*batches) if self.way.layout.pipeline > 1 else self._forward(*batches)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack(losses).mean() if losses else None

    def _forward(self, images: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> list[Tensor]:
        losses = []
        for number, pair in enumerate(zip(images, labels, strict=True)):
            last = number == len(images) - 1
            waits = isinstance(self.model, DistributedDataParallel) and not last
            with self.model.no_sync() if waits else nullcontext():
                loss = self.model(*pair)
                (loss / len(images)).backward()
            losses.append(loss.detach())
        return losses

    def _pipeline(self, images: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> list[Tensor]:
        wire, stages = self._wire(len(images[0])), {self.rank: self.model}
        schedule = self.way.layout.schedule
        return run_schedule(schedule, stages, (images, labels), F.cross_entropy, wire).losses

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """The model's answers in evaluation, on all ranks. images: the same on all ranks."""
        self.model.eval()
        x = images.to(self.device)
        x = self._down_the_pipeline(x) if self.way.layout.pipeline > 1 else self.model(x)
        self.model.train()
        return x

    def _down_the_pipeline(self, x: Tensor) -> Tensor:
        size, last = len(x), self.ranks - 1
        wire = self._wire(size)
        if self.rank:
            x = wire.receive(self.rank - 1, self.rank, 0, upward=False)
        x = self.model(x)
        if self.rank < last:
            wire.send(x, self.rank + 1, 0, upward=False).wait()
            x = x.new_empty(size, self.spec.num_classes)
        dist.broadcast(x, last)
        return x

    def _wire(self, size: int) -> Any:
        """The wire for micro-batches of so many images; made at first use, by all ranks together."""
        if size not in self.wires:
            shapes = [boundary_shape(self.spec, cut[-1], size) for cut in self.way.cuts[:-1]]
            self.wires[size] = open_wire(shapes, device=self.device)
        return self.wires[size]
