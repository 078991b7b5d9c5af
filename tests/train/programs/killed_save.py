"""Save at steps 2 and 4; in the second save a process is killed at PLACE (passed), half-way through."""

import os
import signal

import torch
import torch.distributed as dist

from workshop.facts.layout import Layout
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches
from workshop.train import Checkpoints, Settings, files, train_loop
from workshop.train.apply_layout import apply_layout
from workshop.train.group import join_group

saves = 0


def killing(function, rank, is_there=lambda *_: True):
    """The function, but for the second save on this rank, which ends here."""

    def wrapped(*arguments):
        if saves == 2 and dist.get_rank() == rank and is_there(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)

    return wrapped


class Counting(Checkpoints):
    def save(self, *arguments):
        global saves
        saves += 1
        return super().save(*arguments)


join_group()
if PLACE == "while files are written":  # noqa: F821
    files.sums = killing(files.sums, rank=1)
elif PLACE == "before the rename":  # noqa: F821
    files.publish = killing(files.publish, rank=0)
else:
    files.write_whole = killing(files.write_whole, 0, lambda path, _: path.name == files.LATEST)

torch.manual_seed(0)
model = GPT(
    GPTConfig(
        vocab_size=256,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=64,
        tied=True,
    )
)
settings = Settings(num_steps=8, schedule="cosine", warmup=2, save_every=2)
ready = apply_layout(model, Layout(shard=2, zero=3, precision="fp32"), settings)
train_loop(ready, TextBatches(64, 8, dist.get_rank(), 2), settings, checkpoints=Counting(FOLDER))  # noqa: F821
