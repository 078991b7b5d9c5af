"""Accelerate's loop: prepare, accumulate, gather for a metric; the optimizer exists before the model moves."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
set_seed(42)
model = nn.Sequential(
    nn.Flatten(),
    nn.Linear(784, 512),
    nn.ReLU(),
    nn.Dropout(0.1),
    nn.Linear(512, 512),
    nn.ReLU(),
    nn.Linear(512, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images, labels = torch.randn(512, 1, 28, 28), torch.randint(0, 10, (512,))
train = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True, num_workers=2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=100)
model, optimizer, train, scheduler = accelerator.prepare(model, optimizer, train, scheduler)
for epoch in range(1):
    model.train()
    right, seen, total = 0, 0, 0.0
    for x, y in train:
        with accelerator.accumulate(model):
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        total += loss.detach().float()
        predicted, truth = accelerator.gather_for_metrics((logits.argmax(-1), y))
        right, seen = right + (predicted == truth).sum().item(), seen + truth.numel()
    accelerator.print(f"epoch {epoch}: {right}/{seen} right, loss {total.item() / len(train):.3f}")
accelerator.end_training()
