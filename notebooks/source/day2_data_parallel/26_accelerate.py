# %% [markdown]
# # One script, every engine
#
# - **You need** `22_ddp`, `24_zero` and `25_fsdp`, or the idea of them: what DDP, ZeRO and FSDP do.
# - **It takes** 25 minutes to read and try, less than a minute to run.
# - **What runs where:** all of it here, on two ranks. Accelerate and DeepSpeed expect GPUs; `ranks_like_gpus()` lets their
#   GPU branches run over gloo, and does nothing where there are GPUs. The last part describes 64 GPUs and rehearses 512.
#
# ## Question
#
# You have written ZeRO by hand, used PyTorch's FSDP, and seen DeepSpeed. Each wants its own wrapping, its own backward, its own
# way to clip and to save. Must a training script choose its engine when it is written?
#
# [Accelerate](https://github.com/huggingface/accelerate) says no: the script calls `prepare` and `backward`, and a file that is
# read **when it starts** says which engine. That is convenient. It also moves the most consequential decision of a training run
# into a file that nobody tests. So we do both: use it, and learn to read it.

# %%
# %load_ext workshop
import yaml

from workshop import Layout, Run, launch, predict_memory, show
from workshop.configs import (
    Overrides,
    accelerate_config,
    accelerate_environment,
    accelerate_yaml,
    find_mistakes,
    read_config,
)
from workshop.facts.units import format_bytes

folder = launch.Session.get().directory  # a private folder that goes when the kernel goes

# %% [markdown]
# ## The script
#
# Read it once from top to bottom. It trains a small Llama on the text of Python's own manual for 20 steps of 8 sequences. Nowhere
# does it say DDP, FSDP or DeepSpeed. Here it runs on **one rank, with no configuration at all**: that is the truth the others will
# be measured against. `--save` keeps it as a program.

# %%
# %%torchrun -n 1 --into alone --save {folder}/train.py
import gc
import os
import sys
import warnings

import torch
import yaml
from torch.utils.data import DataLoader, Dataset

from workshop import report
from workshop.configs import accelerate_environment
from workshop.facts.catalogue import model as known_model
from workshop.measure import count_from_here, held_bytes
from workshop.models.from_spec import gpt_config
from workshop.models.gpt import GPT
from workshop.models.text import TextBatches
from workshop.parallel.accelerate_on_cpu import ranks_like_gpus

warnings.filterwarnings("ignore", category=FutureWarning)  # of DeepSpeed, about torch
for file in sys.argv[1:]:  # what `accelerate launch --config_file FILE` does with FILE
    with open(file) as text:
        os.environ.update(accelerate_environment(yaml.safe_load(text)))
ranks_like_gpus()
from accelerate import Accelerator

STEPS, GLOBAL_BATCH, SEQ_LEN = 20, 8, 64


class Sequences(Dataset):
    """The manual's sequences, in one shuffled order that does not depend on the number of ranks."""

    text = TextBatches(SEQ_LEN, GLOBAL_BATCH)

    def __len__(self) -> int:
        return STEPS * GLOBAL_BATCH

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.text.sequence(number).long()


def train() -> None:
    count_from_here()
    accelerator = Accelerator()
    torch.manual_seed(0)  # the same first weights on every rank
    model = GPT(gpt_config(known_model("gpt-1m")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Sequences(), batch_size=GLOBAL_BATCH // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)  # here the engine comes in
    losses = []
    for batch in loader:
        loss = model(batch[:, :-1], batch[:, 1:])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    del batch, loss
    report(engine=type(model).__name__, ranks=accelerator.num_processes, losses=losses, held=held_bytes())


train()
gc.collect()
torch.distributed.destroy_process_group()

# %% [markdown]
# ## Predict
#
# Now three files. We do not write them; we say what we want, as a `Run`, and translate it.


# %%
def small(**layout) -> Run:
    """gpt-1m on this machine in fp32, a global batch of 8."""
    return Run("gpt-1m", "this-machine", Layout(precision="fp32", **layout), micro_batch=4, seq_len=64)


engines = {
    "DDP": (small(replicate=2), "ddp"),
    "FSDP2": (small(shard=2, zero=3), "fsdp"),
    "ZeRO-2": (small(shard=2, zero=2), "deepspeed"),
}
for name, (run, engine) in engines.items():
    (folder / f"{name}.yaml").write_text(accelerate_yaml(run, engine))

# %% tags=["nbval-check-output"]
print((folder / "FSDP2.yaml").read_text())

# %% [markdown]
# The comments at its top are as important as the file. **Half of the run is not in it:** the batch, the sequence, the
# optimizer, the accumulation. They are in the script, and a file of one run beside the script of another starts without complaint.
#
# What becomes of the file? `accelerate launch` reads it, sets environment variables, and starts torchrun. There is no more to
# it. These are the variables; `Accelerator()` reads them back in every rank. (A test of this workshop holds this
# translation against Accelerate's own.)

# %% tags=["nbval-check-output"]
for name in ("DDP", "ZeRO-2"):
    run, engine = engines[name]
    print(name)
    for variable, value in accelerate_environment(accelerate_config(run, engine)).items():
        print(f"    {variable} = {value}")

# %% [markdown]
# **Predict the losses first.** Same first weights, same global batch, same optimizer, in fp32. Which engines will give other losses
# than the one rank, and from which step on?
#
# **Then the memory.** What does a rank hold *between* two steps, per parameter, on two ranks? Weights are 4 bytes, AdamW's
# moments 8, gradients are gone. Two surprises are in the table, both from the libraries' sources: Accelerate's DDP keeps its gradient
# buckets (4 bytes), and DeepSpeed keeps a "master" copy of its shard of the weights even when there is nothing to master, in fp32.

# %% tags=["nbval-check-output"]
weights, moments, buckets, master = 4, 8, 4, 4
predicted = {
    "one rank": weights + moments,
    "DDP": weights + moments + buckets,
    "FSDP2": (weights + moments) / 2,
    "ZeRO-2": weights + (moments + master) / 2,
}
parameters = engines["DDP"][0].model.num_params
for name, per_parameter in predicted.items():
    print(f"{name:<9} {per_parameter:4.0f} bytes a parameter, {format_bytes(per_parameter * parameters):>9}")

# %% [markdown]
# ## Run
#
# The very program that was saved above, on two ranks, once with each file.

# %%
results = {"one rank": alone}
for name in engines:
    script = launch.Script(folder / "train.py", (str(folder / f"{name}.yaml"),))
    results[name] = launch.torchrun(script, 2)

# %% [markdown]
# ## Compare

# %% tags=["nbval-check-output"]
truth = alone[0].losses
assert len(truth) == 20
for name, result in results.items():
    off = max(abs(found - true) for found, true in zip(result[0].losses, truth, strict=True))
    print(
        f"{name:<9} {result[0].ranks} x {result[0].engine:<24} largest difference in 20 losses below 1e-5: {off < 1e-5}"
    )
    assert off < 1e-5, off
assert truth[-1] < 0.7 * truth[0], "it has learned something"
assert [results[name][0].ranks for name in engines] == [2, 2, 2]

# %% [markdown]
# All of them, to the last digit that fp32 has to offer. The engine is not a matter of what is learned. It is a matter of what
# it costs:

# %%
held = {name: result[0].held for name, result in results.items()}
show.predicted_and_measured(
    list(predicted), [predicted[name] * parameters for name in predicted], [held[name] for name in predicted]
)

# %%
for name in predicted:
    off = held[name] / (predicted[name] * parameters) - 1
    assert abs(off) < 0.02, (name, off)

# %% [markdown]
# ## The same loop in another library
#
# [Lightning Fabric](https://github.com/Lightning-AI/pytorch-lightning) is the same idea with the engine as an argument instead of
# a file. Put the two loops beside each other and look for what differs.

# %%
# %%torchrun -n 2 --into fabric_losses
import gc
import logging
import os
import warnings

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from workshop import report
from workshop.facts.catalogue import model as known_model
from workshop.models.from_spec import gpt_config
from workshop.models.gpt import GPT
from workshop.models.text import TextBatches

logging.disable(logging.INFO)  # Fabric announces its ranks
warnings.filterwarnings("ignore")


def train() -> None:
    fabric = Fabric(
        strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"])
    )  # "fsdp", "deepspeed": on GPUs
    fabric.launch()
    torch.manual_seed(0)
    model = GPT(gpt_config(known_model("gpt-1m")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = TextBatches(64, 8)
    loader = DataLoader(
        [text.sequence(number).long() for number in range(20 * 8)], batch_size=8 // fabric.world_size
    )
    model, optimizer = fabric.setup(model, optimizer)  # accelerator.prepare
    loader = fabric.setup_dataloaders(loader)
    losses = []
    for batch in loader:
        loss = model(batch[:, :-1], batch[:, 1:])
        fabric.backward(loss)  # accelerator.backward
        optimizer.step()
        optimizer.zero_grad()
        losses.append(fabric.all_gather(loss.detach()).mean().item())  # accelerator.gather
    report(losses=losses)


train()
gc.collect()
torch.distributed.destroy_process_group()

# %% tags=["nbval-check-output"]
off = max(abs(found - true) for found, true in zip(fabric_losses[0].losses, truth, strict=True))
print("Fabric's DDP against one rank, largest difference in 20 losses below 1e-5:", off < 1e-5)
assert off < 1e-5, off

# %% [markdown]
# ## A file that lies
#
# This file asks for two processes on a machine without GPUs; `accelerate config` writes one like it for the answer "multi-CPU". We start
# it with the real `accelerate launch` (by its module's name, so that it is surely the one of this Python), and let every process say who it
# is.

# %% tags=["nbval-check-output"]
import subprocess
import sys

two_processes = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
use_cpu: true
num_machines: 1
num_processes: 2
mixed_precision: 'no'
"""
(folder / "two.yaml").write_text(two_processes)
(folder / "who.py").write_text(
    "from accelerate import Accelerator\n"
    "a = Accelerator()\n"
    "print(f'I am rank {a.process_index} of {a.num_processes}')\n"
)
started = subprocess.run(
    [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        folder / "two.yaml",
        folder / "who.py",
    ],
    capture_output=True,
    text=True,
    timeout=60,
)
print(f"{started.stdout}exit code {started.returncode}")
assert started.stdout == "I am rank 0 of 1\n"
assert started.returncode == 0

# %% [markdown]
# One process, exit code 0, no word about it. With a longer script you would have trained for a night on half of the machine, with half
# of the batch. (An FSDP file with `use_cpu: true` is worse: two processes start, and **both** are rank 0 of 1.) Nothing in the
# script is wrong. What was missing is one line in it, `assert accelerator.num_processes == 2`, or a look at the file:

# %% tags=["nbval-check-output"]
for mistake in find_mistakes(two_processes):
    print(mistake)

# %% [markdown]
# ### Exercise: read six files
#
# None of them gives an error when it starts. Each comment says what its author wanted.

# %% tags=["nbval-check-output"]
from workshop.exercises.wrong_settings.files import FILES

for letter, text in FILES.items():
    print(f"--- {letter} ---\n{text}")


# %%
# %%exercise wrong_settings
def wrong_settings() -> dict[str, str]:
    """For each file the key that is wrong or missing, such as "num_machines"; "nothing" for the right one."""
    return {
        "a": ...,
        "b": ...,
        "c": ...,
        "d": ...,
        "e": ...,
        "f": ...,
    }


# %% [markdown]
# The same by machine. `read_config` takes anybody's file, Accelerate's YAML or DeepSpeed's JSON, and gives back the `Run` that
# it asks for, the mistakes, and what it does not understand. In a terminal: `workshop configs read FILE`.

# %% tags=["nbval-check-output"]
loop = Overrides(device="H100", program="accelerate")  # a training loop of your own, not transformers.Trainer
for letter in "bcd":
    print(letter, "|", find_mistakes(FILES[letter], loop)[0])

# %% [markdown]
# One more, because it costs days. DeepSpeed clips gradients by itself: the `max_norm` in the script's
# `accelerator.clip_grad_norm_` is not read. If the file says nothing, or `0`, version 0.19 clips at 1.0; earlier versions did not
# clip. That is why the files written here always say a number.

# %% tags=["nbval-check-output"]
zero2 = accelerate_config(small(shard=2, zero=2), "deepspeed")
zero2["deepspeed_config"]["gradient_clipping"] = 0
print(find_mistakes(zero2, Overrides(program="accelerate"))[0])

# %% [markdown]
# ### Exercise: complete a file


# %%
# %%exercise fsdp_file
def fsdp_file(num_nodes: int, gpus_per_node: int, layer: str) -> dict:
    """An Accelerate configuration: FSDP2, everything sharded over all GPUs, a unit for each `layer`."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": num_nodes,
        "num_processes": ...,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": ...,
            "fsdp_reshard_after_forward": ...,
            "fsdp_auto_wrap_policy": ...,
            "fsdp_transformer_layer_cls_to_wrap": ...,
        },
    }


# %% [markdown]
# ## At scale: 64 GPUs
#
# Llama 3 8B on 8 nodes of 8 H100, with a global batch of 512 sequences of 8,192 tokens. The want, the file, and what it will need:

# %%
large = Run(
    "llama-3-8b",
    "64xH100",
    Layout(shard=64, zero=3, recompute="full"),
    micro_batch=1,
    seq_len=8192,
    global_batch=512,
)
text = accelerate_yaml(large)

# %% tags=["nbval-check-output"]
print(text)

# %%
predict_memory(large)

# %% [markdown]
# And the way back. Say only what the file cannot, and the run comes out again, equal in every field:

# %% tags=["nbval-check-output"]
overrides = Overrides(model="llama-3-8b", device="H100", micro_batch=1, seq_len=8192, accumulation=8)
reading = read_config(text, overrides)
print(reading)
assert reading.run == large

# %% [markdown]
# The note is worth a second look. `accumulate()` saves traffic by not reducing until the last micro-batch; under FSDP2 the price is that
# each rank keeps *whole* gradients until then. For 8 billion parameters that is 16 GB in bf16 on each of 64 GPUs, in a run that shards
# everything else. `sync_each_batch=True`, as the file's comment says, keeps them sharded.
#
# ### The lesson's own loop on 512 ranks
#
# Does the file do what we think when there are 512 ranks? No need to rent them. The next cell is the loop from above with the file for
# 512 GPUs, executed by **one** rank of 512 on tensors without content. Predict first: full sharding gathers the weights for the forward
# and again for the backward, and reduce-scatters gradients, all in bf16: $3 \cdot 2P \cdot \frac{511}{512}$ bytes. But the
# embedding and the head belong to the root unit, which is gathered once and kept, so one of the two gathers is saved for them.

# %%
at_512 = accelerate_config(
    Run("llama-3-8b", "512xH100", Layout(shard=512, zero=3, recompute="full"), seq_len=2048),
    wrap_class="Layer",
)
spec = large.model
root = 2 * spec.vocab_size * spec.hidden_size + spec.hidden_size  # embedding, head, last norm
closed_form = {
    "all_gather": 2 * (2 * spec.num_params - root) * 511 / 512,
    "reduce_scatter": 2 * spec.num_params * 511 / 512,
}

# %%
# %%rehearse -n 512 --pass at_512 --into rehearsed
import os
import warnings

import torch

from workshop.configs import accelerate_environment
from workshop.facts.catalogue import model as known_model
from workshop.models.from_spec import gpt_config
from workshop.models.gpt import GPT
from workshop.parallel.accelerate_on_cpu import ranks_like_gpus

warnings.filterwarnings("ignore", category=FutureWarning)
os.environ.update(accelerate_environment(at_512))
ranks_like_gpus()
from accelerate import Accelerator

accelerator = Accelerator()
model = GPT(gpt_config(known_model("llama-3-8b")))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(2):
    batch = torch.randint(0, 128_256, (1, 2049), device=accelerator.device)
    loss = model(batch[:, :-1], batch[:, 1:])
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()

# %%
show.traffic_table(rehearsed)

# %%
sent = dict.fromkeys(closed_form, 0.0)
for entry in rehearsed.traffic:
    sent[entry.name] += entry.wire_bytes
for name, expected in closed_form.items():
    print(f"{name:<15} closed form {expected / 1e9:6.2f} GB   rehearsed {sent[name] / 1e9:6.2f} GB")
    assert abs(sent[name] / expected - 1) < 0.01

# %% [markdown]
# 65 gathers, 33 reduce-scatters: 32 layers twice and the root once; each layer once and the root. The wrap in the file did what it was
# to do. Had `fsdp_auto_wrap_policy` been missing (file `b`), there would have been one of each, of 16 GB.
#
# ## What to take away
#
# - An engine is a cost, not a result: the same script gave the same 20 losses under all of them.
# - `accelerate launch` turns a file into environment variables and starts torchrun. No more.
# - Half of a run is in the file, half in the script. `num_processes` counts all machines.
# - Configurations fail in silence: on the wrong number of processes, with nothing wrapped, clipped unasked, with weights that cannot
#   be saved. **Assert what you asked for**, in the script, before the first step.
# - Write such files from one description, read those of others with suspicion, and know what they need before you queue.
#
# ## Sources
#
# - S. Gugger et al., *Accelerate*, github.com/huggingface/accelerate, version 1.15: `commands/launch.py`, `utils/launch.py`,
#   `utils/dataclasses.py`.
# - DeepSpeed, github.com/deepspeedai/DeepSpeed, version 0.19: `runtime/config.py`, `runtime/zero/config.py`.
# - S. Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, SC 2020, arXiv:1910.02054, section 7.
# - Y. Zhao et al., *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, VLDB 2023, arXiv:2304.11277.
# - Lightning Fabric, github.com/Lightning-AI/pytorch-lightning.
