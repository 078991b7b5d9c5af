# %% [markdown]
# # What if the wire is slow?
#
# - **You need** `21_collectives` and `22_ddp`.
# - **It takes** 30 minutes to read and try, under a minute to run.
# - **What runs where:** all of it here, on two ranks, and unchanged on GPUs. Published figures come from 64 GPUs on Ethernet.
#
# ## Question
#
# Data parallelism sends eight bytes for each parameter and step: four up, four down. Inside a machine that is hidden behind
# backward. Between buildings it is not. How few bytes can carry a gradient, and what does the loss say to that?

# %%
# %load_ext workshop
import numpy as np

from workshop import show
from workshop.facts.units import format_bytes, format_seconds

# %% [markdown]
# ## Three ways to say less
#
# | | a gradient of n numbers costs | what is lost |
# |---|---|---|
# | **narrower numbers** | 16 bits each | digits |
# | **fewer numbers**: a matrix as two thin ones (PowerSGD) | r (rows + columns) numbers | small directions |
# | **one bit**: the sign, and one scale for a block | 1.03 bits each | nearly everything |
# | **speak rarely** (DiLoCo) | everything, once in H steps | agreement in between |
#
# The first needs nothing more: rounding errors have no direction, and many steps cancel them. The second and third lose so much that
# they have to **remember**.
#
# ## Remember what you did not say
#
# Here is a gradient of three numbers, the same in each step. One bit can only say "plus" or "minus", times one size for all.
# What arrives is always the same, and always wrong:


# %% tags=["nbval-check-output"]
def one_bit(x):
    """The sign of each number times the mean magnitude."""
    return np.where(x >= 0, 1.0, -1.0) * np.abs(x).mean()


gradient = np.array([4.0, -1.0, 1.0])
print("gradient", gradient, "  sent", one_bit(gradient))

# %% [markdown]
# **Error feedback** keeps the difference, and adds it to what is to be sent next.
#
# ### Exercise: the memory


# %%
# %%exercise send_with_memory
def send_with_memory(gradient, memory, compress):
    """What is sent of a gradient; `memory`, of the same shape, is updated in place."""
    sent = ...
    ...
    return sent


# %% tags=["nbval-check-output"]
memory, with_memory, without = np.zeros(3), np.zeros(3), np.zeros(3)
print("mean of what was sent,   with memory                without")
for step in range(1, 101):
    with_memory += send_with_memory(gradient, memory, one_bit)
    without += one_bit(gradient)
    if step in (1, 10, 100):
        shown = " ".join(f"{value:+.2f}" for value in with_memory / step)
        print(
            f"after {step:>3} steps          {shown}          {' '.join(f'{v:+.2f}' for v in without / step)}"
        )
assert np.abs(with_memory / 100 - gradient).max() < 0.2

# %% [markdown]
# With memory the mean of what was sent tends to the gradient itself. Nothing is lost, it is only late (Karimireddy et al., 2019).
#
# ## One bit on a wire
#
# Two details make it real. `torch` has no type of one bit: eight signs are packed into a byte. And signs cannot be added on the
# way, as a ring does. So each rank is the *server* of an Nth of the vector: an **all_to_all** brings it that part from everybody; it
# averages; an **all_gather** hands the averages out, as signs again. Read `SignMean` in `workshop/parallel/signs.py`; it is ten
# lines. Its bytes, predicted:


# %% tags=["nbval-check-output"]
def ring(payload, ranks):
    """Bytes a rank sends in an all_reduce of `payload` bytes, or in the two phases of signs."""
    return 2 * (ranks - 1) / ranks * payload


def sign_payload(values, ranks, block=1_024):
    """Bytes of a vector as signs, cut into `ranks` parts of whole blocks, a 4-byte scale for each block."""
    blocks = -(-values // (ranks * block)) * ranks
    return blocks * (block // 8 + 4)


for values in (10_000, 1_000_000, 1_000_000_000):
    ratio = 4 * values / sign_payload(values, 4)
    print(
        f"{values:>13,} numbers: {sign_payload(values, 4):>11,} bytes as signs, {ratio:.1f} times less than fp32"
    )

# %% [markdown]
# ## Why not signs into Adam?
#
# Memory repays later what it owes now. That is right for an optimizer in which late and early add up to the same: SGD, with or without
# momentum. Adam divides by the root of the *squared* gradients. What signs make of a gradient, squared, is something else.
#
# Tang et al. (2021) saw that this second moment hardly changes after the first part of training. **1-bit Adam** begins as
# plain Adam, then freezes the second moment, and from there on only the momentum travels, as signs with memory. What is left is linear.
#
# ## Speak rarely
#
# **DiLoCo** (Douillard et al., 2023): each rank is an *island*. It trains alone for H steps, with its own AdamW. Then the islands
# meet. The mean of what they moved is taken as a gradient for an outer optimizer, SGD with Nesterov momentum. Only weights travel,
# once in H steps.
#
# ### Exercise: the meeting

# %%
# %%exercise outer_step
import torch.distributed as dist


def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    """DiLoCo's meeting of islands: anchor, weights and momentum, all 1-D tensors, are updated in place."""
    mean = weights.clone()
    ...
    moved = anchor - mean
    ...


# %% [markdown]
# ## Predict
#
# A language model of 130,000 parameters, two ranks, 60 steps on real text. Eight ways to train it. **Say before you run:** which of
# them will reach the loss of full gradients? Which sends least? What does the last one reach, that never speaks?

# %%
RANKS, STEPS, WARMUP, H, RANK = 2, 60, 15, 5, 4
shape = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 192,
}

# %% [markdown]
# ## Run

# %%
# %%torchrun -n {RANKS} --pass shape,STEPS,WARMUP,H,RANK --into trained
import gc

import torch
import torch.distributed as dist

from workshop import report
from workshop.measure import measure
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches
from workshop.parallel.ddp import begin_together, wrap_ddp
from workshop.parallel.diloco import DiLoCo
from workshop.parallel.onebit_adam import OneBitAdam

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.accelerator.current_accelerator() or torch.device("cpu")
text = TextBatches(seq_len=64, global_batch=16, rank=rank, num_ranks=ranks)
LR = 4e-3


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=LR, fused=True)


def hooked(hook, **options):
    """DDP; the hook decides what carries the gradients."""
    model = wrap_ddp(GPT(GPTConfig(**shape)).to(device), hook=hook, **options)
    return model, adam(model)


def own(make):
    """No DDP: the optimizer itself does the sending."""
    model = GPT(GPTConfig(**shape)).to(device)
    begin_together(model)
    return model, make(model)


def one_bit(error_feedback):
    return lambda model: OneBitAdam(model.parameters(), LR, warmup=WARMUP, error_feedback=error_feedback)


def islands(inner_steps):  # twelve meetings are too few for the paper's 0.7 and momentum 0.9: a plain mean
    return lambda model: DiLoCo(adam(model), inner_steps, outer_lr=1.0, outer_momentum=0.0)


WAYS = {
    "fp32": lambda: hooked("none"),
    "fp16": lambda: hooked("fp16"),
    "PowerSGD": lambda: hooked("powersgd-by-hand", rank=RANK),
    "signs into Adam": lambda: hooked("sign"),
    "1-bit Adam, no memory": lambda: own(one_bit(error_feedback=False)),
    "1-bit Adam": lambda: own(one_bit(error_feedback=True)),
    "DiLoCo": lambda: own(islands(H)),
    "never speak": lambda: own(islands(10**9)),
}


@torch.no_grad()
def unseen_loss(model):
    """On text that training does not reach, the mean over ranks."""
    losses = [model(*batch) for step in (400, 401) for batch in text.step(step, device)]
    loss = torch.stack(losses).mean()
    dist.all_reduce(loss)
    return loss.item() / ranks


def train(model, optimizer):
    """Loss on unseen text after every 10 steps, and bytes this rank sent in each step."""
    losses, sent = [], []
    for step in range(STEPS):
        with measure(memory=False) as measured:
            for batch in text.step(step, device):
                loss = model(*batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        sent.append(sum(row.wire_bytes for row in measured.traffic))
        if step % 10 == 9:
            losses.append(unseen_loss(model))
    return losses, sent


for name, make in WAYS.items():
    torch.manual_seed(rank)
    report(**{name: train(*make())})
    gc.collect()
shapes = [tuple(p.shape) for p in GPT(GPTConfig(**shape)).parameters()]
report(shapes=shapes)
dist.destroy_process_group()

# %% [markdown]
# ## Compare: bytes

# %%
shapes = trained[0].shapes
num_params = sum(int(np.prod(size)) for size in shapes)
matrices = [size for size in shapes if len(size) == 2]
factors = sum(RANK * (rows + columns) for rows, columns in matrices)
vectors = num_params - sum(rows * columns for rows, columns in matrices)

full, signs = ring(4 * num_params, RANKS), ring(sign_payload(num_params, RANKS), RANKS)
low_rank = ring(4 * (factors + vectors), RANKS)
predicted = {
    "fp32": STEPS * full,
    "fp16": STEPS * full / 2,
    "PowerSGD": 2 * full + (STEPS - 2) * low_rank,  # hooks with memory send two steps in full
    "signs into Adam": 2 * full + (STEPS - 2) * signs,
    "1-bit Adam, no memory": WARMUP * full + (STEPS - WARMUP) * signs,
    "1-bit Adam": WARMUP * full + (STEPS - WARMUP) * signs,
    "DiLoCo": STEPS // H * full,
    "never speak": 0,
}

# %% tags=["nbval-check-output"]
print(f"{num_params:,} parameters, {STEPS} steps, bytes sent by rank 0")
for name, expected in predicted.items():
    measured = sum(trained[0][name][1])
    print(
        f"{name:<22} predicted {expected:>12,.0f}   measured {measured:>12,}   {measured / predicted['fp32']:6.1%} of fp32"
    )
    assert 0 <= measured - expected < 200, name

# %% [markdown]
# To the byte, but for 92 bytes under DDP: after its first step it tells all ranks, once, which gradient lies in which bucket.
# (All bytes are counted as they leave `torch.distributed`, as in a ring. Gloo and NCCL may choose other routes.)
#
# ## Compare: loss

# %%
losses = {name: trained[0][name][0] for name in predicted}
every_ten = {name: np.reshape(trained[0][name][1], (-1, 10)).sum(1).tolist() for name in predicted}
show.loss_by_bytes(losses, every_ten, every=10)

# %%
end = {name: values[-1] for name, values in losses.items()}
for name in sorted(end, key=end.get):
    print(f"{name:<22} loss {end[name]:.2f}   sent {format_bytes(sum(every_ten[name]), binary=False):>8}")
assert abs(end["fp16"] - end["fp32"]) < 0.15
assert end["PowerSGD"] < end["fp32"] + 0.15
assert end["1-bit Adam"] < end["1-bit Adam, no memory"] - 0.05, "memory pays"
assert end["1-bit Adam"] < end["signs into Adam"] - 0.1, "and so does the frozen second moment"
assert end["DiLoCo"] < end["never speak"], "and so do twelve meetings"

# %% [markdown]
# Read it from the right panel: the further left and down, the better.
#
# - **fp16** halves the bytes for nothing. It is the first thing to switch on.
# - **PowerSGD** sends a tenth after its first two steps and lies on the full curve. Gradients of matrices are nearly of low rank.
# - **1-bit Adam** comes close, with a thirtieth of the bytes after its warm-up. Without memory it hardly learns on: that is error feedback
#   switched off. Signs straight into Adam are worse still.
# - **DiLoCo** speaks in every fifth step and keeps most of the gain over never speaking. These are the first 60 steps, where weights move
#   fast: its hardest case.
#
# One training of one tiny model is an illustration and not a verdict. (The text is the manual of your Python. Another version brings
# another text, and other digits.) The papers have the long runs:
#
# | | published | source |
# |---|---|---|
# | 1-bit Adam | BERT-Large at Adam's convergence, up to 5 times less volume, up to 3.3 times the throughput | Tang et al., abstract |
# | DiLoCo | 8 workers on C4 as good as fully synchronous training, with 500 times less communication | Douillard et al., abstract |
#
# Is "5 times" what our count says? In the paper gradients are fp16, so a signed step is 16 / 1.03 = 15.5 times smaller, and a
# share of the steps is warm-up:

# %% tags=["nbval-check-output"]
smaller = 16 / (8 * sign_payload(2**30, 64) / 2**30)
for warmup in (0.0, 0.15, 0.3):
    print(f"warm-up {warmup:4.0%}: {1 / (warmup + (1 - warmup) / smaller):4.1f} times less volume")

# %% [markdown]
# Five times is a warm-up of 15 %. So it is the warm-up that costs, no longer the signs.
#
# ## Where does it pay?
#
# Compression costs time too, and helps only where the wire is what one waits for. Tang et al. clocked BERT-Large on 64 V100 in 16
# nodes (their table 1, milliseconds, fp16 gradients). Take the all_reduce 15.5 times smaller:

# %% tags=["nbval-check-output"]
clocked = {  # forward, all_reduce, the rest of backward, step
    "Ethernet, batch 64": (36.65, 2205.86, 33.63, 74.96),
    "Ethernet, batch 4,096": (137.80, 2259.36, 243.72, 74.92),
    "InfiniBand, batch 4,096": (131.04, 339.52, 237.92, 56.91),
}
for name, (forward, all_reduce, backward, step) in clocked.items():
    now = forward + all_reduce + backward + step
    then = now - all_reduce + all_reduce / smaller
    print(
        f"{name:<24} {now:7,.0f} ms a step, {all_reduce / now:.0%} of it all_reduce; with signs {then:4,.0f} ms, {now / then:.1f} times as fast"
    )

# %% [markdown]
# On Ethernet with a large batch 4.5 times, in the steps after the warm-up; the authors measured up to 3.3 times over all. On
# InfiniBand there is much less to gain. Modern NVLink and 400 Gbit/s networks hide an all_reduce behind backward (lesson 22), and nobody
# compresses there.
#
# ## Slow links: predict a step
#
# Eight islands, each a cluster of its own that needs 1 second for a step of a model of 8 billion parameters. They are joined by a link.
# What does a step take?

# %% tags=["nbval-check-output"]
from workshop.facts.device import LinkSpec
from workshop.predict.diloco import Islands, fewest_inner_steps

ways = {
    "fp32, every step": (1, 4.0),
    "fp16, every step": (1, 2.0),
    "signs, every step": (1, 1.03 / 8),
    "fp32, every 100": (100, 4.0),
    "fp32, every 500": (500, 4.0),
}
print(f"{'':<20}" + "".join(f"{rate:>9} Gbit/s" for rate in (1, 10, 100, 400)))
for name, (inner_steps, outer_bytes) in ways.items():
    times = []
    for gigabits in (1, 10, 100, 400):
        link = LinkSpec(f"{gigabits} Gbit/s", gigabits * 1e9 / 8)
        apart = Islands(8, link, inner_steps, outer_bytes)
        times.append(apart.seconds_per_step(inner_seconds=1.0, num_params=8e9))
    print(f"{name:<20}" + "".join(f"{format_seconds(seconds):>16}" for seconds in times))

for gigabits in (1, 10, 100):
    link = LinkSpec("between islands", gigabits * 1e9 / 8)
    print(
        f"{gigabits:>3} Gbit/s: H = {fewest_inner_steps(Islands(8, link), 1.0, 8e9):,} keeps the islands at work 95 % of the time"
    )

# %% [markdown]
# Over a home connection of 1 Gbit/s, full gradients take minutes for each second of work. One bit alone does not help enough. Speaking
# rarely does: with H = 500 the islands train half of the time, and at 10 Gbit/s nine tenths.
#
# ## At scale: 1,024 ranks
#
# Does the count hold in a large world? Here is the optimizer from above as a function. On two real ranks it was measured; now it is
# rehearsed as rank 0 of 1,024, with the sizes of Llama 3.2 1B. No byte is sent, yet the bits are packed and every collective is written
# down.


# %%
def one_bit_steps(**shape):
    """Three steps of 1-bit Adam, one of them warm-up."""
    import torch
    import torch.distributed as dist

    from workshop.models.gpt import GPT, GPTConfig
    from workshop.parallel.ddp import begin_together
    from workshop.parallel.onebit_adam import OneBitAdam

    if not dist.is_initialized():
        dist.init_process_group()
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model = GPT(GPTConfig(**shape)).to(device)
    begin_together(model)
    optimizer = OneBitAdam(model.parameters(), warmup=1)
    for _ in range(3):
        tokens = torch.randint(shape["vocab_size"], (1, 64), device=device)
        model(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


# %%
from workshop.facts import catalogue
from workshop.rehearse import rehearse

llama = catalogue.model("llama-3.2-1b")
sizes = {
    "vocab_size": llama.vocab_size,
    "hidden_size": llama.hidden_size,
    "num_layers": llama.num_layers,
    "num_heads": llama.num_heads,
    "num_kv_heads": llama.num_kv_heads,
    "intermediate_size": llama.ffn_hidden_size,
    "tied": llama.tied_embeddings,
}
small = rehearse(one_bit_steps, world_size=RANKS, steps=3, keywords=shape)
large = rehearse(one_bit_steps, world_size=1_024, steps=3, keywords=sizes)
show.traffic_table(large)

# %% tags=["nbval-check-output"]
assert sum(row.wire_bytes for row in small.traffic) == trained[0]["1-bit Adam"][1][-1] == signs
wire = sum(row.wire_bytes for row in large.traffic)
closed_form = ring(sign_payload(llama.num_params, 1_024), 1_024)
print(f"{RANKS} ranks:      rehearsed, measured and predicted: {signs:,.0f} bytes a step")
print(f"1,024 ranks:  rehearsed {wire:,} bytes a step, predicted {closed_form:,.0f}")
print(f"              full gradients: {ring(4 * llama.num_params, 1_024):,.0f}")
assert abs(wire - closed_form) <= 2

# %% [markdown]
# ## What to take away
#
# - Send 16 bits first: half the bytes, no memory, no tuning.
# - Whoever throws much away must remember it: **error feedback**. Nothing is lost, it is only late. It needs an optimizer that is linear in
#   the gradient.
# - **PowerSGD** sends two thin matrices, by plain all_reduces. **Signs** need two phases, all_to_all and all_gather.
# - **1-bit Adam** freezes the second moment. Its warm-up is then most of its bytes.
# - **DiLoCo** divides bytes by H. For islands far apart nothing else is enough.
# - Count first. Where the wire is hidden behind backward, fewer bytes buy nothing.
#
# Next: day 3. Cut the model itself.
#
# ## Sources
#
# - T. Vogels, S. P. Karimireddy, M. Jaggi, *PowerSGD*, NeurIPS 2019, arXiv:1905.13727, algorithm 1.
# - S. P. Karimireddy et al., *Error Feedback Fixes SignSGD and other Gradient Compression Schemes*, ICML 2019, arXiv:1901.09847.
# - H. Tang et al., *1-bit Adam*, ICML 2021, arXiv:2102.02888: algorithm 1, table 1.
# - A. Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023, arXiv:2311.08105, algorithm 1.
# - A. Douillard et al., *Streaming DiLoCo with overlapping communication*, 2025, arXiv:2501.18512.
# - PyTorch documentation, *DDP Communication Hooks*.
