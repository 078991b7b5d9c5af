# %% [markdown]
# # Can you bring a run to its end without the workshop watching?
#
# - **You need** `25_fsdp`, `63_checkpoints` and `64_plan_a_run`. Quantization (`53_quantization`) and the cache (`56_serving`) come back
#   near the end, in short form.
# - **It takes** 60 minutes to read and try, about a minute to run.
# - **What runs where:** everything runs here, on two ranks on the CPU. Where there are two GPUs or more, the same cells use them, with a
#   larger model and a larger cap (not tried yet). The plan for 1,024 GPUs is arithmetic, and the world of 512 ranks is rehearsed.
# - **Model and text:** a small transformer of four layers, written in plain PyTorch, because the program must not need this package. It
#   reads two pages of the Python reference manual again and again, so that half a minute is enough to see it learn.
# - **Links:** before this [75_rl_over_ranks](../day7_own_model/75_rl_over_ranks.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# You have seen every part of a training run on its own. Now you put the parts together in one run, and you make the decisions: what is launched,
# how often it saves, where it continues after a crash, how many bits it keeps. At the end, a report card compares what you wanted, guessed and
# predicted with what happened. The program that you take home does not use this workshop.

# %%
# %load_ext workshop
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from statistics import median

import torch

from workshop import launch, predict_memory, show
from workshop.exercises import beside
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.facts.tabular import Table
from workshop.launch.device import choose, wants_to_share

torch.set_num_threads(1)
folder = launch.Session.get().directory  # private; deleted when the kernel ends
card = {}  # for the report card: what was compared at each stage

# %% [markdown]
# ## Want
#
# A run begins with a budget. The budget is a few plain numbers, and every later decision is measured against them. The memory of a rank is
# capped on purpose, because a model of this size would never fill a real device.

# %%
RANKS = 2
here = choose(RANKS, torch.accelerator.device_count(), wants_to_share(None))
ON_GPUS = here.kind == "cuda"
WIDTH, CAP = (1_024, 1.06e9) if ON_GPUS else (96, 10.5e6)  # CAP: bytes per rank
DEADLINE = 180.0  # seconds of training
LENGTH, BATCH, SAMPLES, EPOCHS = 32, 8, 64, 6
STEPS = EPOCHS * SAMPLES // BATCH
PRICE = 2.00  # of one rank for one hour, in your currency; only an example
rows = [
    ("tokens to learn", f"{STEPS * BATCH * LENGTH:,}"),
    (f"steps, of {BATCH} sequences each", f"{STEPS}"),
    ("memory of a rank, at most", f"{CAP / 1e6:,.1f} MB"),
    ("training, at most", f"{DEADLINE:.0f} s"),
    ("price of a rank", f"{PRICE:.2f} / hour"),
]
Table(("the budget", ""), rows)

# %% [markdown]
# ## Plan
#
# Two things can be chosen: one rank, or two ranks that share the model with `fully_shard`; and the *micro-batch*, the number of sequences that a
# rank computes at once. Large micro-batches need fewer calls and more memory. Two ranks hold less each, but they have to send, and you pay
# for both.

# %%
# %%guess ranks_needed
# On the CPU the weights take 2 MB, and a rank may use 10.5 MB (on GPUs: 204 MB and
# 1,060 MB). How many ranks will the plan use, one or two?
...

# %% [markdown]
# The memory is predicted by the formulas of lessons 13 and 25. No formula knows how fast your machine is, so we measure a little of it: a forward and
# a backward pass of the program's layers, on one rank alone over one sequence and over four, and on two ranks that share the layers over four. A
# straight line through the first two times shows what a call costs in any case, and how much each further sequence adds. Computing a sequence costs
# a rank the same if the layers are shared. So the rest of the third time is what a call costs two ranks, with its sending.

# %%
# %%ranks -n 2 --pass WIDTH,LENGTH --into trial
import time

from torch import nn
from torch.distributed.fsdp import fully_shard

from workshop import report


def seconds_of(layers, sequences):
    """A forward and a backward pass, the best of six."""
    best = float("inf")
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device)
    for _ in range(6):
        x = torch.randn(sequences, LENGTH, WIDTH, device=device)
        began = time.perf_counter()
        y = layers(x, mask, is_causal=True).square().mean()
        y.backward()
        y.item()  # waits until a GPU has finished its work
        best = min(best, time.perf_counter() - began)
    return best


kind = {"dropout": 0.0, "activation": nn.functional.gelu, "batch_first": True}
layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, norm_first=True, **kind)
layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)
if rank == 0:
    report(alone=[seconds_of(layers, number) for number in (1, 4)])
dist.barrier()
for layer in layers.layers:
    fully_shard(layer)
fully_shard(layers)
report(shared=seconds_of(layers, 4))

# %%
one, four = trial[0].alone
each = max((four - one) / 3, 1e-6)  # to compute a sequence, alone or not
with_sending = trial[0].shared - 4 * each
calls = {  # number of ranks -> seconds per call, seconds per sequence
    1: (max(one - each, 1e-6), each),
    RANKS: (max(with_sending, 1e-6), each),
}
rows = [
    (f"{ranks}", f"{1e3 * call:.1f} ms", f"{1e3 * each:.2f} ms")
    for ranks, (call, each) in calls.items()
]
Table(("ranks", "each call", "plus, for each sequence"), rows)

# %%
# %ranks stop


# %%
def shape(width):
    """The model of this lesson, as the formulas know it."""
    biases = {"qkv_bias": True, "attention_out_bias": True, "mlp_bias": True}
    kind = {"positions": "learned", "norm": "layernorm", "gated_mlp": False} | biases
    return ModelSpec("yours", 4, width, 4, 256, max_positions=LENGTH, **kind)


def candidates(width):
    """Every way to launch it: bytes that a rank holds at most, seconds of training."""
    every, grows = [], shape(width).num_params / shape(WIDTH).num_params
    for ranks, (call, sequence) in calls.items():
        cut = Layout(shard=ranks, zero=3 if ranks > 1 else 0, precision="fp32")
        for micro in [m for m in (1, 2, 4, 8) if m * ranks <= BATCH]:
            run = Run(shape(width), "this-machine", cut, micro, LENGTH, BATCH)
            number = STEPS * BATCH // ranks // micro
            every.append({
                "name": f"{ranks} rank{'s' * (ranks > 1)}, micro-batch {micro}",
                "ranks": ranks,
                "micro": micro,
                "bytes": float(predict_memory(run).allocated.max()),
                "seconds": number * (call + grows * micro * sequence),
            })  # fmt: skip
    return every


rows = [
    [c["name"], f"{c['bytes'] / 1e6:.1f} MB", f"{c['seconds']:.1f} s"]
    for c in candidates(WIDTH)
]
Table(("candidate", "a rank holds at most", "training"), rows)

# %% [markdown]
# With small micro-batches, one rank always needs the same memory. Its peak is then the optimizer's step, which takes five times the bytes of the
# weights.
#
# ### Exercise: choose what is launched
#
# A prediction just under the cap is not safe. The formula does not know every tensor of your program, and the clock did not see what
# your neighbors will start tomorrow. So both numbers get a margin before they are compared with their limits. Among what is left, the cheapest
# candidate wins. If nothing is left, the function has to refuse, because a run that cannot work should not start.


# %%
# %%exercise choose_run
def choose_run(
    candidates: list[dict],
    cap: float,
    deadline: float,
    margin: float,
) -> dict:
    """The cheapest candidate that stays under both limits, with a margin."""
    possible = [...]
    if not possible:
        raise ValueError(...)
    return ...


# %% [markdown]
# Your function decides what is launched from here on. How large is the margin? That is your decision too. We take 10 %, and look at what would be
# launched without a margin.

# %%
MARGIN = 0.1
chosen = choose_run(candidates(WIDTH), CAP, DEADLINE, MARGIN)
risky = choose_run(candidates(WIDTH), CAP, DEADLINE, 0.0)
print(f"margin 10 %: {chosen['name']}, {chosen['bytes'] / 1e6:.1f} MB predicted")
print(f"no margin:   {risky['name']}, {risky['bytes'] / 1e6:.1f} MB predicted")
assert chosen["ranks"] == RANKS
assert chosen["bytes"] * (1 + MARGIN) <= CAP
card["plan"] = beside("ranks_needed", calculated=chosen["ranks"])
card["plan"]

# %% [markdown]
# Whether the margin was needed will be seen below, when the real program runs under the cap.
#
# Now move the slider of this lesson, the **width**. The bars are the candidates, the solid line is the cap, and the dotted line is the cap divided
# by 1 + margin. The title shows the answer of your function. Narrow models fit on one rank. From a certain width on nothing fits, and you read your
# own refusal.

# %%
from workshop.jupyter.explorer import Control, explore
from workshop.show.style import Picture, legend, new_figure, rank_colour


def choices_picture(width, margin):
    """Bytes of each candidate, the cap, and what is chosen."""
    every = candidates(width)
    try:
        choice = choose_run(every, CAP, DEADLINE, margin)["name"]
    except ValueError as refusal:
        choice = f"refused: {refusal}"
    figure, axis = new_figure(7.0, 2.6)
    names = [c["name"] for c in every]
    colors = ["#0072B2" if name == choice else "#BBBBBB" for name in names]
    axis.barh(names, [c["bytes"] / 1e6 for c in every], color=colors)
    axis.axvline(CAP / 1e6, color="#D55E00")
    axis.axvline(CAP / 1e6 / (1 + margin), color="#D55E00", linestyle=":")
    axis.invert_yaxis()
    axis.set_xlabel("MB that a rank holds at most")
    title = textwrap.fill(f"width {width}: {choice}", 74)
    axis.set_title(title, fontsize=9, loc="left")
    return Picture(figure, f"width {width}, margin {margin:.0%}: {choice}")


widths = [WIDTH * sixths // 6 for sixths in (3, 4, 6, 8, 12)]
controls = [
    Control("width", WIDTH, widths),
    Control("margin", MARGIN, (0.0, 0.1, 0.3)),
]
explore(choices_picture, controls)

# %% [markdown]
# The same function plans a run of real size, on paper. Lesson [64_plan_a_run](../day6_cluster/64_plan_a_run.ipynb) has a model of 70 billion
# parameters, 15 trillion tokens and H100s. The planner proposes layouts for 512, 1,024 and 2,048 of these GPUs, and the deadline is 180 days:

# %%
from workshop.facts import catalogue
from workshop.predict.plan import plan

llama, on_paper = catalogue.model("llama-3-70b"), []
for gpus in (512, 1_024, 2_048):
    proposals = plan(llama, catalogue.cluster(f"{gpus}xH100"), 1_024, 4_096).proposals
    for proposal in proposals[:2]:
        cut = proposal.run.layout
        on_paper.append({
            "name": f"{gpus:,} GPUs, tensor {cut.tensor} x pipeline {cut.pipeline}, "
            f"recompute {cut.recompute}",
            "ranks": gpus,
            "bytes": proposal.memory_bytes,
            "seconds": 15e12 / proposal.tokens_per_second,
        })  # fmt: skip
rows = [
    [
        c["name"],
        f"{c['bytes'] / 1e9:.0f} GB",
        f"{c['seconds'] / 86_400:.0f}",
        f"{c['ranks'] * c['seconds'] / 3.6e9:.2f}",
    ]
    for c in on_paper
]
Table(("candidate", "a GPU holds", "days", "million GPU hours"), rows)

# %%
large = choose_run(on_paper, 80e9, 180 * 86_400, margin=0.05)
print(f"in 180 days: {large['name']}")
assert large["ranks"] == 1_024
late = [c for c in on_paper if c["ranks"] == 512]
assert all(c["seconds"] > 180 * 86_400 for c in late)
try:
    choose_run(on_paper, 80e9, 60 * 86_400, margin=0.05)
except ValueError as refusal:
    print(f"in 60 days:  {refusal}")
else:
    raise AssertionError("no candidate is done in 60 days")

# %% [markdown]
# 512 GPUs would need almost a year. Among the candidates that meet the deadline, the cheapest is chosen, and here that is also the smaller cluster.
#
# ## Write
#
# A program that may be killed must find out, whenever it starts, what is already on the disk. Ours saves in three moves: all ranks write into the
# folder `step-20.part`; `dcp` adds the file `.metadata` when all of them have finished; and then the folder is renamed to `step-20`. A process can
# die between any two of these moves, and a copy to another disk can be cut off anywhere.
#
# ### Exercise: where does the run continue?
#
# `step-20` means that 20 steps are done. The samples are numbered from the first step on, and each step takes `batch` of them, on any number of
# ranks.


# %%
# %%exercise resume_from
from pathlib import Path


def resume_from(room: Path, batch: int) -> tuple[Path | None, int, int]:
    """The newest whole checkpoint, the steps done, the next sample's number."""
    whole = [...]
    if not whole:
        return None, 0, 0
    newest = ...
    step = ...
    return newest, step, ...


# %% [markdown]
# ### Decide: how many steps may be lost?
#
# A crash costs the steps since the last save, and a save costs time in any case. Lesson 64 has the formula for the best interval if the rate of
# failures is known. Here you choose: `EVERY` is the number of steps that you are ready to lose, at most 26, because we will kill the run after step
# 27. (The text below describes 10.) Your decisions reach the program as environment variables, and so does the micro-batch that `choose_run` has
# chosen for you.

# %%
EVERY = 10
decided = {"WIDTH": WIDTH, "MICRO": chosen["micro"], "EVERY": EVERY}
decided |= {"BATCH": BATCH, "SAMPLES": SAMPLES, "EPOCHS": EPOCHS, "OMP_NUM_THREADS": 1}
os.environ |= {name: str(value) for name, value in decided.items()}


def fresh(name):
    """An empty folder for a run, and the program is told of it."""
    room = folder / name
    shutil.rmtree(room, ignore_errors=True)  # if you run the cell again
    os.environ["CHECKPOINT"] = str(room)
    return room


whole = fresh("unbroken")

# %% [markdown]
# ### The program
#
# This is the whole program, and it needs PyTorch only. It is longer than a cell should be, because it is what you take home. You know every part of
# it. The loss is one sum over all tokens of the batch, divided by their number, whatever `MICRO` is
# ([73_finetune](../day7_own_model/73_finetune.ipynb)). Four decisions make it possible for the run to heal:
#
# - **Which samples come next is a function of the sample's number** (`rows_of`). There is no position to save and nothing to forget, and the batch is
#   the same on any number of ranks.
# - **A checkpoint is written beside the last one**, and it gets its name when it is whole.
# - **The program looks for a checkpoint whenever it starts** (`saved_in`, which your function will replace), without being asked.
# - **The loss is written to a log in each step**, so that a run that dies leaves its history.
#
# One more line does harm on purpose: with `KILL=1:27:0`, rank 1 kills itself when 27 steps are done, but only in the first start. (torchrun counts
# the restarts in `TORCHELASTIC_RESTART_COUNT`.)

# %%
# %%guess training_seconds --unit s
# 48 steps of 8 sequences on your ranks, with some saves on the way. How many seconds
# pass from the first step to the last?
...

# %% tags=["script"]
# %%torchrun -n 2 --timeout 240 --save {folder}/your_run.py
import os
import shutil
import signal
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

SIZES = {"WIDTH": 96, "MICRO": 4, "BATCH": 8, "SAMPLES": 64, "EVERY": 10}
SIZES = {name: int(os.environ.get(name, usual)) for name, usual in SIZES.items()}
WIDTH, MICRO, BATCH, SAMPLES, EVERY = SIZES.values()
LENGTH, TEXT = 32, torch.tensor(list((topics["if"] + topics["while"]).encode()))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        kind = {"dropout": 0.0, "activation": F.gelu, "batch_first": True}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, norm_first=True, **kind)
            for _ in range(4)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.embed(tokens) + self.places.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, tokens.device)
        for layer in self.layers:
            x = layer(x, mask, is_causal=True)
        return self.head(self.norm(x))


def rows_of(sample, rank, ranks):
    """This rank's rows of the batch that begins with this sample."""
    if SAMPLES % BATCH or BATCH % ranks:
        raise SystemExit("SAMPLES must be a multiple of BATCH, and BATCH of the ranks")
    epoch, place = divmod(sample, SAMPLES)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
    starts = 16 * order[place : place + BATCH][rank::ranks]
    return TEXT[(starts[:, None] + torch.arange(LENGTH + 1)) % len(TEXT)]


def saved_in(room):
    """The newest whole checkpoint, the steps done, the next sample's number."""
    names = [path.parent.name[5:] for path in room.glob("step-*/.metadata")]
    step = max((int(name) for name in names if name.isdigit()), default=0)
    return room / f"step-{step}" if step else None, step, step * BATCH


def main():
    dist.init_process_group()
    rank, ranks, device = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda")
    torch.manual_seed(0)  # all ranks begin with the same weights
    model = Model().to(device)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.6 / WIDTH)
    room = Path(os.environ.get("CHECKPOINT", "your_run"))
    room.mkdir(parents=True, exist_ok=True)
    saved, step, sample = saved_in(room)
    if saved:
        weights, moments = get_state_dict(model, optimizer)  # tells dcp what to load
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=saved)
        loaded = {"model_state_dict": weights, "optim_state_dict": moments}
        set_state_dict(model, optimizer, **loaded)
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    end = int(os.environ.get("EPOCHS", sample // SAMPLES + 3)) * SAMPLES
    losses, began = [], time.time()
    while sample < end:
        if os.environ.get("KILL") == f"{rank}:{step}:{start}":
            os.kill(os.getpid(), signal.SIGKILL)
        loss = torch.zeros(1, device=device)
        for rows in rows_of(sample, rank, ranks).to(device).split(MICRO):
            logits, wanted = model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()
            part = F.cross_entropy(logits, wanted, reduction="sum") / (BATCH * LENGTH)
            (part * ranks).backward()  # fully_shard divides by the number of ranks
            loss += part.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        step, sample, losses = step + 1, sample + BATCH, [*losses, loss.item()]
        if rank == 0:
            with (room / "log").open("a") as log:
                print(step, losses[-1], time.time() - began, file=log)
        if sample % SAMPLES == 0:
            epoch, mean, losses = sample // SAMPLES - 1, sum(losses) / len(losses), []
            if rank == 0:
                print(f"epoch {epoch}: mean loss {mean:.3f}", flush=True)
        if step % EVERY == 0 or sample >= end:
            part, whole = room / f"step-{step}.part", room / f"step-{step}"
            weights, moments = get_state_dict(model, optimizer)  # each rank's shards
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=part)
            if rank == 0:
                shutil.rmtree(whole, ignore_errors=True)  # half a copy, if there is one
                part.rename(whole)
            dist.barrier()  # all wait until the folder has its final name
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# %% [markdown]
# It ran to its end: six epochs, with the loss falling. The log has the time.

# %%
program = folder / "your_run.py"


def history(room):
    """Step -> loss, and step -> seconds since its start; what came later counts."""
    lines = [line.split() for line in (room / "log").read_text().splitlines()]
    losses = {int(step): float(loss) for step, loss, _ in lines}
    return losses, {int(step): float(seconds) for step, _, seconds in lines}


unbroken, clock = history(whole)
took = clock[STEPS] - clock[1]
print(f"loss {unbroken[1]:.2f} in step 1, {unbroken[STEPS]:.2f} in step {STEPS}")
assert sorted(unbroken) == list(range(1, STEPS + 1))
assert unbroken[STEPS] < 0.5 * unbroken[1]
gaps = {step: clock[step + 1] - clock[step] for step in range(1, STEPS)}
usual = median([gap for step, gap in gaps.items() if step % EVERY] or [0.0])
saves = sum(gap - usual for step, gap in gaps.items() if step % EVERY == 0)
parts = {
    "predicted": chosen["seconds"],
    "measured": took,
    "of that, the saves": saves,
    "of that, all else": took - saves,
}
rows = [(name, f"{seconds:.1f} s") for name, seconds in parts.items()]
Table(("from the first step to the last", "time"), rows)

# %%
card["time"] = beside("training_seconds", predicted=chosen["seconds"], measured=took)
card["time"]

# %% [markdown]
# The prediction leaves out the saves, the optimizer and the embedding, so it is usually too short. That is why a deadline gets a margin as well. (The
# table can tell the saves apart because the program writes its log before it saves: a save delays the next line.) If your two numbers differ by
# much more than 10 %, such a margin is not enough for a tight deadline: then time a few whole steps of the real program, and a save,
# before you launch it.
#
# ### Did the margin pay?
#
# We also have to compare the memory. We first do it without starting any ranks: `%rehearse` runs your file as one of two ranks, on tensors without
# numbers, and counts every byte. (`--steps 2`, because the second step has the optimizer's state from the beginning.)

# %%
fresh("rehearsed")  # it is empty, so the program begins at step 0
print("an empty folder for the rehearsals")

# %%
# %rehearse -n 2 --steps 2 --into as_chosen {program}

# %% [markdown]
# Then we run it for real, under the cap. The package counts *around* your file, which stays as it is. A rank that would hold more than `CAP` gets
# an error, as it would on a full GPU. Two epochs of a single step are enough. We try the same with the candidate that would have been launched
# without a margin.

# %%
# %%guess without_margin --choices fits,fails
# One rank, predicted just below the cap. Does the real program stay under the cap?
...

# %%
AROUND = """
import runpy
from workshop import report
from workshop.measure import measure

with measure() as measured:
    runpy.run_path(program, run_name="__main__")
report(peak=measured.memory.peak_bytes)
"""


def counted(candidate):
    """The most bytes that rank 0 held in two short epochs; None if it went over CAP."""
    short = {"SAMPLES": str(BATCH), "EPOCHS": "2", "MICRO": str(candidate["micro"])}
    os.environ |= short
    fresh(candidate["name"])
    limits = launch.Limits(timeout=120, device_memory=int(CAP))
    try:
        variables = {"program": str(program)}
        reports = launch.torchrun(
            AROUND, candidate["ranks"], variables=variables, limits=limits
        )
    except launch.RankFailed as error:
        if "out of memory" not in str(error):
            raise
        return None
    finally:
        os.environ |= {name: str(value) for name, value in decided.items()}
    return reports[0].peak


peaks = {"chosen": counted(chosen), "without a margin": counted(risky)}

# %%
rehearsed = as_chosen.memory.peak_bytes
rows = []
for name, one, counts in (
    ("chosen", chosen, f"{rehearsed / 1e6:.2f} MB"),
    ("without a margin", risky, "not tried"),
):
    measured = f"{peaks[name] / 1e6:.2f} MB" if peaks[name] else "over the cap"
    rows.append((one["name"], f"{one['bytes'] / 1e6:.2f} MB", counts, measured))
assert peaks["chosen"]
if not ON_GPUS:
    assert 0.8 < chosen["bytes"] / peaks["chosen"] < 1.2
    assert abs(rehearsed / peaks["chosen"] - 1) < 0.05
    assert peaks["without a margin"] is None
head = "", "predicted", "rehearsed", "measured"
Table(head, rows, f"a rank holds at most; cap {CAP / 1e6:.2f} MB")

# %%
outcome = "fits" if peaks["without a margin"] else "fails"
card["margin"] = beside("without_margin", predicted="fits", measured=outcome)
card["margin"]

# %% [markdown]
# On the CPU, the plan without a margin runs out of memory. It was predicted half a megabyte below the cap and went over it, so for one rank the
# formula is too low by more than that. For two ranks it is too high, because it assumes that more layers are gathered at once than really are. A
# formula can be wrong in both directions, and that is what the margin is for. The rehearsal is closer, because it runs your own lines.
#
# ### The same file among 512
#
# Does the program scale as it is? The rehearsal can be any rank of a world that you do not have. `fully_shard` cuts each matrix by rows. A matrix
# of this model has at most four times `WIDTH` rows, and there are 512 ranks.

# %%
# %%guess times_its_share
# A 512th of the weights would be a fair share. How many times as much does rank 0 hold?
...

# %%
spec = importlib.util.spec_from_file_location("your_run", program)
yours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(yours)  # imports the file as a module; nothing is launched
many = {"BATCH": 512 * chosen["micro"], "SAMPLES": 512 * chosen["micro"]}
os.environ |= {name: str(value) for name, value in many.items()}

# %%
# %rehearse -n 512 --steps 2 --into of_512 {program}

# %%
os.environ |= {name: str(value) for name, value in decided.items()}
model = yours.Model()
fair = sum(w.numel() for w in model.parameters()) * 4 / 512
rows_each = {name: -(-len(w) // 512) for name, w in model.named_parameters()}
first = sum(4 * rows_each[n] * w[0].numel() for n, w in model.named_parameters())
held = of_512.memory.peak_parts["weights"]
print(f"rank 0 of 512 holds {held:,} B of weights; a 512th is {fair:,.0f} B")
assert held == first
assert ON_GPUS or held > 1.5 * fair  # on GPUs most matrices have rows enough for all
times = {"predicted": first / fair, "calculated": held / fair}
card["among 512"] = beside("times_its_share", **times)
card["among 512"]

# %% [markdown]
# The prediction is exact to the byte, and it is a warning. A row is the smallest piece. If a matrix has fewer rows than there are ranks, each of
# the first ranks holds a whole row, and the last ranks hold nothing of the matrix. The matrices of a model of real size have thousands of rows, and
# there it does not matter. (The mean loss of 1.000 that the rehearsal prints means nothing, because its tensors have no numbers.)
#
# ## Break
#
# Now rank 1 kills itself when 27 steps are done, in the middle of a run that nobody watches. It gets no chance to clean up: `SIGKILL` cannot be
# caught, and it is also what the kernel sends when the memory of a node is used up.

# %%
# %%guess lost_steps
# A save after every 10 steps, and a death after 27. How many steps have to be computed
# a second time?
...

# %%
room = fresh("broken")
os.environ["KILL"] = "1:27:0"
limits = launch.Limits(timeout=240)
try:
    launch.torchrun(launch.Script(program), RANKS, limits=limits)
except launch.RankFailed as error:
    failed = error
finally:
    del os.environ["KILL"]
print("\n".join(str(failed).splitlines()[:2]))
assert [failure.rank for failure in failed.failures] == [1]

# %%
left = sorted(path.name for path in room.iterdir())
died_at = max(history(room)[0])
saved = resume_from(room, BATCH)[1]
print(f"on the disk: {', '.join(left)}; the log ends with step {died_at}")
assert saved == 27 - 27 % EVERY
card["lost steps"] = beside(
    "lost_steps", predicted=27 % EVERY, measured=died_at - saved
)
card["lost steps"]

# %% [markdown]
# The log ends with step 27, but the newest whole checkpoint holds 20 steps. The seven steps between them exist only as lines in the log.
#
# How often does this happen in real runs? Llama 3 405B had 419 unexpected interruptions in 54 days on 16,384 GPUs. The team of OPT-175B published
# its logbook: more than 40 restarts between November 17 and December 3, 2021, on 992 GPUs. If failures simply grow with the number of GPUs, do the
# two agree?

# %% tags=["nbval-check-output"]
from workshop.predict.failures import Failures

by_llama = Failures().seconds_between(992) / 3600
of_opt = 16 * 24 / 40  # hours, at most: the logbook says "40+"
print(f"992 GPUs by Llama 3's rate: an interruption every {by_llama:.0f} hours")
print(f"992 GPUs of OPT-175B:       a restart every {of_opt:.1f} hours or less")
state = 175e9 * (2 + 8)  # weights in 16 bits, two moments in fp32
print(f"its checkpoint: {state / 1e12:.2f} TB predicted,", end=" ")
print(f"or {state / 2**40:.1f} TiB; the logbook has 1.6 TB")
assert 5 < by_llama / of_opt < 6

# %% [markdown]
# They do not: OPT was restarted at least five times as often, and its logbook also counts restarts because of the training itself, such as a loss
# that overflowed. The rate of failures is a property of a cluster and a team. Plan with your own as soon as you have one. (The predicted checkpoint
# is 1.75 TB, which is 1.6 TiB. It fits if the logbook's TB are TiB.)
#
# ## Heal
#
# To make it harder, the disk gets what real disks have: a copy of a later checkpoint that was cut off, and a folder whose writer died before it was
# renamed.

# %%
cut_off = shutil.ignore_patterns(".metadata")
newest = room / f"step-{saved}"
shutil.copytree(newest, room / f"step-{saved + 2 * EVERY}", ignore=cut_off)
shutil.copytree(newest, room / f"step-{saved + EVERY}.part")
print(*sorted(path.name for path in room.iterdir()))
where, done, sample = resume_from(room, BATCH)
print(f"your function: {where.name}, {done} steps done, sample {sample} is next")
assert (where, done, sample) == (newest, saved, saved * BATCH)

# %% [markdown]
# Your function now becomes a part of the program. Its cell is copied in front of `main`, and `main` calls it:

# %%
answer = resume_from.source.strip()  # the text of your cell
text = program.read_text()
assert text.count("= saved_in(room)\n") == text.count("\n\ndef main():") == 1
text = text.replace("= saved_in(room)\n", "= resume_from(room, BATCH)\n")
program.write_text(text.replace("\n\ndef main():", f"\n\n{answer}\n\n\ndef main():"))
compile(program.read_text(), str(program), "exec")
print("your_run.py calls your function")

# %% [markdown]
# And now nobody watches. The next cell runs the command that you will type on your own machine, without the workshop: `torchrun --max-restarts=1`.
# So that there is something to heal, rank 0 kills itself as well, when 38 steps are done. torchrun then starts all ranks again, and they look for a
# checkpoint on the disk.

# %%
# %%guess equal --choices bits,rounding,neither
# Two deaths, three starts. Compare the 48 losses that count with those of the
# unbroken run: equal to the last bit, only to rounding, or neither?
...


# %%
def by_torchrun(ranks, seconds=240, **more):
    """What the plain command prints; after `seconds` it is ended, with its ranks."""
    words = ["--standalone", f"--nproc-per-node={ranks}", "--max-restarts=1"]
    # keeps a second start from finding the first one's old addresses (gloo)
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if torch.accelerator.device_count() < ranks:
        own["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-m", "torch.distributed.run", *words, str(program)]
    started = subprocess.Popen(
        command, env={**os.environ, **own, **more}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        printed, _ = started.communicate(timeout=seconds)
    finally:
        if started.poll() is None:
            started.terminate()  # torchrun ends its ranks
            time.sleep(5)
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, printed[-2000:]
    return printed


began = time.perf_counter()
printed = by_torchrun(RANKS, KILL="0:38:0")
healing = time.perf_counter() - began
print("\n".join(line for line in printed.splitlines() if line.startswith("epoch")))

# %%
healed, _ = history(room)
lines = [line.split() for line in (room / "log").read_text().splitlines()]
starts = []  # for each start: the steps done before it, and its losses
for step, loss, _ in lines:
    if not starts or int(step) != starts[-1][0] + len(starts[-1][1]) + 1:
        starts.append((int(step) - 1, []))
    starts[-1][1].append(float(loss))
assert [before for before, _ in starts] == [0, saved, 38 - 38 % EVERY]
figure, axis = new_figure(7.0, 2.8)
gray = {"color": "#BBBBBB", "linewidth": 12, "solid_capstyle": "butt"}
axis.plot(list(unbroken), list(unbroken.values()), label="no break", **gray)
for number, (before, losses) in enumerate(starts):
    steps = range(before + 1, before + 1 + len(losses))
    look = {"color": rank_colour(number), "marker": "o", "markersize": 9 - 3 * number}
    axis.plot(steps, losses, label=f"start {number + 1}", **look)
    if steps[-1] < STEPS:  # a rank died
        axis.axvline(steps[-1] + 0.5, color="#555555", linestyle=":")
axis.set_xlabel("step")
axis.set_ylabel("loss")
legend(figure, 4)
Picture(figure, "the losses of three starts lie on those of the unbroken run")

# %%
apart = max(abs(healed[step] - unbroken[step]) for step in unbroken)
assert apart == 0 if not ON_GPUS else apart < 1e-2
same = "bits" if apart == 0 else "rounding" if apart < 1e-2 else "neither"
print(f"{STEPS} steps, {len(lines)} computed, largest difference {apart:g}")
card["healed"] = beside("equal", predicted="bits", measured=same)
card["healed"]

# %% [markdown]
# A dotted line is a death. Where two circles lie on each other, a step was computed twice. On the same ranks the healed run is the unbroken run, to
# the last bit. The weights, both moments and the number of steps done (in the folder's name) came from the disk, and everything else, also the
# position in the text, is a function of the step. (On GPUs a kernel may add up numbers in another order each time. Then two unbroken runs differ as
# well, and you can ask for equality only as far as these two agree.)
#
# (Above, epoch 3 is printed by two starts. A mean covers only the steps of its own start, so it can differ from that of the unbroken run.)
#
# **With another number of ranks.** One rank continues with what two have saved at step 30, as if half of the machine had to be given back. The
# batch is the same, but sums are taken in another order.

# %%
alone = fresh("alone")
second = f"step-{38 - 38 % EVERY}"  # the newest checkpoint when rank 0 died
shutil.copytree(room / second, alone / second)
launch.torchrun(launch.Script(program), 1, limits=limits)
by_one, _ = history(alone)
apart_by_one = max(abs(by_one[step] - unbroken[step]) for step in by_one)
print(f"steps {min(by_one)} to {max(by_one)}: at most {apart_by_one:.0e} apart")
assert min(by_one) == 39 - 38 % EVERY
assert 0 < apart_by_one < 1e-2

# %% [markdown]
# ## Compress
#
# The run is over, and now the model is to be used. A sharded checkpoint is not what you hand to others, so it first becomes one file, and the
# moments stay behind. Then the matrices get fewer bits: 8 or 4, with a scale of 16 bits for each 32 neighbors, as in lesson 53. Norms and biases
# stay as they are. (The losses below are those on the text that the model has trained on. Judge a real model by text that it has not seen.)
#
# **Predict** the bytes: bits / 8 + 2 / 32 for each weight of a matrix.

# %%
# %%guess loss_at_4_bits
# With 32 bits, the loss of this model on the CPU is about 1.33. What is it with 4 bits?
...

# %%
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

dcp_to_torch_save(room / f"step-{STEPS}", folder / "whole.pt")
weights = torch.load(folder / "whole.pt", weights_only=True)["model"]
samples = torch.cat([yours.rows_of(s, 0, 1) for s in range(0, SAMPLES, BATCH)])


def rounded(weight, bits, group=32):
    """Bytes, and the numbers that are left, of a matrix on the grid of its groups."""
    most = 2 ** (bits - 1) - 1
    parts = weight.reshape(-1, group)
    scales = (parts.abs().amax(1, keepdim=True) / most).half()
    codes = (parts / scales.float()).round().clamp(-most, most).to(torch.int8)
    kept = codes
    if bits == 4:  # two codes in a byte
        kept = (codes[:, ::2] & 15) | (codes[:, 1::2] << 4)
    return kept.nbytes + scales.nbytes, (codes * scales.float()).view_as(weight)


@torch.no_grad()
def loss_of(model):
    logits = model(samples[:, :-1]).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, samples[:, 1:].flatten()).item()


# %%
matrices = {name for name, w in weights.items() if w.dim() == 2}
in_them = sum(weights[name].numel() for name in matrices)
others = sum(w.nbytes for name, w in weights.items() if name not in matrices)
rows, measured, losses = [], {}, {}
for bits in (32, 8, 4):
    state, size = dict(weights), others
    for name in matrices:
        taken = weights[name].nbytes
        if bits < 32:
            taken, state[name] = rounded(weights[name], bits)
        size += taken
    model.load_state_dict(state)
    measured[bits], losses[bits] = size, loss_of(model)
    expected = others + in_them * (4 if bits == 32 else bits / 8 + 2 / 32)
    rows.append((f"{bits}", f"{expected:,.0f} B", f"{size:,} B", f"{losses[bits]:.4f}"))
    assert size == expected
assert ON_GPUS or abs(losses[32] - 1.33) < 0.05
assert abs(losses[8] - losses[32]) < 0.02
assert abs(losses[8] - losses[32]) < abs(losses[4] - losses[32]) < 0.5
Table(("bits", "predicted", "counted", "loss"), rows)

# %%
card["4 bits"] = beside("loss_at_4_bits", measured=losses[4])
card["4 bits"]

# %% [markdown]
# The predicted bytes are exact. Eight bits hardly change the loss. Four bits change it more. (Here every weight is rounded to the nearest code;
# GPTQ, lesson 53, can get some of that back.) Which one you take depends on who pays: you pay for memory as long as the model serves, and your
# users pay for the loss.
#
# ## Serve
#
# At last the model writes. The plain loop reads the whole text again for each new token. The loop with a *KV cache* computes only the new token,
# and keeps the keys and values of all earlier ones. Here it is by hand for PyTorch's own layer, and it must write the same text.

# %%
# %%guess positions
# 16 tokens are read and 16 are written. How many times as many positions does the plain
# loop compute as the loop with a cache?
...


# %%
F = torch.nn.functional


@torch.inference_mode()
def with_cache(model, tokens, cache):
    """Logits behind the new tokens; `cache` has the keys and values of earlier ones."""
    first = cache[0][0].shape[1] if cache else 0
    places = torch.arange(first, first + len(tokens))
    x = model.embed(torch.tensor(tokens)) + model.places(places)
    for number, layer in enumerate(model.layers):
        own = layer.self_attn
        qkv = F.linear(layer.norm1(x), own.in_proj_weight, own.in_proj_bias)
        q, k, v = qkv.unflatten(-1, (3, own.num_heads, -1)).permute(1, 2, 0, 3)
        if number in cache:
            k, v = (
                torch.cat(two, 1) for two in zip(cache[number], (k, v), strict=True)
            )
        cache[number] = k, v  # (heads, tokens so far, width of a head)
        seen = torch.arange(k.shape[1]) <= places[:, None]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + own.out_proj(mixed.transpose(0, 1).flatten(1))
        x = x + layer.linear2(F.gelu(layer.linear1(layer.norm2(x))))
    return model.head(model.norm(x[-1]))


@torch.inference_mode()
def again(model, tokens, cache):
    """Logits behind all tokens so far, which `cache` only lists."""
    cache.setdefault("tokens", []).extend(tokens)
    return model(torch.tensor([cache["tokens"]]))[0, -1]


# %%
def written(logits_of, prompt, count):
    """The likeliest tokens one by one, how sure each was, and the seconds."""
    cache, text, sure, new = {}, list(prompt), [], list(prompt)
    began = time.perf_counter()
    for _ in range(count):
        logits = logits_of(model, new, cache)
        best, second = logits.topk(2).values.tolist()  # waits for the device
        new = [int(logits.argmax())]
        text, sure = text + new, [*sure, best - second]
    return text[len(prompt) :], sure, time.perf_counter() - began


# %%
model.load_state_dict(weights)
computed = []  # how many positions each call computes
count_places = model.layers[0].norm1.register_forward_pre_hook(
    lambda _, args: computed.append(args[0].numel() // WIDTH)
)
prompt, positions, texts = samples[0, :16].tolist(), {}, {}
for way in (again, with_cache):
    computed.clear()
    texts[way] = written(way, prompt, 16)
    positions[way] = sum(computed)
count_places.remove()
plain, cached = texts[again], texts[with_cache]
print(
    repr(bytes(prompt).decode()), "->", repr(bytes(cached[0]).decode(errors="replace"))
)
for mine, token, margin in zip(cached[0], *plain[:2], strict=True):
    if mine != token:
        assert margin < 1e-3, "another token, and it was not close"
        break
print(f"{positions[again]} positions without a cache, {positions[with_cache]} with it")
expected = sum(range(16, 32)) / (16 + 15)
ratio = positions[again] / positions[with_cache]
assert ratio == expected
card["positions"] = beside("positions", predicted=expected, measured=ratio)
card["positions"]

# %% [markdown]
# How fast could it be? Each new token needs every weight once. This gives a bound by bytes: the bandwidth of the memory, divided by the bytes of the
# weights. It holds only if the weights do not fit into the processor's cache, which delivers them faster than the memory does. Ours may fit. The
# bandwidth is measured by adding up a large tensor.

# %%
large_tensor = torch.ones(16_000_000)  # 64 MB
reads = []
for _ in range(5):
    began = time.perf_counter()
    large_tensor.sum().item()
    reads.append(time.perf_counter() - began)
bandwidth = large_tensor.nbytes / min(reads)
per_second = {}
for way in (again, with_cache):
    per_second[way] = 16 / min(written(way, prompt, 16)[2] for _ in range(3))
bound = bandwidth / measured[32]
rows = [
    (name, f"{speed:,.0f}", f"{speed / bound:.0%}")
    for name, speed in (
        ("without a cache", per_second[again]),
        ("with a cache", per_second[with_cache]),
        ("bound by bytes", bound),
    )
]
assert per_second[with_cache] < bound
memory = f"memory gives {bandwidth / 1e9:.1f} GB/s"
Table(("", "tokens per second", "of the bound"), rows, memory)

# %% [markdown]
# The cache saves eleven of twelve positions but much less of the time, and both loops are far below the bound. In a model of half a million weights,
# a token is nearly all overhead: many calls from Python, each with little work. With billions of weights you come much closer to the bound by bytes,
# and the cache saves what it promises. So measure where you are before you optimize.
#
# ## The report card
#
# The report card shows what you wanted, guessed and predicted next to what happened. Your guesses are in it if you made them.


# %%
def row_of(stage, wanted, three):
    """A line of the card: the guess, the prediction and what happened."""
    numbers = three.guess, three.predicted, three.truth
    shown = [three.question.shown(number)[0] for number in numbers]
    return [stage, wanted, *shown]


wanted = {
    "plan": ("ranks of the plan", "the cheapest"),
    "time": ("training", f"at most {DEADLINE:.0f} s"),
    "margin": (f"{CAP / 1e6:.1f} MB, planned without a margin", "fits"),
    "among 512": ("rank 0 of 512, times a fair share", "1"),
    "lost steps": ("steps lost by the first death", f"at most {EVERY}"),
    "healed": ("healed and unbroken run are equal in", "bits"),
    "4 bits": ("loss with 4 bits", f"near {losses[32]:.3f}"),
    "positions": ("positions without a cache, by those with it", "above 1"),
}
assert set(card) == set(wanted)
rows = [row_of(*wanted[name], card[name]) for name in wanted]
Table(("stage", "wanted", "guessed", "predicted", "happened"), rows)

# %% [markdown]
# The next table shows what it cost. The lines that are easily left out are those about work that was paid for twice. The
# first two lines count the steps alone. The third is a whole command, with its two starts of Python on every rank, and the
# last is the part of it in which no step was computed.

# %%
computed_steps = sum(len(losses) for _, losses in starts)
twice = computed_steps - STEPS
a_step = (clock[STEPS] - clock[1]) / (STEPS - 1)  # of the unbroken run, with saves
healed = computed_steps - 27  # steps of the command that healed the run
costs = [
    ("the steps without a break", f"{STEPS}", STEPS * a_step),
    ("computed twice", f"{twice}", twice * a_step),
    ("the command that healed it", f"{healed}", healing),
    ("of that, not in steps", "-", max(healing - healed * a_step, 0)),
]
rows = [
    (what, steps, f"{seconds:.1f} s", f"{RANKS * seconds / 3600 * PRICE:.4f}")
    for what, steps, seconds in costs
]
assert twice == 27 % EVERY + 38 % EVERY
Table(("", "steps", "time", f"price, at {PRICE:.2f} per rank and hour"), rows)

# %% [markdown]
# Two deaths cost 15 steps of 48, because the saves were far apart for such a short run. The other cost is easy to forget: each of the command's two
# starts waits until Python has started on every rank and torch is imported. On a cluster the queue, the container and the reading of the checkpoint
# are added. Llama 3's authors kept more than 90 % of the time for training. Measure your own share.
#
# ## Your own run
#
# The program is yours now: `your_run.py`, which calls your `resume_from`. It lies in the folder of this kernel (`program` is its path) and is
# deleted with it, so copy it, or copy the cell above. What do you change to run it elsewhere?
#
# - **The text**: `TEXT` and `rows_of`. Keep them a function of the sample's number ([71_data](../day7_own_model/71_data.ipynb) has real ones).
# - **The model**: `Model`. Cut it layer by layer, as here ([25_fsdp](../day2_data_parallel/25_fsdp.ipynb)). With `MixedPrecisionPolicy` the layers
#   compute with weights in bf16, while each rank's shards stay in fp32.
# - **The budget**: `WIDTH`, `MICRO`, `BATCH`, `EVERY`, from your own call of `choose_run`, with a trial on one node instead of the trial above. The
#   program takes them from its environment, as the letter below shows.
# - **The disk**: `CHECKPOINT` must be a folder that all nodes see. Delete old checkpoints; keep two.
# - **The place**: a batch script for Slurm, which lesson 61 calls a letter. Here it is for two nodes of four ranks. On each node it starts torchrun
#   with `--max-restarts=1`, as in the run that healed above. If a node is lost or the job is preempted, Slurm starts it again (`--requeue`), which is
#   a third start like the others. At the time limit it does not, so a minute before, the letter itself asks to be queued again (`signal`). After
#   `scancel` the job stays stopped.

# %%
from workshop.facts.tree import ROOT
from workshop.site.job import Job
from workshop.site.slurm_script import slurm_script
from workshop.site.spec import read_site

site = read_site(ROOT / "examples/sites/slurm-apptainer.toml")
settings = {name: str(decided[name]) for name in decided if name != "OMP_NUM_THREADS"}
settings["CHECKPOINT"] = "/fast/ada/your_run"
job = Job(
    "your-run",
    "your_run.py",
    nnodes=2,
    nproc_per_node=4,
    time="04:00:00",
    requeue=True,
    signal="USR1@60",
    max_restarts=1,
    environment=settings,
    folder="/fast/ada",
)
letter = slurm_script(site, job)

# %%
flags = "nodes", "ntasks-per-node", "time", "requeue", "signal"
asks = [f"#SBATCH --{flag}" for flag in flags]
lines = letter.splitlines()
requested = [line for line in lines if line.startswith(tuple(asks))]
exports = [f"export {name}={value}" for name, value in sorted(settings.items())]
print(*requested, *exports, sep="\n")
assert [line.split("=")[-1] for line in requested[:2]] == ["2", "1"]
for words in ("--nproc-per-node=4", "--max-restarts=1", "your_run.py", "--requeue"):
    assert words in letter, words
assert len(requested) == len(asks)
assert set(exports) <= set(lines)

# %% [markdown]
# The letter is a program too, and bash can check its syntax without running it:

# %%
read = subprocess.run(
    ["bash", "-n"], input=letter, text=True, capture_output=True, timeout=20
)
assert read.returncode == 0, read.stderr
print("bash finds no syntax error in the letter")

# %% [markdown]
# `%%sbatch -N 2 -n 4` submits such a letter from a notebook, and `workshop export` writes one for a script.
#
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("81_capstone")

# %% [markdown]
# ## What to take away
#
# - **Decide with numbers, and give predictions a margin.** On the CPU, the plan without a margin looked cheaper and ran out of memory.
# - **Rehearse your own file**, as one of two and as one of many. It finds what formulas leave out: here a row that cannot be cut any further.
# - **A run that heals needs four habits**: data as a function of the sample's number, a checkpoint that is whole or not there, a look at the disk
#   at each start, a log.
# - A crash costs the steps since the last save, and the time of a start. Count both.
# - Healed on the same ranks, the run is the same to the last bit. On another number of ranks it is the same up to rounding.
# - Fewer bits and a cache are decisions with a price as well: bytes are exact, the loss and the speed you have to measure.
#
# This was the last lesson. `%progress` shows which exercises are still open, and all your guesses beside what happened.
#
# ## Sources
#
# - S. Zhang, S. Roller, N. Goyal and others, *OPT-175B chronicles*, github.com/facebookresearch/metaseq,
#   `projects/OPT/chronicles/27_percent_update.md` (December 3, 2021: "40+ restarts", a checkpoint of 1.6 TB in 992 files). The model: S. Zhang et
#   al., *OPT*, 2022, [arXiv:2205.01068](https://arxiv.org/abs/2205.01068) (992 A100s; weights in 16 bits, Adam's state in 32).
# - Llama Team, *The Llama 3 Herd of Models*, 2024, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783), section 3.3.4 (419 unexpected
#   interruptions in 54 days, more than 90 % effective training time).
# - PyTorch documentation: *Distributed Checkpoint*, *fully_shard*, *torchrun (Elastic Launch)*.
# - J. W. Young, *A first order approximation to the optimum checkpoint interval*, Comm. ACM 17(9), 1974.
