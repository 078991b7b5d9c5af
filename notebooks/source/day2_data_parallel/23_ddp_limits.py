# %% [markdown]
# # When does data parallelism stop?
#
# - **You need** `22_ddp`.
# - **It takes** 20 minutes to read and try, under half a minute to run.
# - **What runs where:** all of it here. `--device-memory` gives each rank a small device, so that "it does not fit" is
#   something that happens to you and not a sentence. On GPUs set `CAP` to 2 GiB below: their allocator takes memory in
#   blocks of 20 MiB, and a cap of 64 MiB would feel that.
#
# ## Question
#
# Data parallelism is the first thing to reach for: N ranks, each with a full copy of the model, each with its own part of the
# batch. It makes training faster. Does it also make room for a larger model? You have one rank that is too small. Will four do?

# %%
# %load_ext workshop
from workshop import show
from workshop.facts.units import format_bytes

# %% [markdown]
# ## Predict
#
# What must one rank hold to train with AdamW in fp32, before any activation? Four bytes for each of these, for every parameter:
#
# | | bytes a parameter |
# |---|---|
# | weight | 4 |
# | gradient | 4 |
# | AdamW's two moments | 8 |
# | DDP's buckets, in which gradients travel | 4, or 0 if gradients live in them (`gradient_as_bucket_view=True`) |
#
# There is no "divided by N" in this table. Look for it again: every rank does the whole step on the whole model.
#
# ### Exercise: the arithmetic


# %%
# %%exercise ddp_bytes
def ddp_bytes(num_parameters: int, bytes_per_value: int = 4, bucket_view: bool = True) -> int:
    """Bytes a rank holds for weights, gradients, moments and gradient buckets."""
    return ...


# %% [markdown]
# Our model is a stack of eight square layers. Its width decides its size:

# %%
DEPTH = 8
CAP = 64 * 2**20  # 64 MiB: what a rank may hold


def parameters(width: int) -> int:
    """Weights and biases of DEPTH linear layers."""
    return DEPTH * (width * width + width)


for width in (256, 512, 768, 1024):
    needed = ddp_bytes(parameters(width))
    print(
        f"width {width:>4}: {parameters(width):>9,} parameters, {format_bytes(needed):>9} a rank",
        "" if needed <= CAP else "  too much",
    )

# %% [markdown]
# ### Exercise: the largest that fits


# %%
# %%exercise largest_under_cap
def largest_under_cap(cap_bytes: int, parameters) -> int:
    """The largest width, a multiple of 64, whose ddp_bytes are at most cap_bytes; 0 if there is none."""
    width = 0
    ...
    return width


# %% tags=["nbval-check-output"]
predicted_width = largest_under_cap(CAP, parameters)
print(f"prediction: width {predicted_width} is the largest; {predicted_width + 64} runs out of memory")

# %% [markdown]
# ## Run
#
# Four ranks, 64 MiB each. The program grows the model, width by width, trains two steps with DDP each time, and reports what
# the rank held. (Two steps, because the moments are born in the first.) It stops at the first width that does not fit.
# `--save` keeps the cell as a program of its own; we will need it again.

# %%
from workshop import launch

folder = launch.Session.get().directory  # a private folder that goes when the kernel goes
widths = [predicted_width + 64 * step for step in range(-4, 3)]

# %%
# %%torchrun -n 4 --device-memory {CAP} --pass widths,DEPTH --into grown --save {folder}/grow.py
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from workshop import report
from workshop.measure import count_from_here, held_bytes

dist.init_process_group()
device = torch.accelerator.current_accelerator() or torch.device("cpu")
torch.manual_seed(dist.get_rank())  # other data on each rank; DDP makes the weights equal
count_from_here()


def train_two_steps(width: int) -> int:
    """Bytes this rank holds after two steps."""
    layers = [torch.nn.Linear(width, width, device=device) for _ in range(DEPTH)]
    model = DDP(torch.nn.Sequential(*layers), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        batch = torch.randn(4, width, device=device)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    del batch
    return held_bytes()


held = {}
for width in widths:
    try:
        held[width] = train_two_steps(width)
    except torch.OutOfMemoryError:
        held[width] = None
        print("out of memory at width", width)
        break
report(held=held)
dist.destroy_process_group()

# %% [markdown]
# ## Compare

# %%
held = grown[0].held
tried = [width for width in widths if width in held]
show.predicted_and_measured(
    [f"width {width}" for width in tried],
    [ddp_bytes(parameters(width)) for width in tried],
    [held[width] for width in tried],
    cap=CAP,
)

# %% tags=["nbval-check-output"]
fitted = [width for width in tried if held[width] is not None]
worst = max(abs(held[width] / ddp_bytes(parameters(width)) - 1) for width in fitted)
print("the largest that trained:", max(fitted), "  predicted:", predicted_width)
assert max(fitted) == predicted_width
assert all(grown[rank].held.keys() == held.keys() for rank in range(4)), "all ranks stop at the same width"
assert worst < 0.02, worst

# %% [markdown]
# The arithmetic of four numbers is right to a percent. This is what it looks like when nobody catches the error. Read the message:
# what was asked for, what was free, what was held.

# %% tags=["raises-exception"]
# %%torchrun -n 4 --device-memory {CAP} --pass predicted_width,DEPTH
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group()
device = torch.accelerator.current_accelerator() or torch.device("cpu")
width = predicted_width + 64
model = DDP(
    torch.nn.Sequential(*[torch.nn.Linear(width, width, device=device) for _ in range(DEPTH)]),
    gradient_as_bucket_view=True,
)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
model(torch.randn(4, width, device=device)).square().mean().backward()
print("forward and backward are through")
optimizer.step()

# %% [markdown]
# It got through forward and backward, and failed in the optimizer's first step: that is when the moments are made, half of
# everything.
#
# ## More ranks
#
# So take more ranks. The very program from above, now on one, two, four and six of them, each with its own 64 MiB. **Predict first:**
# at which width does each stop?

# %%
stopped = {}
for n in (1, 2, 4, 6):
    result = launch.torchrun(
        launch.Script(folder / "grow.py"), n, limits=launch.Limits(device_memory=CAP, timeout=60)
    )
    stopped[n] = max(width for width, bytes_held in result[0].held.items() if bytes_held is not None)

# %% tags=["nbval-check-output"]
for n, width in stopped.items():
    print(f"{n} rank{'s' * (n > 1)}, {format_bytes(n * CAP):>9} in all: the largest width is {width}")
assert set(stopped.values()) == {predicted_width}

# %% [markdown]
# Six times the memory, the same model. Here is why. Each column is what one rank holds; the pale ones are copies, to the last
# bit, of the first.

# %%
P = parameters(predicted_width)
show.replicas({"weights": 4 * P, "gradients": 4 * P, "moments": 8 * P}, ranks=4, cap=CAP)

# %% [markdown]
# With N ranks, **(N - 1) / N of all memory holds what another rank holds too**. On 1,024 GPUs: 99.9 %. That is not a
# mistake in DDP; it is what DDP is. It divides the *data*.
#
# ## The same on paper: Llama 3.2 3B on 80 GB
#
# Count its parameters from its published configuration (28 layers, width 3,072, 24 heads of 128 with 8 for keys and values,
# feed-forward 8,192, vocabulary 128,256, input and output embeddings tied):

# %% tags=["nbval-check-output"]
vocabulary, hidden, layers, feed_forward, kv = 128_256, 3_072, 28, 8_192, 8 * 128
attention = 2 * hidden * hidden + 2 * hidden * kv  # queries and output, keys and values
one_layer = attention + 3 * hidden * feed_forward + 2 * hidden  # SwiGLU has three matrices; two norms
llama = vocabulary * hidden + layers * one_layer + hidden
print(f"{llama:,} parameters")

states = ddp_bytes(llama, bucket_view=False)
logits = 8_192 * vocabulary * 4  # one sequence of 8,192 tokens, fp32
print(f"weights, gradients, moments and buckets   {states / 1e9:6.1f} GB")
print(f"logits of one sequence of 8,192 tokens    {logits / 1e9:6.1f} GB, and their gradient once more")
print(
    f"together                                  {(states + 2 * logits) / 1e9:6.1f} GB of 80, before a single layer's activations"
)

# %% [markdown]
# A 3-billion-parameter model fills an 80 GB device before the first activation is stored. The layers between would keep tens of
# gigabytes more (lesson 13 counts them). The next larger one does not even begin to fit: Llama 3.1 8B has 8.03 billion parameters,
# 16 bytes each are 128 GB. On 8 GPUs, on 64, on 1,024: each of them would have to hold all of it.
#
# Mixed precision does not change the verdict: weights and gradients in bf16 are 2 + 2 bytes, the fp32 master copy and the
# moments 4 + 8: again 16 (Rajbhandari et al., 2020).
#
# ## The way out
#
# The copies are the reserve. If every rank holds the same 16 bytes for each parameter, then each may as well hold a **part**, and ask
# the others for the rest when it needs it. You know the two collectives for that: reduce-scatter and all-gather.
#
# - `24_zero`: what if nobody keeps everything? Stages 1, 2 and 3 shard the moments, then the gradients, then the weights.
# - `25_fsdp`: the same with PyTorch's own `fully_shard`, on the model that failed here.
#
# ## What to take away
#
# - DDP averages gradients; that is the only line it adds to training.
# - In fp32 with AdamW a rank holds 16 bytes a parameter, 20 with DDP's default buckets. Activations come on top.
# - Nothing in that is divided by the number of ranks. **More ranks make training faster, not the model larger.**
# - An out-of-memory error in the first `optimizer.step()` is the moments.
# - (N - 1) / N of a data-parallel group's memory is copies. Sharding lives on them.
#
# ## Sources
#
# - S. Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020, arXiv:2006.15704.
# - S. Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, SC 2020, arXiv:1910.02054, section 3.
# - I. Loshchilov, F. Hutter, *Decoupled Weight Decay Regularization*, ICLR 2019, arXiv:1711.05101 (AdamW).
# - A. Dubey et al., *The Llama 3 Herd of Models*, arXiv:2407.21783; the published configuration of Llama 3.2 3B.
