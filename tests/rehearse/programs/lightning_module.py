"""Lightning's Trainer over DDP: its sanity check, its logging, its metrics."""

import logging
import os
import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.body(x)
        loss = F.cross_entropy(logits, y)
        self.log("train_loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.body(x)
        self.log("accuracy", (logits.argmax(-1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def loader():
    return DataLoader(TensorDataset(torch.randn(512, 64), torch.randint(0, 8, (512,))), batch_size=64)


trainer = L.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    max_steps=4,
    log_every_n_steps=1,
    num_sanity_val_steps=1,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
    gradient_clip_val=1.0,
    default_root_dir=tempfile.mkdtemp(),
)
trainer.fit(Classifier(), loader(), loader())
print({name: round(value.item(), 3) for name, value in trainer.callback_metrics.items()})
