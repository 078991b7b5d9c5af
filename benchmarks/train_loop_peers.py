"""The other three loops of benchmarks/train_loop.py, each with the settings that make it quick.

Each function takes the job and returns a function that trains a fresh model for the job's steps and returns
its last loss, as the mean over ranks.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from workshop.facts.model import ModelSpec
from workshop.models.from_spec import gpt_config
from workshop.models.gpt import GPT
from workshop.models.text import TextBatches

LOG_EVERY, RATE, BETAS = 10, 1e-3, (0.9, 0.95)


def fresh_model(job: argparse.Namespace, device: torch.device) -> GPT:
    """Every contender begins with the same weights, drawn on their device: a CPU takes long for a billion."""
    torch.manual_seed(0)
    with torch.device(device):
        return GPT(gpt_config(ModelSpec(**json.loads(job.model))))


def compiled(model: nn.Module, job: argparse.Namespace) -> nn.Module:
    """Layer by layer, as ours and as torchtitan do: a compile of seconds, not minutes."""
    if job.compile:
        for layer in model.modules():
            if type(layer).__name__ == "Layer":
                layer.compile()
    return model


def mean_over_ranks(value: Tensor) -> float:
    """A loss, as the mean over ranks."""
    value = value.detach().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


class Windows(Dataset):
    """The sequences of `TextBatches` by number, as a Dataset that peers' DataLoaders read."""

    def __init__(
        self, job: argparse.Namespace, keys: tuple[str, str], share: tuple[int, int] = (0, 1)
    ) -> None:
        whole = TextBatches(job.seq_len, job.global_batch)
        rank, ranks = share  # a loader that does not deal to ranks gets this rank's share
        each = job.global_batch // ranks
        firsts = [step * job.global_batch + rank * each for step in range(job.steps)]
        rows = [whole.sequence(first + place) for first in firsts for place in range(each)]
        self.rows, self.keys = torch.stack(rows).long(), keys

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.rows[index]
        return {self.keys[0]: row[:-1], self.keys[1]: row[1:]}


class WithLabels(nn.Module):
    """The same GPT with the names that transformers' Trainer calls."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Only the loss: logits that nobody reads would be gathered."""
        return {"loss": self.gpt(input_ids, labels)}


def accelerate_loop(job: argparse.Namespace, device: torch.device, folder: Path) -> Callable[[], float]:
    """The loop of Accelerate's quick tour."""
    from accelerate import Accelerator, DistributedDataParallelKwargs

    def block() -> float:  # all afresh: Trainer resets Accelerate's state
        plugin = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
        accelerator = Accelerator(
            cpu=device.type == "cpu", mixed_precision="bf16" if job.bf16 else "no", kwargs_handlers=[plugin]
        )
        if accelerator.num_processes != dist.get_world_size():
            raise RuntimeError(
                f"Accelerate sees {accelerator.num_processes} of {dist.get_world_size()} ranks"
            )
        model = compiled(fresh_model(job, device), job)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0, fused=True)
        data = DataLoader(Windows(job, ("tokens", "targets")), job.micro_batch, shuffle=False)
        model, optimizer, data = accelerator.prepare(model, optimizer, data)
        losses = []
        with (folder / f"accelerate-{accelerator.process_index}.csv").open("w") as file:
            lines = csv.writer(file)
            for step, batch in enumerate(data):
                loss = model(batch["tokens"], batch["targets"])
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
                if (step + 1) % LOG_EVERY == 0:
                    lines.writerow([step + 1, torch.stack(losses[-LOG_EVERY:]).mean().item()])
        return accelerator.reduce(losses[-1], "mean").item()

    return block


def transformers_trainer(job: argparse.Namespace, device: torch.device, folder: Path) -> Callable[[], float]:
    """`transformers.Trainer`, told all that makes it quick."""
    import transformers

    transformers.logging.set_verbosity_error()

    class InOrder(transformers.Trainer):
        """The text in the order in which the others read it; keeps the last loss."""

        last_loss = torch.zeros(())

        def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
            return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)

        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            self.last_loss = super().training_step(*args, **kwargs)
            return self.last_loss

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            with (folder / "trainer.jsonl").open("a") as file:
                file.write(json.dumps(logs) + "\n")

    def block() -> float:
        arguments = transformers.TrainingArguments(
            str(folder), max_steps=job.steps, per_device_train_batch_size=job.micro_batch, learning_rate=RATE,
            lr_scheduler_type="constant", adam_beta1=BETAS[0], adam_beta2=BETAS[1], max_grad_norm=1.0,
            optim="adamw_torch_fused", logging_steps=LOG_EVERY, logging_nan_inf_filter=False,
            save_strategy="no", report_to="none", disable_tqdm=True, bf16=job.bf16,
            use_cpu=device.type == "cpu",
            dataloader_pin_memory=device.type != "cpu", ddp_find_unused_parameters=False,
            remove_unused_columns=False,
        )  # fmt: skip
        model = WithLabels(compiled(fresh_model(job, device), job))
        trainer = InOrder(model, arguments, train_dataset=Windows(job, ("input_ids", "labels")))
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        return mean_over_ranks(trainer.last_loss)

    return block


def lightning_module(gpt: nn.Module) -> Any:
    """The GPT as Lightning wants it."""
    import lightning

    class Module(lightning.LightningModule):
        """A training_step and an optimizer."""

        def __init__(self) -> None:
            super().__init__()
            self.gpt, self.last_loss = gpt, torch.zeros(())

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            """The loss."""
            loss = self.gpt(batch["tokens"], batch["targets"])
            self.last_loss = loss.detach()
            self.log("loss", self.last_loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """The same optimizer."""
            return torch.optim.AdamW(self.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0, fused=True)

        def configure_gradient_clipping(
            self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
        ) -> None:
            """Lightning's own refuses fused optimizers in mixed precision: their step unscales the gradients.

            That is meant for fp16; in bf16 nothing scales them.
            """
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    return Module()


def lightning_trainer(job: argparse.Namespace, device: torch.device, folder: Path) -> Callable[[], float]:
    """Lightning's Trainer, without bars, summaries and checkpoints."""
    import logging

    import lightning
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.strategies import DDPStrategy

    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)

    ranks = dist.get_world_size()

    def block() -> float:
        module = lightning_module(compiled(fresh_model(job, device), job))
        ddp = DDPStrategy(gradient_as_bucket_view=True, find_unused_parameters=False)
        trainer = lightning.Trainer(
            max_steps=job.steps, accelerator="cpu" if device.type == "cpu" else "gpu", devices=ranks,
            strategy=ddp if ranks > 1 else "auto", precision="bf16-mixed" if job.bf16 else "32-true",
            logger=CSVLogger(folder), use_distributed_sampler=False,
            log_every_n_steps=LOG_EVERY, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, gradient_clip_val=1.0, max_epochs=1,
        )  # fmt: skip
        if trainer.world_size != ranks:
            raise RuntimeError(f"Lightning sees {trainer.world_size} of {ranks} ranks")
        data = Windows(job, ("tokens", "targets"), (dist.get_rank(), ranks))
        trainer.fit(module, DataLoader(data, job.micro_batch, shuffle=False))
        return mean_over_ranks(module.last_loss)

    return block
