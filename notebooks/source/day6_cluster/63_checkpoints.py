# %% [markdown]
# # Checkpoints
#
# - **You need** `25_fsdp` (what a shard is) and `15_optimizers` (what the optimizer remembers).
# - **It takes** 45 minutes to read and try, about half a minute to run.
# - **What runs where:** everything here runs on two and four ranks (gloo), with files in a temporary folder. The same cells run on GPUs (with NCCL,
#   one GPU for each rank: not tried here). The last part is arithmetic for clusters.
# - **Links:** before this [62_when_it_breaks](62_when_it_breaks.ipynb), after it [64_plan_a_run](64_plan_a_run.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# At three in the morning one GPU stops answering, and 1,024 processes end. What is on the disk? Can you continue after breakfast with one node less?
# And is the continued run *the same run*, or does it only look like it?

# %%
# %load_ext workshop
import hashlib
import math
import os
import shutil
import tempfile
import textwrap
from pathlib import Path

from workshop import launch, show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes, format_seconds

room = tempfile.TemporaryDirectory(prefix="checkpoints-")  # deleted with the kernel
folder = Path(room.name)

# %% [markdown]
# ## How large is it?
#
# **Predict:** AdamW in fp32 keeps each weight and its two moments. Gradients are computed anew in each step, so they need not be saved. How many
# bytes does a checkpoint take per parameter?

# %%
# %%guess checkpoint --unit B
# AdamW in fp32: how many bytes of checkpoint for each parameter?
...

# %% tags=["nbval-check-output"]
from workshop.facts.model import ModelSpec
from workshop.predict.checkpoints import checkpoint_bytes, write_seconds

model = ModelSpec(
    "small",
    num_layers=4,
    hidden_size=256,
    num_heads=8,
    num_kv_heads=4,
    ffn_hidden_size=704,
    vocab_size=8_192,
)
expected = checkpoint_bytes(model.num_params)
print(
    f"{model.num_params:,} parameters: weights {expected.weights:,.0f} "
    f"B, moments {expected.moments:,.0f} B"
)
print(
    f"12 bytes each: {expected.total:,.0f} B, a quarter on each "
    f"of four ranks: {expected.per_rank(4):,.0f} B"
)

# %% [markdown]
# ## Run: sharded
#
# We use four ranks with FSDP2. No rank holds the whole model, so no rank can write it alone. `torch.distributed.checkpoint` lets every rank write
# its own part, and one more file records where everything is.

# %%
SHAPE = {
    "vocab_size": 8_192,
    "hidden_size": 256,
    "num_layers": 4,
    "num_heads": 8,
    "num_kv_heads": 4,
    "intermediate_size": 704,
}
sharded = str(folder / "sharded")


def checksum(weights, moments):
    """The same numbers on any number of ranks, the same eight letters."""
    digest = hashlib.sha256()
    both = [m[k] for m in moments["state"].values() for k in ("exp_avg", "exp_avg_sq")]
    for part in [*weights.values(), *both]:
        digest.update(part.full_tensor().cpu().numpy().tobytes())
    return digest.hexdigest()[:8]


# %%
# %%torchrun -n 4 --pass SHAPE,sharded,checksum --into saved
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.fsdp import shard_model

dist.init_process_group()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(dist.get_rank())
model = shard_model(GPT(GPTConfig(**SHAPE)).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(8_192, (2, 64), device=device)
model(tokens, tokens).backward()
optimizer.step()

weights, moments = get_state_dict(model, optimizer)  # name -> this rank's part of it
dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=sharded)
report(checksum=checksum(weights, moments))  # of the whole state, to compare later
dist.destroy_process_group()

# %%
written = {path.name: path.stat().st_size for path in sorted(Path(sharded).iterdir())}
shards = {name: size for name, size in written.items() if name.endswith(".distcp")}
more = sum(shards.values()) / expected.total - 1
assert len(shards) == 4
assert 0 <= more < 0.02
assert max(shards.values()) / expected.per_rank(4) < 1.05
rows = [(name, f"{size:,} B") for name, size in written.items()]
rows.append(("the shards together", f"{sum(shards.values()):,} B"))
rows.append(("predicted", f"{expected.total:,.0f} B"))
Table(("file", "size"), rows, note=f"The shards are {more:.2%} larger than predicted.")

# %%
of_each = sum(shards.values()) / model.num_params
beside("checkpoint", predicted=12, measured=of_each)

# %% [markdown]
# The files contain about 12 bytes per parameter, a quarter of them from each rank; the small rest is names and headers. For this save, no rank sends
# a weight to another rank. The ranks only agree on a plan (who writes what), and wait until all have written.
#
# ## What must be in it?
#
# A continued run is exactly the same only if we save everything that changes during training. Weights and moments are the large part. Small parts
# change as well, and are easily forgotten. Here is a run in which five things change with every step. Which are the other three?

# %%
# %%ranks -n 2
import torch
from torch import nn


class Data:
    position = 0

    def next(self):
        self.position += 1
        drawn = torch.Generator().manual_seed(1_000 * rank + self.position)
        return torch.randn(4, 8, generator=drawn).to(device)


class Run:
    def __init__(self, seed):
        torch.manual_seed(seed)
        layers = nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 8)
        self.model = nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        rates = torch.optim.lr_scheduler
        self.schedule = rates.LambdaLR(self.optimizer, lambda step: 0.7**step)
        self.data = Data()

    def step(self):
        inputs = self.data.next()
        loss = nn.functional.mse_loss(self.model(inputs), inputs.flip(1))
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return loss.item()


# %% [markdown]
# ### Exercise: what to save
#
# Random numbers have a trap: dropout on a GPU draws from the GPU's own generator. `torch.get_device_module().get_rng_state()` returns its state,
# but this generator exists only if `torch.accelerator.is_available()`.


# %%
# %%exercise what_to_save
import copy

import torch


def state_of(run) -> dict:
    """Everything that changes while a run trains, as it is now."""
    state = {
        "model": run.model.state_dict(),
        ...: ...,
    }
    return copy.deepcopy(...)


def go_on(run, state: dict) -> None:
    """Make a fresh run the one that was saved."""
    run.model.load_state_dict(state["model"])
    ...


# %% [markdown]
# ### What if one of them is forgotten?
#
# The five parts are the weights, the moments, the position of the **schedule** of the learning rate, the position in the **data**, and the **random
# state**, from which dropout draws. To test what happens without one of them, we need each separately: how to take it from a run, and how to put it
# back.

# %%
# %%ranks
import copy


def random_states():
    """Of the CPU's generator, and of the accelerator's where there is one."""
    states = [torch.get_rng_state()]
    if torch.accelerator.is_available():
        states.append(torch.get_device_module().get_rng_state())
    return states


def put_back(states):
    torch.set_rng_state(states[0])
    if torch.accelerator.is_available():
        torch.get_device_module().set_rng_state(states[1])


PARTS = {  # name: how to take it, how to put it back
    "weights": (
        lambda r: r.model.state_dict(),
        lambda r, s: r.model.load_state_dict(s),
    ),
    "moments": (
        lambda r: r.optimizer.state_dict(),
        lambda r, s: r.optimizer.load_state_dict(s),
    ),
    "schedule": (
        lambda r: r.schedule.state_dict(),
        lambda r, s: r.schedule.load_state_dict(s),
    ),
    "data": (lambda r: r.data.position, lambda r, s: setattr(r.data, "position", s)),
    "random": (lambda r: random_states(), lambda r, s: put_back(s)),
}

# %% [markdown]
# The run trains three steps, saves, and takes four more. Then fresh runs load everything that your `state_of` has saved *except one part*, which
# gets the value it had at the start of the fresh run.
#
# Which of the losses after the restart is the first that differs? (The first loss is computed before anything is updated.) Answer this for all five
# parts, and write down the hardest:

# %%
# %%guess no_schedule
# Everything is restored except the learning rate's schedule. Which of the four losses
# is the first to differ: 1, 2, 3 or 4?
...

# %%
# %%ranks --pass state_of,go_on --into left_out
from workshop import report

first = Run(seed=0)
for _ in range(3):
    first.step()
state = state_of(first)
losses = {"unbroken": [first.step() for _ in range(4)]}
for missing in ("nothing", *PARTS):
    torch.manual_seed(99)
    again = Run(seed=5)
    began = copy.deepcopy({name: take(again) for name, (take, _) in PARTS.items()})
    # a copy: an optimizer may keep the tensors that it loads
    go_on(again, copy.deepcopy(state))
    if missing in PARTS:
        _, put = PARTS[missing]
        put(again, began[missing])
    losses[missing] = [again.step() for _ in range(4)]
report(losses=losses)

# %%
losses = left_out[0].losses
saved_parts = ("weights", "moments", "schedule", "data", "random")
differs, rows = {}, []
for missing in ("nothing", *saved_parts):
    pairs = zip(losses["unbroken"], losses[missing], strict=True)
    first = next((number for number, (a, b) in enumerate(pairs, 1) if a != b), None)
    after = (f"{loss:.4f}" for loss in losses[missing])
    rows.append((missing, *after, f"loss {first}" if first else "none"))
    differs[missing] = first
assert differs == {
    "nothing": None,
    "weights": 1,
    "moments": 2,
    "schedule": 3,
    "data": 1,
    "random": 1,
}
assert left_out[1].losses["nothing"] == left_out[1].losses["unbroken"]
head = "left out", *(f"loss {number}" for number in range(1, 5)), "first that differs"
Table(head, rows, "losses of rank 0 after the restart, compared with the unbroken run")

# %%
beside("no_schedule", predicted=3, measured=differs["schedule"])

# %% [markdown]
# With everything restored, the runs are the same to the last bit, on both ranks. Without the moments the first loss is right, so the log looks fine
# at first. Without the schedule even the second loss is right, because the optimizer's state contains the learning rate of the next step. Only after
# that step does the missing schedule set a wrong rate, and the third loss is the first to show it. **Nothing crashes.** A run that has forgotten
# something continues, but it is a different run. Its losses may be higher or lower, and no error tells you.
#
# The safest state is one that you do not have to save. In `workshop.train` the learning rate and the data are *functions of the step number*: to
# continue, it calls them with the next number. There is nothing to forget.

# %%
# %ranks stop

# %% [markdown]
# ## Saved on four, loaded on two, and cut another way
#
# The checkpoint records where the numbers of each *parameter* are; which rank wrote them does not matter. A different set of ranks can therefore read
# them: each rank asks for the rows it needs. In our example, four ranks save a matrix of ten rows. First we do it by hand: each rank writes its own
# rows and the number of the first one. Then `dcp` does it, with the same matrix as a *DTensor*, a tensor that knows how it is cut (`25_fsdp`).

# %%
by_hand = str(folder / "by_hand")
Path(by_hand).mkdir()

# %%
# %%torchrun -n 4 --pass by_hand
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group()
rank = dist.get_rank()
whole = torch.arange(40.0).view(10, 4)
parts = whole.chunk(4)  # 3, 3, 3 and 1 rows
first = sum(map(len, parts[:rank]))
torch.save({"first": first, "rows": parts[rank].clone()}, f"{by_hand}/{rank}.pt")

matrix = distribute_tensor(whole, init_device_mesh("cpu", (4,)), [Shard(0)])
dcp.save({"matrix": matrix}, checkpoint_id=f"{by_hand}/dcp")
dist.barrier()  # no rank exits while another still uses the group
dist.destroy_process_group()

# %%
# %%guess files_read
# Two ranks load the matrix, five rows each. How many of the four files does the
# second rank need?
...

# %%
# %%torchrun -n 2 --pass by_hand --into resharded
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from workshop import report

dist.init_process_group()
low, high = 5 * dist.get_rank(), 5 * dist.get_rank() + 5
mine, read = torch.empty(high - low, 4), []
for number, path in enumerate(sorted(Path(by_hand).glob("*.pt"))):
    part = torch.load(path)
    begin, end = part["first"], part["first"] + len(part["rows"])
    a, b = max(low, begin), min(high, end)  # the rows of this file that this rank needs
    if a < b:
        mine[a - low : b - low] = part["rows"][a - begin : b - begin]
        read.append((number, a, b))

empty = torch.zeros(10, 4)
matrix = distribute_tensor(empty, init_device_mesh("cpu", (2,)), [Shard(0)])
dcp.load({"matrix": matrix}, checkpoint_id=f"{by_hand}/dcp")
report(read=read, mine=mine.tolist(), equal=torch.equal(matrix.to_local(), mine))
dist.barrier()
dist.destroy_process_group()

# %% tags=["nbval-check-output"]
import torch
import torch.distributed.checkpoint as dcp

rows = resharded[0].mine + resharded[1].mine
assert [number for row in rows for number in row] == list(range(40)), "all rows"
assert all(resharded[rank].equal for rank in range(2)), "dcp has read the same"
ours = [torch.load(path) for path in sorted(Path(by_hand).glob("*.pt"))]
ours = [(part["first"], len(part["rows"])) for part in ours]
known = dcp.FileSystemReader(f"{by_hand}/dcp").read_metadata().state_dict_metadata
theirs = [(part.offsets[0], part.sizes[0]) for part in known["matrix"].chunks]
assert ours == sorted(theirs)


def in_words(first, count):
    return f"row {first}" if count == 1 else f"rows {first} to {first + count - 1}"


rows = [
    (f"{number}.pt", *(in_words(*part) for part in pair))
    for number, pair in enumerate(zip(ours, sorted(theirs), strict=True))
]
Table(("file", "by hand", "dcp, in .metadata"), rows)

# %%
show.rows_read([number for _, number in ours], [resharded[r].read for r in range(2)])

# %%
beside("files_read", predicted=3, measured=len(resharded[1].read))

# %% [markdown]
# One of the files is read by both ranks. `dcp` loaded the same numbers and recorded the same places. It stores them for all parameters in one more
# file, `.metadata`, so that no rank opens a file that it does not need.
#
# Now two ranks load what four ranks saved above, into a model with different weights. `dcp.load` writes into the state that you pass to it; the
# names and shards of this state say what to read. `set_state_dict` then puts the result into model and optimizer:

# %%
# %%torchrun -n 2 --pass SHAPE,sharded,checksum --into loaded
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.fsdp import shard_model

dist.init_process_group()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(99)
model = shard_model(GPT(GPTConfig(**SHAPE)).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

weights, moments = get_state_dict(model, optimizer)  # name -> this rank's half of it
report(before=checksum(weights, moments))
dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=sharded)
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)

report(checksum=checksum(*get_state_dict(model, optimizer)))
dist.destroy_process_group()

# %% tags=["nbval-check-output"]
for rank in range(2):
    assert loaded[rank].before != saved[0].checksum
    assert loaded[rank].checksum == saved[0].checksum
print("equal to the last bit: every weight and both its moments")

# %% [markdown]
# The workshop's own `train(run, folder=...)` makes the same calls: it saves into its folder, and if it finds a checkpoint there, it continues from it.
# In the next cells, four ranks with FSDP save after four of eight steps. Then the same four ranks continue, and after them others: two ranks with
# FSDP or DDP, four ranks that cut the model another way, and one process alone.

# %%
# %%guess on_two --choices bits,rounding
# Two FSDP ranks continue from what four ranks saved. Are their losses equal to those
# of the unbroken run to the last bit, or only up to rounding?
...

# %%
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.train import train

tiny = ModelSpec("tiny", 2, 64, 4, 256, num_kv_heads=2, ffn_hidden_size=176)


def run_of(layout):
    return Run(
        tiny,
        "this-machine",
        layout,
        micro_batch=8 // layout.data_parallel,
        seq_len=64,
        accumulation=1,
    )


saved_by = run_of(Layout(shard=4, zero=3, precision="fp32"))
unbroken = train(saved_by, num_steps=8, measured=False).losses
train(saved_by, num_steps=4, save_every=4, folder=folder / "four", measured=False)

layouts = {
    "FSDP on four": Layout(shard=4, zero=3, precision="fp32"),
    "FSDP on two": Layout(shard=2, zero=3, precision="fp32"),
    "DDP on two": Layout(replicate=2, precision="fp32"),
    "FSDP x tensor, 2 x 2": Layout(shard=2, zero=3, tensor=2, precision="fp32"),
    "one process": Layout(precision="fp32"),
}
resumed = {}
for name, layout in layouts.items():
    copied = shutil.copytree(folder / "four", folder / name)
    resumed[name] = train(run_of(layout), num_steps=8, folder=copied, measured=False)

# %% tags=["nbval-check-output"]
rows = []
for name, went in resumed.items():
    assert went.first_step == 4
    apart = max(abs(a - b) for a, b in zip(went.losses, unbroken[4:], strict=True))
    exact = name == "FSDP on four"
    assert apart == 0 if exact else apart < 1e-5
    words = "equal to the last bit" if exact else "less than 1e-5 apart"
    rows.append((name, str(went.first_step), words))
assert resumed["FSDP on four"].losses == unbroken[4:]
Table(("continued by", "from step", "its losses and the unbroken run's"), rows)

# %%
bits = resumed["FSDP on two"].losses == unbroken[4:]
beside("on_two", predicted="rounding", measured="bits" if bits else "rounding")

# %% [markdown]
# On the same ranks, the losses are equal bit by bit. On different ranks, the weights and the sequences are exactly the same, but gradients are
# summed in a different order, and floating-point sums depend on the order. This is not a mistake. To avoid it, one would have to add in an order that
# does not depend on the number of ranks, and the usual collectives do not.
#
# The random state is the exception: four random states cannot be given to two ranks. A run with dropout that continues on a different number of
# ranks draws different masks. It is as good as the first run, but not the same.
#
# ## Killed in the middle of a save
#
# A save takes time, and a process may die during it. The next cell defines a file object that kills its process half-way
# through the save:

# %%
naive = folder / "naive.pt"
DYING = """
import os
import signal
import torch

state = {"weights": torch.arange(100_000.0), "step": 1}
torch.save(state, where)  # the last good one
whole = os.path.getsize(where)


class Dying:
    def __init__(self, file):
        self.file, self.written = file, 0

    def write(self, data):
        self.written += self.file.write(data)
        if dies and self.written > whole / 2:
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return len(data)

    def flush(self):
        self.file.flush()


state["step"] = 2
"""

# %% [markdown]
# The simplest way overwrites the last checkpoint:

# %%
# %%guess survives --choices step-1,step-2,neither
# The file holds step 1. A process overwrites it with step 2 and dies half-way. Which
# step can then be loaded?
...

# %%
OVER = """
with open(where, "wb") as file:
    torch.save(state, Dying(file))
"""


def saves(program, where, dies):
    try:
        launch.torchrun(
            DYING + program, 1, variables={"where": str(where), "dies": dies}
        )
    except launch.RankFailed as error:
        print(str(error).splitlines()[0])


saves(OVER, naive, dies=True)

# %%
LOADING = """
import torch
from workshop import report
report(step=torch.load(where)["step"])
"""
try:
    launch.torchrun(LOADING, 1, variables={"where": str(naive)})
except launch.RankFailed as error:
    print(f"{naive.stat().st_size:,} bytes are there, and loading them says:")
    lines = [line for line in str(error).splitlines() if "Error" in line]
    for line in lines:
        print(textwrap.fill(line, 110, subsequent_indent="    "))
    message = str(error)
assert "zip" in message or "EOF" in message, message

# %%
beside("survives", predicted="neither", measured="neither")  # it cannot be loaded

# %% [markdown]
# Step 2 is half a file, and step 1 is gone: **both** are lost. Three habits make such a failure harmless. Write to a file *beside* the last one,
# make sure that all of it is on the disk, and then *rename* it. A rename happens completely or not at all. Here is the same state, killed at the
# same place. (This tests the first habit and the third. The second is for a machine that crashes: what a killed process has written is still in the
# kernel's memory and reaches the disk later.)

# %%
careful = folder / "careful.pt"
BESIDE = """
partial = where + ".partial"
with open(partial, "wb") as file:
    torch.save(state, Dying(file))
    file.flush()
    os.fsync(file.fileno())  # on the disk, not only in the kernel's memory
os.replace(partial, where)
names = os.open(os.path.dirname(where), os.O_RDONLY)
os.fsync(names)  # the new name, too
os.close(names)
"""


def step_on_disk():
    return launch.torchrun(LOADING, 1, variables={"where": str(careful)})[0].step


saves(BESIDE, careful, dies=True)
print("killed half-way: the file holds step", step_on_disk())
assert step_on_disk() == 1
saves(BESIDE, careful, dies=False)
print("not killed:      the file holds step", step_on_disk())
assert step_on_disk() == 2

# %% [markdown]
# The workshop's class `Checkpoints` has the same habits for the files of many ranks, and also records their checksums. In the next cell, two ranks
# with FSDP2 save after every second step. During the second save rank 0 dies, when everything is written but nothing is renamed.

# %%
SAVING = """
import os
import signal
import torch
import torch.distributed as dist
from workshop import report
from workshop.facts.layout import Layout
from workshop.models.from_spec import gpt_config
from workshop.models.gpt import GPT
from workshop.models.text import TextBatches
from workshop.train import Checkpoints, Settings, files, train_loop
from workshop.train.apply_layout import apply_layout
from workshop.train.group import join_group

join_group()
publish = files.publish  # the rename


def dies_before_the_second(partial, final):
    if dies and "00000004" in partial.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return publish(partial, final)


files.publish = dies_before_the_second
settings = Settings(num_steps=8, save_every=2)
torch.manual_seed(settings.seed)
layout = Layout(shard=2, zero=3, precision="fp32")
ready = apply_layout(GPT(gpt_config(tiny)), layout, settings)
batches = TextBatches(64, 8, dist.get_rank(), 2)
went = train_loop(ready, batches, settings, checkpoints=Checkpoints(where))
report(first_step=went.first_step, losses=went.values)
dist.destroy_process_group()
"""


def saving(where, dies):
    return launch.torchrun(
        SAVING, 2, variables={"tiny": tiny, "where": str(where), "dies": dies}
    )


killed = folder / "killed"
try:
    saving(killed, dies=True)
except launch.RankFailed as error:
    print(str(error).splitlines()[0])
left = sorted(path.name for path in killed.iterdir())
print("left behind:", *left, sep="\n    ")
assert left == ["latest", "step-00000002", "step-00000004.partial"]
assert (killed / "latest").read_text().strip() == "step-00000002"

# %% tags=["nbval-check-output"]
again, whole = saving(killed, dies=False)[0], saving(folder / "whole", dies=False)[0]
print(f"goes on at step {again.first_step}")
assert again.first_step == 2
assert again.losses == whole.losses[2:]
halves = len(list(killed.glob("*.partial")))
print(f"with the losses of the unbroken run, to the last bit; {halves} halves are left")

# %% [markdown]
# ## Asynchronous: how long does training stand still?
#
# Writing is slow, but copying is fast. So copy the state to separate memory (*staging*), and write the copy in the background while training
# continues. By hand, this takes a copy and a thread:

# %%
import copy
import threading

state, where = {"weights": torch.ones(2_000_000)}, folder / "by_a_thread.pt"
staged_copy = copy.deepcopy(state)  # training stands still only here
writing = threading.Thread(target=torch.save, args=(staged_copy, where))
writing.start()
state["weights"] += 1  # the next step, while the copy is being written
writing.join()
assert torch.equal(torch.load(where)["weights"], torch.ones(2_000_000))

# %% [markdown]
# `dcp.async_save` does this with the shards of all ranks. It returns as soon as the state is copied.

# %%
# %%guess standstill --unit %
# Training stops during a plain save. For what share of that time does it still stop
# if the save is asynchronous?
...

# %%
staged = str(folder / "staged")

# %%
# %%torchrun -n 2 --pass SHAPE,staged --into timed
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.fsdp import shard_model

dist.init_process_group()
# the background save must not mix its messages with those of training
of_its_own = dist.new_group(backend="gloo")
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(dist.get_rank())
model = shard_model(GPT(GPTConfig(**SHAPE)).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(8_192, (2, 64), device=device)


def step():
    model(tokens, tokens).backward()
    optimizer.step()
    optimizer.zero_grad()


def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


step()
still = {"plain": [], "asynchronous": [], "until written": []}
for attempt in range(3):
    dist.barrier()
    begin = time.perf_counter()
    dcp.save(state(), checkpoint_id=f"{staged}-plain-{attempt}")
    still["plain"].append(time.perf_counter() - begin)

    dist.barrier()
    begin = time.perf_counter()
    future = dcp.async_save(
        state(), checkpoint_id=f"{staged}-{attempt}", process_group=of_its_own
    )
    still["asynchronous"].append(time.perf_counter() - begin)
    then = {name: part.to_local().clone() for name, part in state()["model"].items()}
    step()  # the weights change while the old ones are being written
    future.result()
    still["until written"].append(time.perf_counter() - begin)

read = {"model": state()["model"]}
dcp.load(read, checkpoint_id=f"{staged}-{attempt}")
as_saved = all(
    torch.equal(part.to_local(), then[name]) for name, part in read["model"].items()
)
report(still={name: min(values) for name, values in still.items()}, as_saved=as_saved)
dist.barrier()
dist.destroy_process_group()

# %%
worst = {
    name: max(timed[rank].still[name] for rank in (0, 1)) for name in timed[0].still
}
assert worst["asynchronous"] < worst["plain"]
assert timed[0].as_saved
assert timed[1].as_saved
words = {
    "plain": "plain: training stands still",
    "asynchronous": "asynchronous: training stands still",
    "until written": "asynchronous: until it is written",
}
rows = [
    (words[name], format_seconds(seconds), f"{seconds / worst['plain']:.0%}")
    for name, seconds in worst.items()
]
Table(("a save", "time", "of a plain save"), rows)

# %%
beside("standstill", measured=round(100 * worst["asynchronous"] / worst["plain"]))

# %%
show.saves_in_time(
    {
        "plain save": (worst["plain"], worst["plain"]),
        "asynchronous": (worst["asynchronous"], worst["until written"]),
    }
)

# %% [markdown]
# Training stands still only while the state is copied. This copy also makes the save safe: the step that ran in the meantime changed the weights,
# but not the checkpoint. (This is why `state_of` had to return a *copy*.) The checkpoint may reach the disk later than in a plain save, because the
# state is copied first, and because training and writing share the machine's cores. What counts is the colored part of the picture, in which
# training stands still. Three things to know:
#
# - The background save needs a **group of its own**, or its messages mix with those of training. On GPUs this is a gloo group beside NCCL.
# - It needs **memory**: a second copy of the rank's whole state, on the host.
# - The save is complete only when `future.result()` has returned. Wait for it before you start the next one.
#
# ## At scale
#
# Does the rule hold for a real run? BLOOM has 176 billion parameters. Its notes say what a checkpoint contains: fp32 weights, both moments, and a
# copy of the weights in bf16. The authors also measured a checkpoint's folder on the disk with the command `du`. It printed `2.3T` for all of it,
# and `329G` for the bf16 weights. `du` counts in powers of two, so its T are $2^{40}$ bytes and its G are $2^{30}$. It also rounds up.

# %%
# %%guess bloom_saved --unit T
# fp32 weights, two fp32 moments and a bf16 copy of 176 billion parameters.
# How many T of 2^40 bytes is that?
...

# %%
from workshop.facts import catalogue

bloom = catalogue.model("bloom-176b").num_params
in_all, in_bf16 = (4 + 8 + 2) * bloom / 2**40, 2 * bloom / 2**30
print(f"predicted: {in_all:.2f} T in all, {in_bf16:.1f} G of them the bf16 weights")
assert math.ceil(10 * in_all) == 23  # du rounds up (below ten: to the next tenth)
assert math.ceil(in_bf16) == 329
assert round(14 * bloom / 1e12, 2) == 2.47
assert 60e9 < 14 * bloom / 40 < 65e9
beside("bloom_saved", predicted=in_all, measured=2.3)

# %% [markdown]
# Both predictions agree with `du` once they are rounded up. The choice of unit mattered: in powers of ten the same folder has 2.47 TB. According to
# the notes, a save took about 40 seconds, so BLOOM's file system wrote about 60 GB/s.
#
# How long would a save take for Llama 3.1 405B on 16,384 GPUs? Its storage sustains 2 TB/s (Dubey et al., 2024). The table compares this with an
# ordinary file system, and with a single process that collects everything and writes it at 2 GB/s. Its last column is the share of the time that
# training keeps, if you save as often as is best, and if each restart takes ten minutes.

# %% tags=["nbval-check-output"]
from workshop.predict.failures import Failures, goodput, young_interval

rows = []
for name, gpus in (("llama-3-70b", 1_024), ("llama-3.1-405b", 16_384)):
    total = checkpoint_bytes(catalogue.model(name).num_params)
    between = Failures().seconds_between(gpus)
    for way, rate in (("2 TB/s", 2e12), ("20 GB/s", 20e9), ("one writer, 2 GB/s", 2e9)):
        save = write_seconds(total.total, rate)
        every = young_interval(save, between)
        rows.append(
            [
                name,
                format_bytes(total.per_rank(gpus), binary=False),
                way,
                format_seconds(save),
                f"{goodput(every, save, between, 600):.1%}",
            ]
        )
assert 280e6 < total.per_rank(16_384) < 310e6
assert goodput(every, save, between, 600) < 0.5  # 405B with one writer
Table(
    ("model", "a GPU holds", "storage", "a save takes", "time kept at best"),
    rows,
)

# %% [markdown]
# One rank of 405B holds 300 MB of checkpoint. All ranks together need about two and a half seconds at 2 TB/s. A single writer would need 40 minutes,
# and a job that fails every three hours would keep less than half of its time. This is why every rank writes its own part.
#
# In `64_plan_a_run` you find out how often you should save, and where the last column comes from. An asynchronous save makes the time short for
# which training stands still. The remaining limit is that one save must end before the next begins.

# %% [markdown]
# ## Tomorrow's script
#
# This script saves in the background without this workshop, each checkpoint in a separate folder, and keeps the last two. Any number of ranks can
# load one. Only weights and moments are saved: the learning rate is constant, the data are a function of the epoch number, and no step draws random
# numbers. Start it with `torchrun --nproc-per-node 8 train_and_save.py`; start it again, and it continues. `dcp` writes `.metadata` last and with a
# rename, so a folder that contains this file is complete.

# %%
os.environ["CHECKPOINT"] = str(folder / "train_and_save")

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/train_and_save.py
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group()
background = dist.new_group(backend="gloo")  # carries the messages of a save
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")

inputs = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).to(device)
targets = inputs.sum(dim=1, keepdim=True) / 8
torch.manual_seed(0)  # on every rank: fully_shard does not send rank 0's weights
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
saved, first = Path(os.environ.get("CHECKPOINT", "train_and_save")), 0


def complete():
    """The epochs whose checkpoints are complete, in order."""
    return sorted(int(path.parent.name) for path in saved.glob("*/.metadata"))


def finish(writing):
    """Wait until a checkpoint is complete, then delete all but the last two."""
    writing.result()
    if rank == 0:
        for old in complete()[:-2]:
            shutil.rmtree(saved / str(old))


# rank 0 chooses for all: on a network file system, ranks may see different folders
last = [max(complete(), default=None)]
dist.broadcast_object_list(last, src=0, group=background)
if last[0] is not None:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=saved / str(last[0]))
    weights, moments = state["model"], state["optimizer"]
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    first = last[0] + 1

writing = None
for epoch in range(first, first + 3):
    order = torch.randperm(256, generator=torch.Generator().manual_seed(epoch))
    total = torch.zeros(1, device=device)
    for batch in order.to(device).split(32):
        mine = batch[rank::ranks]  # this rank's part of the same global batch
        loss = (model(inputs[mine]) - targets[mine]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach() * len(batch) / 256
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch}: mean loss {total.item() / ranks:.3f}")
    if writing is not None:
        finish(writing)  # one save ends before the next begins
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    where = saved / str(epoch)
    writing = dcp.async_save(state, checkpoint_id=where, process_group=background)
finish(writing)  # only now is the last checkpoint complete
dist.destroy_process_group()

# %% [markdown]
# Now we start the saved file again, on one rank instead of two. It continues:

# %%
again = launch.torchrun(launch.Script(folder / "train_and_save.py"), 1).text
print(again, end="")
assert "epoch 3" in again
assert "epoch 0" not in again
kept = sorted(path.name for path in (folder / "train_and_save").iterdir())
print("kept: the folders", " and ".join(kept))
assert kept == ["4", "5"]

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("63_checkpoints")

# %% [markdown]
# ## What to take away
#
# - With AdamW in fp32, a checkpoint is **12 bytes per parameter**; it contains no gradients. Every rank writes its part.
# - It needs five things: weights, moments, schedule, data, random state. **If you leave one out, nothing crashes**, but the losses differ from the
#   first, the second or the third on.
# - Make what you can a function of the step number. What need not be saved cannot be forgotten.
# - Checkpoints are stored by parameter, not by rank, so what four ranks saved can be loaded on two, or cut another way. The same ranks continue bit
#   by bit, different ones up to rounding.
# - Write beside, flush, rename. Never overwrite the last good checkpoint.
# - Asynchronous saving costs a copy, memory, and a group of its own.
#
# Next: [64_plan_a_run](64_plan_a_run.ipynb), where failures, saves, days and money come together.
#
# ## Sources
#
# - PyTorch documentation, `torch.distributed.checkpoint` (`save`, `async_save`, `load`, `state_dict`), and *Asynchronous Saving with
#   Distributed Checkpoint* in the tutorials.
# - A. Dubey et al., *The Llama 3 Herd of Models*, 2024, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783), section 3.3.1 (storage:
#   2 TB/s sustained; 1 MB to 4 GB a GPU) and 3.3.4 (interruptions).
# - BLOOM's checkpoint, 2.3T and 329G: [its notes](https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/README.md), *Main
#   info*, *Checkpoints* and *Times*.
# - POSIX, rename(2) and fsync(2). `workshop/train/files.py` and `workshop/train/checkpoint.py` are the habits in code.
# - J. W. Young, Comm. ACM 17(9), 1974.
