# %% [markdown]
# # Plan a run
#
# - **You need** `12_flops_and_mfu`, `13_memory_of_a_step` and `37_plan_the_layout`. This lesson combines what they teach.
# - **It takes** 50 minutes to read and try, under a minute to run.
# - **What runs where:** planning is arithmetic and runs here, and so does a simulation of failures with random numbers. At the end we rehearse the
#   chosen plan as one rank of 1,024. No GPU is needed, and none would change a number.
# - **Links:** before this [63_checkpoints](63_checkpoints.ipynb), after it [71_data](../day7_own_model/71_data.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# Somebody gives you 1,024 H100s and wants a model of 70 billion parameters, trained on 15 trillion tokens. You answer with a page: how the model is
# cut, what fits where, how long a step takes, when the run ends, what it costs, how often it will break, and how often to save. Would you sign that
# page?

# %%
# %load_ext workshop
from workshop import show
from workshop.exercises import beside
from workshop.facts import catalogue
from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes, format_seconds

# %%
# %%guess run_days --unit days
# 70 billion parameters, 15 trillion tokens, 1,024 H100s: how many days of computing?
# Just your gut feeling, before any formula.
...

# %% [markdown]
# ## The test of a planner is what already happened
#
# Before you believe a plan, use the same formulas to predict runs that are over. It is published how long they took.
#
# **Predict:** BLOOM has 176 billion parameters and was trained on 366 billion tokens with 384 A100s. Each did about 150 TFLOP/s. How many days did
# this take? The short rule gives $6 \cdot 176 \cdot 10^9 \cdot 366 \cdot 10^9$ FLOPs.

# %%
# %%guess bloom_days --unit days
# 176 billion parameters, 366 billion tokens, 384 A100s at 150 TFLOP/s each.
# How many days?
...

# %% tags=["nbval-check-output"]
from workshop.facts.training_runs import training_run
from workshop.predict.published_runs import (
    flops_per_token,
    reproduce,
    reproduce_all,
    reproduced_table,
)

bloom = training_run("bloom-176b")
rule = 6 * 176e9 * 366e9 / (384 * 150e12) / 86_400
print(f"6 FLOPs a parameter and token: {rule:.0f} days")
print(
    f"published: {bloom.days:.0f} days on the calendar, "
    f"{bloom.device_hours:,.0f} GPU hours"
)
assert round(rule) == 78

# %% [markdown]
# That is a third less than the calendar. The run's own notes explain most of the gap: to save memory, each layer's forward pass was computed again
# in backward, and **the 150 TFLOP/s include this**. They are *hardware* FLOPs, so we must count the second forward pass too. Backward costs as much
# as two forward passes. The layers therefore cost four forward passes instead of three. We also count attention and the head.

# %% tags=["nbval-check-output"]
again = reproduce("bloom-176b")
useful, done = flops_per_token(bloom, "model"), flops_per_token(bloom)
print(
    f"a token takes {useful / 1e12:.2f} TFLOP for the model, "
    f"{done / 1e12:.2f} TFLOP for the hardware"
)
print(f"predicted {again.days:.1f} days of computing")
a_step = 2_048 * 2_048 * done / (384 * 150e12)  # 2,048 sequences of 2,048 tokens
print(f"and {a_step:.1f} s a step; the run's notes say 105")
assert round(again.days) in (105, 106)
assert abs(a_step - 105) < 1

# %%
beside("bloom_days", predicted=again.days, measured=bloom.days)

# %% [markdown]
# The prediction is about 106 days of computing, and the calendar says 117. The rest is not a counting error: it contains failures, restarts, and a
# slow start with small batches. A prediction of pure computing should be *below* the published time, but not far below.
#
# Now we predict all runs for which we have facts. For the smaller LLaMAs and for Llama 2 no rate was published. For them we use the share of the
# peak that the same authors reached with LLaMA-65B.

# %% tags=["nbval-check-output"]
# leave out the one entry that is an estimate, not a run
happened = tuple(run for run in reproduce_all() if run.run.spec is not None)
reproduced_table(happened)

# %%
show.predicted_and_published(happened)

# %% tags=["nbval-check-output"]
assert abs(reproduce("llama-65b").days - 21) < 0.3  # published: 21 days on 2,048 A100
assert -0.10 < reproduce("llama-2-70b").deviation < 0  # published: 1,720,320 hours
assert all(abs(run.deviation) < 0.15 for run in happened)
# a lecture's answer to our own question: 144 days at half the peak
assert round(reproduce("70b-on-1024").days) == 144
deviations = sorted(abs(run.deviation) for run in happened)
typical = deviations[len(deviations) // 2]
assert len(happened) == 10
assert typical < 0.08
of_65b = reproduce("llama-65b").mfu
assert round(of_65b, 2) == 0.49
better = of_65b * (1 + reproduce("llama-13b").deviation)  # what LLaMA-13B reached
assert round(better, 2) == 0.54
opt = training_run("opt-175b")  # how many days, if its rate counts no recomputation?
useful, done = flops_per_token(opt, "model"), flops_per_token(opt)
assert round(reproduce("opt-175b").days * useful / done) == 26
print(f"half of the ten runs are within {typical:.1%}, all within 15 %")

# %% [markdown]
# We used only a model's shape, its tokens, and one measured rate. All ten predictions are within 15 %, and half of them are within 8 %. LLaMA-65B
# comes out right to within a fraction of a day, because its rate was published in tokens per second; this tests only the division. Llama 2 is the
# real test: no rate was published, and we use one share of the peak, 49 %, from LLaMA-65B. The predictions are too short by 7 to 15 %, which is the
# side we expect. LLaMA-13B is on the other side. It reached 54 % of the peak, more than the larger LLaMA-65B, so this share is not a constant. (OPT's
# paper does not say whether its 147 TFLOP/s count recomputation. We read them as hardware FLOPs; as model FLOPs they would give 26 days.)
#
# For 405B the rate is 400 TFLOP/s on 16,384 GPUs. The published hours contain more than the main run: long sequences, annealing, interruptions.
#
# For our own question, a lecture (CS336) says 144 days, "at half of the peak". Where would this half come from? A **time model** that knows layouts
# can predict the rate. This is a harder test, because no rate is given at all. We know two layouts in full (lesson 37 works out the second from its
# paper):

# %% tags=["nbval-check-output"]
from dataclasses import replace

from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop import predict_step

jean_zay = replace(catalogue.cluster("jean-zay-a100"), num_devices=384)
bloom_run = Run(
    "bloom-176b", jean_zay,
    Layout(
        tensor=4, pipeline=12, shard=8, zero=1, recompute="full",
        precision="deepspeed-bf16",
    ),
    micro_batch=2, seq_len=2_048, global_batch=2_048,
    implementation="megatron-deepspeed",
)  # fmt: skip
llama_405b = Run(
    "llama-3.1-405b", "16384xH100",
    Layout(
        tensor=8, sequence_parallel=True, pipeline=16, virtual_stages=8,
        embedding_in_stages=True, shard=128, zero=2, precision="megatron-bf16",
    ),
    micro_batch=1, seq_len=8_192, global_batch=2_048, implementation="megatron",
)  # fmt: skip
bloom_step, llama_step = predict_step(bloom_run), predict_step(llama_405b)
# the same layout with today's kernels
newer = predict_step(replace(bloom_run, implementation="megatron"))
rate = llama_step.tflops_per_rank
assert abs(bloom_step.seconds / 105 - 1) < 0.08
assert 0.15 < 1 - newer.seconds / 105 < 0.25
assert 0 < rate / 400 - 1 < 0.1
rows = [
    ("BLOOM", "a step", "s", bloom_step.seconds, 105),
    ("BLOOM, if it had newer kernels", "a step", "s", newer.seconds, 105),
    ("Llama 3.1 405B", "a GPU's rate", "TFLOP/s", rate, 400),
]
Table(
    ("run", "what", "predicted", "published", "deviation"),
    [
        (
            run,
            what,
            f"{ours:.0f} {unit}",
            f"{theirs} {unit}",
            f"{ours / theirs - 1:+.0%}",
        )
        for run, what, unit, ours, theirs in rows
    ],
)

# %% [markdown]
# The time model was fitted to published runs. Those of 405B are among them, and so is BLOOM's search for its layout. What does it predict if we leave
# the rows of 405B out of the fit? The package contains a table of such results:

# %% tags=["nbval-check-output"]
import csv

from workshop.published.left_out import FILE

with FILE.open(newline="") as file:
    rows = [r for r in csv.DictReader(file) if r["table"] == "llama3_405b_layouts"]
off = [float(row["source"]) / float(row["measured"]) - 1 for row in rows]
print(f"405B left out of the fit, its {len(off)} layouts: {sum(off) / len(off):+.0%}")
assert len(off) == 3
assert 0.15 < sum(off) / 3 < 0.22
assert max(off) > 0.2

# %% [markdown]
# For BLOOM the prediction is right within 8 %, because the time model knows that BLOOM's kernels of 2022 write their attention scores to memory. If
# we assume today's kernels, it predicts a step that is a fifth too short. For 405B, in the layout of its paper (lesson 37), it predicts a rate that
# is a few percent too high.
#
# The result for 405B looks better than it is, because the model was fitted to that run too. Fitted without it, the model predicts the three layouts
# almost a fifth too fast, as the last line says.
#
# But even then, somebody had looked at the program: its kernels were counted, its network was known. What if nobody has? We collected 308 published
# runs of sources that no fit had seen, most of them of programs that nobody had looked at. We described all of them before we predicted the first
# one. How far off were the first predictions of time?

# %% tags=["nbval-check-output"]
from workshop.facts.published import FOLDER, published_table

measured = published_table("blind_rows")
times = [
    (float(row["predicted"]), float(measured[int(row["line"]) - 2][row["quantity"]]))
    for row in published_table("blind_first", FOLDER.parent / "measurements")
    if not row["quantity"].startswith("memory")
]
off = sorted(abs(guess / truth - 1) for guess, truth in times)
print(
    f"{len(off)} times: {sum(off) / len(off):.0%} off on average, half of them by more "
    f"than {off[len(off) // 2]:.0%}, one in ten by more than {off[-len(off) // 10]:.0%}"
)
assert off[len(off) // 2] > 0.2
lucie = [row for row in measured if row["name"].startswith("lucie")]
assert len(lucie) == 44
assert sum(int(row["num_devices"]) > 8 for row in lucie) == 40

# %% [markdown]
# **If nobody has looked at the program, half of the predictions are off by more than a fifth.** For 44 of these runs one cause is known. They are
# of one model on one cluster, and 40 of them cross nodes. The network of this cluster reaches a fifth of what is usual, as had been measured on
# other nodes of the same centre. When the predictor is told, the mean error of the 44 runs falls from 35 % to 8 %. The file
# `data/measurements/blind_rows.md` lists all errors by source and device, and says which of them we cannot explain. So a plan without a measured
# rate may be off by a fifth, and sometimes by much more.
#
# The predictor knows this about itself. The first predictions of these runs decided how wide an interval it prints for a program that is in none of
# the tables it was fitted to. We let it predict the same step of an 8B model twice: once in torchtitan, which others have measured, and once in a loop
# of plain PyTorch that nobody has measured. It assumes the same kernels for both, so only the intervals differ.

# %%
# %%guess wider
# How many times as wide is the interval of the loop that nobody has measured?
...

# %%
how = Layout(shard=64, zero=3, precision="fsdp-bf16")
widths, rows = [], []
for program in ("torchtitan", "torch"):
    one = Run("llama-3-8b", "64xH100", how, 1, 8_192, implementation=program)
    step = predict_step(one)
    low, high = step.interval
    widths.append(high - low)
    around = low / step.seconds, high / step.seconds
    rows.append((program, f"{step.seconds:.2f} s", f"{low:.2f} to {high:.2f} s"))
assert widths[1] > 6 * widths[0]
assert 0.7 < around[0] < 0.8
assert 1.7 < around[1] < 1.9
Table(("program", "a step", "in 8 of 10 cases"), rows)

# %%
beside("wider", calculated=round(widths[1] / widths[0], 1))

# %% [markdown]
# The interval of the unknown loop is more than six times as wide. It reaches from a quarter below the prediction to four fifths above it. With a
# few measured steps of your own program, `workshop calibrate` removes this doubt about the time.

# %% [markdown]
# ## How many GPUs for a deadline?
#
# The same division, turned around, tells you how many GPUs to rent. Four mistakes are so common that they are the exercise: which parameters cost
# FLOPs, which peak to use, which FLOPs to count, and what share of the peak to expect.
#
# ### Exercise: rent GPUs


# %%
# %%exercise gpus_for_deadline
def gpus_for_deadline(
    params: dict[str, float],
    tokens: float,
    days: float,
    sheet: dict[str, float],
    mfu: float,
) -> int:
    """GPUs, in whole nodes of eight, that see so many tokens in so many days."""
    flops = ...
    flops_of_one_gpu = ...
    return ...


# %% tags=["nbval-check-output"]
llama = catalogue.model("llama-3-70b")
ends = llama.vocab_size * llama.hidden_size  # of the embedding and of the head (untied)
params = {"embedding": ends, "layers": llama.num_params - 2 * ends, "head": ends}
sheet = {"bf16": 989e12, "bf16 sparse": 1979e12}
products = 6 * (params["layers"] + params["head"])  # FLOPs of a token
attention = 12 * llama.num_layers * 4_096 * llama.hidden_size
sparse = {"bf16": sheet["bf16 sparse"]}  # the mistake
without = 0.45 * products / (products + attention)
rows = [
    (f"{days} days", "45 %", gpus_for_deadline(params, 15e12, days, sheet, 0.45))
    for days in (60, 120, 180)
]
wrong_peak = gpus_for_deadline(params, 15e12, 180, sparse, 0.45)
counted = gpus_for_deadline(params, 15e12, 180, sheet, without)
assert 1.05 < counted / rows[-1][2] < 1.1
rows.append(("180 days", "45 % of the peak for sparse matrices", wrong_peak))
rows.append(("180 days", f"45 % with attention: {without:.1%} without", counted))
Table(
    ("15T tokens in", "MFU", "H100"),
    [(days, share, f"{gpus:,}") for days, share, gpus in rows],
    note=f"Attention adds {attention / products:.1%} to the FLOPs of the products.",
)

# %% [markdown]
# The peak for sparse matrices halves the answer, and the run takes twice as long as promised. The last line is less obvious: **count an MFU as you
# count the FLOPs.** The function leaves attention out, so its `mfu` must leave it out as well. Many published MFUs include it, and so does the
# planner's below. If you put such a rate into the function, the run ends about two weeks late.

# %% [markdown]
# ## The layout
#
# The planner predicts a step's time for every layout on 1,024 H100s, with 1,024 sequences of 4,096 tokens per step. It drops the layouts that do not
# fit, and gives reasons for the best.
#
# **Predict:** will the first line of its list use tensor parallelism 8, as the rule of `37` says? And how much will it
# shard over the data axis: only the optimizer's state (ZeRO-1), or the weights as well (ZeRO-3)?

# %%
# %%guess first_line --choices 8-and-ZeRO-1,8-and-ZeRO-3,4-and-ZeRO-1,4-and-ZeRO-3
# Tensor parallelism and ZeRO stage of the planner's first line
...

# %%
from workshop.predict.plan import Search, SearchSpace, plan

TOKENS, BATCH, SEQ_LEN = 15e12, 1_024, 4_096
h100s = catalogue.cluster("1024xH100")
planned = plan(llama, h100s, BATCH, SEQ_LEN)
seconds = [one.seconds for one in planned.proposals]
assert max(seconds) / min(seconds) < 1.05
bad_case = [one.interval.upper for one in planned.proposals]
assert bad_case == sorted(bad_case)
cuts = [one.run.layout for one in planned.proposals]
cuts = [(cut.tensor, cut.pipeline, cut.zero) for cut in cuts]
assert cuts[0] == (8, 1, 3)
assert cuts[3] == (8, 2, 1)
show.plan_table(planned)

# %%
beside("first_line", calculated="{0}-and-ZeRO-{2}".format(*cuts[0]))

# %% [markdown]
# The first line uses tensor parallelism 8, as the rule says. It shards the weights, but the fourth line does not. With eight-way tensor parallelism
# alone, the weights must be sharded. With two pipeline stages in addition, 16 ranks hold one copy of them, and ZeRO-1 only has to spread the
# optimizer's state. All five lines are within a twentieth of each other, and no prediction can tell which is faster. (In such a case the planner
# puts the layout first whose time is shortest in a bad case: the upper end of "in 8 of 10".) **A plan is never one line.** Choose the line that your
# engine does best.
#
# Suppose that your engine is good at pipelines, and uses four-way tensor parallelism with four stages. We tell the planner to search only among such
# layouts. How much time is lost, and what does a rank hold?

# %%
from workshop.predict.memory import predict_memory

four_by_four = Search(limits=SearchSpace(tensor=(4,), pipeline=(4,)))
best = plan(llama, h100s, BATCH, SEQ_LEN, four_by_four).best
x = best.run.layout
print(
    f"tensor {x.tensor}, pipeline {x.pipeline} x {x.virtual_stages}, data {x.shard}, "
    f"ZeRO-{x.zero}: {best.seconds / planned.best.seconds - 1:+.1%} time a step"
)
assert best.seconds / planned.best.seconds < 1.05
memory = predict_memory(best.run)
stages = {
    f"stage {s}": {part: float(sizes[s]) for part, sizes in memory.parts.items()}
    for s in (0, 3)
}
show.memory_by_part(stages, cap=memory.capacity, compare=False)

# %% [markdown]
# The picture shows the memory of tensors. Torch's allocator holds more, because some of its blocks are only partly used. The driver's context and
# NCCL's buffers come on top. The plan counts all of this, because all of it must fit:

# %% tags=["nbval-check-output"]
kinds = {
    "tensors": memory.allocated,
    "held by the allocator": memory.reserved,
    "taken from the device": memory.device,
}
assert abs(memory.device.max() - best.memory_bytes) < 1
rows = [(kind, f"{sizes.max() / 2**30:.1f} GiB") for kind, sizes in kinds.items()]
Table(("memory", "fullest rank"), rows)

# %%
step = predict_step(best.run, "megatron-core")
step

# %% [markdown]
# Seven tenths of the step are matrix products. The other parts have names, and each name is something you could work on. (*Skew* is waiting for the
# slowest rank.) More micro-batches make the bubble smaller, larger matrices make the products more efficient, and a faster network shortens "data".

# %% tags=["nbval-check-output"]
days = TOKENS / best.tokens_per_second / 86_400
print(
    f"{best.run.layout.world_size:,} ranks, {format_seconds(best.seconds)} "
    f"a step of {BATCH * SEQ_LEN / 1e6:.1f}M tokens"
)
print(
    f"MFU {best.mfu:.1%}: {days:.0f} days without a failure "
    "(the lecture: 144, at half the peak and without attention)"
)
assert memory.fits
assert 160 < days < 176
assert abs(step.seconds / best.seconds - 1) < 0.01
assert 0.65 < step.causes["matmul"] / step.seconds < 0.72  # seven tenths

# %%
beside("run_days", calculated=days)

# %% [markdown]
# ## Money
#
# Prices change, so the package contains none. Put yours here. The energy is that of the devices plus the building's overhead.

# %%
from workshop.predict.cost import Terms, cost_of_seconds

PRICE_PER_GPU_HOUR = 2.00  # yours; 2.00 is an example, not an offer
whole = cost_of_seconds(
    days * 86_400, h100s, terms=Terms(price_per_hour=PRICE_PER_GPU_HOUR)
)
assert round(6.4e6 / whole.device_hours, 1) == 1.5  # from Llama 3 70B's model card
whole

# %% [markdown]
# Meta's model card for Llama 3 70B gives 6.4 million H100 hours, and our plan gives 4.2. We do not know what else the card's number includes. If a
# plan and a published number differ by a factor of 1.5 and you cannot say why, tell whoever pays.
#
# ## It will break
#
# Llama 3 405B had 419 unplanned interruptions in 54 days on 16,384 GPUs. More than half of them were caused by GPUs and their memory. That is one
# failure in 50,700 GPU hours, so a single GPU would fail once in six years. For many GPUs together:

# %% tags=["nbval-check-output"]
from workshop.predict.failures import (
    Failures,
    daly_interval,
    goodput,
    simulate_goodput,
    young_interval,
)

# ten minutes to notice, replace and restart: our assumption
failures = Failures(restart_seconds=600)
for number in (8, 1_024, 16_384):
    print(
        f"{number:>6,} GPUs: a failure every "
        f"{failures.seconds_between(number) / 3600:7,.1f} hours"
    )
between = failures.seconds_between(1_024)
print(f"in {days:.0f} days on 1,024: {days * 86_400 / between:.0f} failures")

# %% [markdown]
# After each failure, the job goes back to its last checkpoint. If you save often, you lose time to saving. If you save seldom, you lose the work
# that has to be repeated, which is half an interval on average. There is an optimum in between.

# %%
# %%guess save_every --unit min
# A save takes 42 seconds, and a failure comes every 50 hours. How many minutes apart
# should saves be?
...

# %% [markdown]
# ### Exercise: how often to save


# %%
# %%exercise checkpoint_interval
def checkpoint_interval(
    save_seconds: float, num_devices: int, device_hours_between: float
) -> float:
    """Seconds between saves that lose least; any device that fails ends the job."""
    seconds_between = ...
    return ...


# %% [markdown]
# How long does a save take? A checkpoint has 12 bytes per parameter (`63`). The next cell uses two file systems, one that writes 20 GB/s and one
# that writes 200 GB/s. It computes the share of time that is left with the exact formula (Daly, 2006), and **simulates** the same: 20,000 intervals
# with failures at random times.

# %% tags=["nbval-check-output"]
from workshop.predict.checkpoints import checkpoint_bytes, write_seconds

checkpoint = checkpoint_bytes(llama.num_params).total
rows = []
for rate in (20e9, 200e9):
    save = write_seconds(checkpoint, rate)
    best_interval = checkpoint_interval(save, 1_024, failures.device_hours_between)
    kept = goodput(best_interval, save, between, failures.restart_seconds)
    played = simulate_goodput(best_interval, save, between, failures.restart_seconds)
    times = f"{save:.1f} s", f"{best_interval / 60:.0f} min"
    rows.append((f"{rate / 1e9:.0f} GB/s", *times, f"{kept:.1%}", f"{played:.1%}"))
    assert abs(kept - played) < 0.005
    assert abs(best_interval / young_interval(save, between) - 1) < 1e-9
    assert abs(daly_interval(save, between) / best_interval - 1) < 0.02
about = f"A checkpoint is {format_bytes(checkpoint, binary=False)}; 1,024 GPUs"
head = "storage", "a save takes", "save every", "time kept: formula", "simulated"
Table(head, rows, about)

# %%
from workshop.jupyter.explorer import Control, explore

MINUTES = [2 ** (k / 4) for k in range(4, 40)]


def kept_by_interval(number, gb_per_second, restart_minutes):
    """The best interval in minutes, and the share of the time kept at all MINUTES."""
    save = write_seconds(checkpoint, 1e9 * gb_per_second)
    m, restart = failures.seconds_between(number), 60 * restart_minutes
    best = checkpoint_interval(save, number, failures.device_hours_between) / 60
    return best, [goodput(60 * t, save, m, restart) for t in MINUTES]


def draw(gb_per_second, restart_minutes):
    shares, dotted = {}, {}
    for number in (1_024, 16_384):
        best, kept = kept_by_interval(number, gb_per_second, restart_minutes)
        name = f"{number:,} GPUs (at best {max(kept):.0%})"
        shares[name], dotted[name] = kept, best
    return show.goodput_by_interval(MINUTES, shares, dotted)


controls = (
    Control("gb_per_second", 20, (2, 20, 200)),
    Control("restart_minutes", 10, (1, 10, 60)),
)
explore(draw, controls)

# %%
best_minutes, kept = kept_by_interval(1_024, 20, 10)
top = MINUTES[kept.index(max(kept))]  # of these points, each a fifth above the last
beside("save_every", predicted=best_minutes, calculated=top)

# %% [markdown]
# With 1,024 GPUs the curve is flat near its top: with half or double the interval, hardly anything changes. With 16,384 GPUs a failure comes every
# three hours, so both saving and restarting must be fast. Move the sliders: storage that is ten times as fast brings the 16,384 GPUs from 87 to 92 % of
# the time, and a restart within a minute to 91 %. Neither gains two percent for the 1,024.
#
# Llama 3's authors write that they kept more than 90 % of the time, with storage that takes 2 TB/s. Does the formula agree?

# %% tags=["nbval-check-output"]
of_405b = checkpoint_bytes(catalogue.model("llama-3.1-405b").num_params).total
m = failures.seconds_between(16_384)
for rate in (20e9, 2e12):
    save = write_seconds(of_405b, rate)
    share = goodput(young_interval(save, m), save, m, failures.restart_seconds)
    print(f"405B on 16,384 GPUs, {rate / 1e9:5,.0f} GB/s: {share:.1%} of the time kept")
assert 0.9 < share < 0.95
half = [goodput(t, 42, between, 600) for t in (1_950, 3_900, 7_800)]
assert max(half) - min(half) < 0.01  # half the interval, and double
sliders = (20, 10), (200, 10), (20, 1)
tops = [f"{max(kept_by_interval(16_384, *both)[1]):.0%}" for both in sliders]
assert tops == ["87%", "92%", "91%"]
few = [max(kept_by_interval(1_024, *both)[1]) for both in sliders]
assert max(few) - few[0] < 0.02

# %% [markdown]
# It agrees, if a restart takes the ten minutes that we assumed.
#
# ## How many tokens?
#
# Why 15 trillion? Hoffmann et al. (2022) asked what is best for a *given* amount of training compute, and found about 20 tokens per parameter. 15
# trillion are 214 per parameter. What would their rule give for the same FLOPs?

# %% tags=["nbval-check-output"]
from workshop.predict.tokens import (
    BESIROGLU,
    HOFFMANN,
    compute_optimal,
    fitted_loss,
    tokens_for_loss,
)

rule = compute_optimal(6 * 70e9 * TOKENS)
print(
    f"by the rule, for the same FLOPs: {rule.params / 1e9:.0f}B on "
    f"{rule.tokens / 1e12:.1f}T tokens"
)
share, rows = {}, {number: [] for number in (60, 70, 100, 150)}
for name, fit in (("Hoffmann", HOFFMANN), ("Besiroglu", BESIROGLU)):
    loss = fitted_loss(70e9, TOKENS, fit)
    by_rule = fitted_loss(rule.params, rule.tokens, fit)
    print(
        f"{name} et al.'s fit: loss {loss:.3f} for 70B on 15T,",
        f"{by_rule:.3f} by the rule",
    )
    for number, row in rows.items():
        needed = tokens_for_loss(1e9 * number, loss, fit)
        share[name, number] = 1e9 * number * needed / (70e9 * TOKENS)
        row += [f"{needed / 1e12:.1f}", f"{share[name, number]:.0%}"]
    share[name, "rule"] = by_rule - loss
names, kinds = ("Hoffmann", "Besiroglu"), ("tokens (trillions)", "training")
head = [f"{name}: {kind}" for name in names for kind in kinds]
lines = [(f"{size}B", *row, f"{size / 70:.0%}") for size, row in rows.items()]
about = "Models with the loss of 70B on 15T; their cost in percent of that model's"
Table(("model", *head, "use"), lines, about)

# %% [markdown]
# The first fit is that of Hoffmann et al. themselves. Besiroglu et al. (2024) found an error in it, and fitted the same runs again. **The two fits
# disagree about our question.** By the first, the rule gains nothing, and the same loss costs nearly the same training from 60 to 150 billion
# parameters. By the second, the rule ends a little lower, and a model of 150 billion needs three fifths of the training that 70 billion need.

# %% tags=["nbval-check-output"]
from workshop.predict.tokens import served_to_break_even

for name, fit in (("Hoffmann", HOFFMANN), ("Besiroglu", BESIROGLU)):
    loss = fitted_loss(70e9, TOKENS, fit)
    large = (150e9, tokens_for_loss(150e9, loss, fit))
    paid = served_to_break_even((70e9, TOKENS), large)
    when = f"after {paid / 1e12:.0f}T tokens of use" if paid > 0 else "at once"
    print(f"{name:<9} 70B instead of 150B: paid back {when}")
    assert (paid > 0) == (name == "Besiroglu")
assert share["Hoffmann", "rule"] > 0 > share["Besiroglu", "rule"]
assert all(0.96 < share["Hoffmann", size] < 1.05 for size in (60, 70, 100, 150))
assert 0.57 < share["Besiroglu", 150] < 0.62
assert 1 < paid / TOKENS < 1.15
assert share["Besiroglu", 60] > 1.25

# %% [markdown]
# One thing does not depend on the fit, and it is what counts if the model will be used a lot: **every use of the smaller model is cheaper**. By the
# second fit, Llama's long training is expensive, and it is paid back only after about as many tokens of use as it was trained on. By the first, it costs
# no more than the training of the larger model, so there is nothing to pay back. (Both fits are from models of up to 16 billion parameters. Use them
# only to compare models of similar size.)
#
# ## What if?
#
# The next cell asks the same question with one thing changed at a time. The planner finds a new layout for each.

# %%
# %%guess slower_network
# The network between nodes is an eighth as fast, and the planner may choose another
# layout. How many times as long does the run take?
...

# %% tags=["nbval-check-output"]
slower = replace(h100s, inter=catalogue.link("roce-4x100-per-node"))
slowest = replace(h100s, inter=catalogue.link("ethernet-10g"))
changed = {
    "as planned": (h100s, BATCH, SEQ_LEN),
    "sequences of 8,192": (h100s, BATCH // 2, 8_192),
    "sequences of 32,768": (h100s, BATCH // 8, 32_768),
    "a network an eighth as fast": (slower, BATCH, SEQ_LEN),
    "10 Gbit/s Ethernet": (slowest, BATCH, SEQ_LEN),
    "512 H100": (catalogue.cluster("512xH100"), BATCH, SEQ_LEN),
    "1,024 A100": (catalogue.cluster("1024xA100-80GB"), BATCH, SEQ_LEN),
}
rows, ends_in = [], {}
for name, (cluster, batch, length) in changed.items():
    fastest = plan(llama, cluster, batch, length).best
    x = fastest.run.layout
    ends_in[name] = TOKENS / fastest.tokens_per_second / 86_400
    rows.append(
        [
            name,
            f"{x.tensor} x {x.pipeline} x {x.context} x {x.data_parallel}",
            f"{fastest.mfu:.0%}",
            f"{ends_in[name]:.0f} days",
        ]
    )
assert (
    ends_in["as planned"]
    < ends_in["sequences of 8,192"]
    < ends_in["sequences of 32,768"]
)
assert (
    ends_in["as planned"]
    < ends_in["a network an eighth as fast"]
    < ends_in["10 Gbit/s Ethernet"]
)
assert 1.2 < ends_in["a network an eighth as fast"] / ends_in["as planned"] < 1.3
assert 2.2 < ends_in["10 Gbit/s Ethernet"] / ends_in["as planned"] < 2.4
# MFU that the time model predicts on A100s, over the MFU of LLaMA-65B
assert 1.2 < fastest.mfu / reproduce("llama-65b").mfu < 1.35
Table(("what changes", "tensor x pipeline x context x data", "MFU", "ends in"), rows)

# %%
slower_by = ends_in["a network an eighth as fast"] / ends_in["as planned"]
beside("slower_network", calculated=round(slower_by, 2))

# %% [markdown]
# - **Longer sequences** take longer although MFU rises: attention needs more arithmetic per token, and this arithmetic counts as useful. With 32,768
#   tokens another axis appears, context.
# - **A slower network** leads to more pipeline stages, because a pipeline sends least. The run still takes a quarter longer, and over plain Ethernet
#   more than twice as long.
# - **A100s** reach a higher share of a lower peak. MFU compares layouts on one device, not different devices. (64 % is what the time model considers
#   possible with today's kernels and the best layout. LLaMA-65B had 49 %; at that share the run would take almost a third longer.)
#
# ## Run: rehearse it
#
# So far the plan exists only on paper. Before we rent GPUs, we let the program itself run as one rank of 1,024, a rank of the last stage. Its tensors
# have shapes but no numbers, so they need no memory. It uses the plan's layout, with one difference. The planner's engine is Megatron-LM, which sums
# gradients **once per step** (ZeRO-1). Our engine is FSDP2, which keeps whole weights between forward and backward (`zero=2`). Does this matter? (We
# rehearse four of the step's 16 micro-batches; the program does the same with each.)
#
# **Predict:** how many times as much as planned will our engine send along the axis that shards the state?

# %%
# %%guess more_traffic
# Along the axis that shards the state, the plan sums gradients and gathers weights once
# per step, both in 16 bits. Our engine gathers weights in 16 bits and sums gradients in
# fp32, for each of 16 micro-batches. How many times as many bytes does it send?
...

# %%
from workshop.predict.traffic import predict_traffic

layout = replace(best.run.layout, zero=2, precision="fsdp-bf16", schedule="interleaved")


def ours(accumulation):
    """The run as our engine does it, with so many micro-batches in a step."""
    return Run(
        llama,
        h100s,
        layout,
        micro_batch=best.run.micro_batch,
        seq_len=SEQ_LEN,
        accumulation=accumulation,
    )


RANK = 1_000
places = layout.coordinates(RANK)
print(f"rank {RANK:,}:", ", ".join(f"{axis} {place}" for axis, place in places.items()))
cut = [
    layout.tensor,
    layout.pipeline,
    layout.virtual_stages,
    layout.shard,
    best.run.accumulation,
]
assert cut == [4, 4, 4, 64, 16]
stage = places["pipeline"]

# %%
# %%rehearse -n 1024 --rank 1000 --steps 1 --into rank_1000
import torch
import torch.distributed as dist

from workshop.facts.layout import Layout
from workshop.models.gpt import GPT, GPTConfig
from workshop.train.apply_layout import apply_layout

dist.init_process_group()
layout = Layout(
    tensor=4, sequence_parallel=True, pipeline=4, virtual_stages=4, shard=64, zero=2
)
llama = GPT(GPTConfig(128_256, 8_192, 80, 64, 8, 28_672))
ready = apply_layout(llama, layout, micro_batch=1, accumulation=4)
tokens = torch.zeros(1, 4_096, dtype=torch.int64)
ready.gradients([(tokens, tokens)] * 4, 4)
ready.clip(0.0)
ready.step()

# %% [markdown]
# ## Compare

# %%
begin = ("broadcast", "scatter")  # before the first step
in_a_quarter = [row for row in rank_1000.traffic if row.name not in begin]
# ZeRO-1 sums gradients over the data axis, FSDP2 over shard: here both are one axis
on_paper = [
    replace(row, axis="shard" if row.axis == "data" else row.axis)
    for row in predict_traffic(best.run).on_stage(stage).traffic
]
show.traffic_by_axis(
    {
        "planned (Megatron)": on_paper,
        "our engine (FSDP2)": predict_traffic(ours(16)).on_stage(stage),
    },
    "Llama 3 70B on 1,024 ranks: what rank 1,000 sends in a step",
    linear=True,
)

# %% tags=["nbval-check-output"]
sent, paper = show.wire_bytes_by_axis(in_a_quarter), show.wire_bytes_by_axis(on_paper)
quarter, whole_step = (
    predict_traffic(ours(count)).on_stage(stage).by_axis() for count in (4, 16)
)
rows = []
for axis, size in quarter.items():
    sizes = sent[axis], size, whole_step[axis], paper[axis]
    rows.append((axis, *(f"{one / 1e9:.2f} GB" for one in sizes)))
    if axis == "shard":
        assert 0 < sent[axis] / size - 1 < 0.02
    else:
        assert sent[axis] == size
card = h100s.inter.bytes_per_second  # each GPU has its own InfiniBand card
seconds = whole_step["shard"] / card
print(
    f"over {card / 1e9:.0f} GB/s the shard axis alone takes {seconds:.1f} s; "
    f"the planned step takes {best.seconds:.1f} s"
)
assert seconds > best.seconds
head = "4 micro-batches: rehearsed", "by the formula", "a step: by the formula"
Table(("axis", *head, "planned"), rows)

# %%
more = whole_step["shard"] / paper["shard"]
assert abs(more - 16 * (2 + 4) / (2 + 2)) < 0.1
assert 0.86 < whole_step["tensor"] / paper["tensor"] < 0.89
beside("more_traffic", calculated=round(more, 1))

# %% [markdown]
# For the tensor and pipeline axes, formula and rehearsal agree to the byte. On the shard axis the program sends a little more, because with four
# chunks per rank some layers are gathered once more than the formula counts. (The picture shows all 16 micro-batches by the formula.)
#
# On the tensor axis our engine sends an eighth less. Megatron gathers each layer's inputs again in the backward pass, so that it can keep only a
# slice of them in the meantime (Korthikanti et al., section 4.2.2). In the other direction, our last stage gathers the logits, which Megatron never
# does.
#
# The shard axis is the problem. Our engine gathers weights and sums gradients for **every micro-batch**, and it sums in fp32. That is 16 times 2 + 4
# bytes per parameter, while the plan has 2 + 2 bytes once: 24 times as much. A step of four seconds cannot hide nine seconds of network. (The plan
# assumes gradients of 16 bits on the wire. With bf16, Megatron-LM itself sums them in fp32 unless `--grad-reduce-in-bf16` is set. Then it sends 2 + 4
# bytes once, and ours is 16 times as much. The nine seconds stay.)
#
# So the page is right for an engine that sums once per step, and wrong for ours. You found this out without renting a GPU.
#
# What could you do? First, you could use an engine like Megatron-LM. Second, you could let FSDP2 wait: with
# `model.set_requires_gradient_sync(False)` until the last micro-batch, it also sums once per step. torch's own pipeline stages do this. Each rank
# then keeps whole gradients in the meantime, and the plan's memory already includes them. Third, you could give up the pipeline, as the first line
# of the plan does:

# %% tags=["nbval-check-output"]
sharded = plan(
    llama, h100s, BATCH, SEQ_LEN, Search(limits=SearchSpace(pipeline=(1,), zero=(3,)))
).best
x = sharded.run.layout
late = TOKENS / sharded.tokens_per_second / 86_400
print(
    f"tensor {x.tensor}, data {x.data_parallel}, ZeRO-3, micro-batch "
    f"{sharded.run.micro_batch}: {late:.0f} days, instead of {days:.0f}"
)
assert abs(late - days) < 10

# %% [markdown]
# ## The page

# %% tags=["nbval-check-output"]
save = write_seconds(checkpoint, 20e9)
every = checkpoint_interval(save, 1_024, failures.device_hours_between)
kept_share = goodput(every, save, between, failures.restart_seconds)
quick, slow = best.interval
page = [
    [
        "layout",
        "tensor 4, pipeline 4 x 4 chunks, data 64, ZeRO-1, micro-batch 1",
        "planner",
    ],
    [
        "memory",
        (
            f"{format_bytes(best.memory_bytes)} of "
            f"{format_bytes(memory.capacity)} on the fullest rank"
        ),
        "memory model",
    ],
    [
        "a step",
        f"{format_seconds(best.seconds)}, MFU {best.mfu:.0%}",
        f"time model; 8 of 10 between {quick:.2f} and {slow:.2f} s",
    ],
    [
        "computing",
        f"{days:.0f} days, {days * 24 * 1024 / 1e6:.1f} million GPU hours",
        "tokens over rate",
    ],
    [
        "failures",
        f"{days * 86_400 / between:.0f}, each ten minutes to restart",
        "Llama 3's rate; the minutes are assumed",
    ],
    [
        "saving",
        (
            f"{format_bytes(checkpoint, binary=False)} every "
            f"{every / 60:.0f} minutes, {save:.0f} s each"
        ),
        "20 GB/s",
    ],
    ["time kept", f"{kept_share:.1%}", "Daly's formula, and simulated"],
    ["in all", f"{days / kept_share:.0f} days", "if nothing else goes wrong"],
]
Table(("", "plan", "from"), page)

# %% [markdown]
# You can sign this page because of its last column. It tells which numbers come from formulas, which from the measurements of others, and which are
# assumed.

# %% [markdown]
# ## Tomorrow's script
#
# This script computes the page by hand, with forty lines of arithmetic for a run of your own and without this workshop. It knows nothing about
# kernels and networks. Instead it uses one number, the MFU, which you have to measure. Here we use the planner's. (If the script says that a layout
# is possible, you still have to try it.)

# %%
from workshop import launch

folder = launch.Session.get().directory  # private; deleted when the kernel ends

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/plan.py
from math import ceil, sqrt

PARAMS, LAYERS, WIDTH, TOKENS, SEQ_LEN = 70.6e9, 80, 8_192, 15e12, 4_096  # yours
VOCAB = 128_256
GPUS, PEAK, CAPACITY = 1_024, 989e12, 80e9  # dense bf16, not the sheet's sparse
MFU = 0.448  # measure it on your code for a day; until then it is a hope
TENSOR, PIPELINE, CHUNKS, BATCH = 4, 4, 4, 1_024  # chunks per rank; sequences per step
PRICE = 2.00  # per GPU hour
STORAGE, RESTART, HOURS_BETWEEN = 20e9, 600, 50_700  # bytes/s, s, GPU hours

# time: six FLOPs per weight and token (an embedding is only looked up), plus attention,
# not halved for the causal mask, as in many published MFUs; count your MFU that way too
flops_per_token = 6 * (PARAMS - VOCAB * WIDTH) + 12 * LAYERS * SEQ_LEN * WIDTH
days = TOKENS * flops_per_token / (GPUS * PEAK * MFU) / 86_400
step = BATCH * SEQ_LEN * flops_per_token / (GPUS * PEAK * MFU)

# memory of a rank: weights and gradients of its part, Adam's state sharded over data
data = GPUS // TENSOR // PIPELINE
part = PARAMS / TENSOR / PIPELINE
state = (2 + 4) * part + 12 * part / data  # bf16 weights, fp32 gradients, ZeRO-1
# 34 s b h bytes per layer, over all tensor ranks (Korthikanti et al., table 2, without
# scores); the first of p stages keeps p micro-batches, each of a p-th of the layers and
# with several chunks a little more
kept = 34 * SEQ_LEN * WIDTH * LAYERS / TENSOR
kept *= 1 + (PIPELINE - 1) / (PIPELINE * CHUNKS) if CHUNKS > 1 else 1
micro_batches = BATCH // data
bubble = (PIPELINE - 1) / (micro_batches * CHUNKS + PIPELINE - 1)  # of equal stages

# failures: Young's interval, and what is left of the time
checkpoint = 12 * PARAMS  # fp32 weights and both moments
save = checkpoint / STORAGE
between = HOURS_BETWEEN * 3_600 / GPUS
every = sqrt(2 * save * between)
lost = save / every + every / 2 / between + RESTART / between
whole = days / (1 - lost)

print(f"{TOKENS / (BATCH * SEQ_LEN):,.0f} steps of {step:.1f} s: {days:.0f} days")
print(f"a rank holds {state / 1e9:.1f} GB of state and keeps {kept / 1e9:.1f} GB")
assert state + kept < 0.9 * CAPACITY, "it does not fit: cut more, or compute again"
print(f"bubble {bubble:.1%} with {micro_batches} micro-batches; is it in your MFU?")
print(f"a failure every {between / 3600:.0f} h, a save every {every / 60:.0f} min")
price = whole * 24 * GPUS * PRICE
print(f"{lost:.1%} lost: {whole:.0f} days for {price / 1e6:.1f} million")
print(f"for 90 days: {ceil(GPUS * whole / 90 / 8) * 8:,} GPUs, if all stays as it is")

# %% [markdown]
# Does it agree with the page?

# %% tags=["nbval-check-output"]
by_hand = launch.torchrun(launch.Script(folder / "plan.py"), 1).text
for words in (
    f"{days:.0f} days",
    f"{best.seconds:.1f} s",
    f"every {every / 60:.0f} min",
    "27.3 GB of state and keeps 27.1 GB",
    "bubble 4.5%",
    "for 90 days: 2,008 GPUs",
):
    assert words in by_hand, words
print("the same days, the same step, the same time between saves")
largest = memory.allocated.max() / 1e9
print(f"a rank's tensors in the plan: {largest:.1f} GB")
no_head = replace(best.run, model=replace(llama, vocab_size=512))
for what, one in {"": step, ", hardly any head": predict_step(no_head)}.items():
    print(f"bubble in the plan{what}: {one.causes['bubble'] / one.seconds:.1%}")
assert abs(one.causes["bubble"] / one.seconds - 0.045) < 0.01
assert 1.6 < step.causes["bubble"] / step.seconds / 0.045 < 2
assert 2 < 2_008 / counted < 2.1
assert 0 < largest - (27.3 + 27.1) < 1.5

# %% [markdown]
# The time is the same, because both count the same FLOPs and the script uses the planner's MFU. Two numbers differ, one a little and one by much. The
# first stage of the plan also holds the embedding, which the script spreads over all stages. And the plan's bubble is nearly twice the script's,
# because it includes the wait for the last stage, which has as many layers as the others and the head. With hardly any head, the two agree.
#
# The script asks for 2,008 GPUs for 90 days, a little more than twice what the exercise needs for 180 days with attention counted: the script adds
# the time that failures cost.

# %% [markdown]
# ## What to take away
#
# - **Plan what already happened first.** The same formulas give BLOOM 106 days (117 on the calendar), LLaMA-65B 21 days, and Llama 2 70B 1.6 of its
#   1.7 million hours. A plan that cannot do this is a guess.
# - Ask of every rate: does it count model or hardware FLOPs? Is the peak dense or sparse? Is the embedding counted? The answer can change from 78 to
#   106 days.
# - Of 210 times that were predicted before anybody had looked at most of the programs, half were off by more than a fifth. Nobody has measured your
#   run. So measure for a day before you promise a season.
# - N devices fail N times as often as one. **Save every $\sqrt{2 d M}$ seconds**; the optimum is flat, so a factor of two does little harm.
# - 20 tokens per parameter is the published rule for training alone. If the model will be used a lot, choose a smaller model and more tokens: every
#   use is cheaper. How much more training this costs, two fits of the same runs answer differently.
# - Rehearse the program itself. The layout on paper and the engine that runs it may differ.
#
# Next: [71_data](../day7_own_model/71_data.ipynb), what the run reads. (`%exercise` shows which exercises of the earlier lessons are still open.)
#
# ## Sources
#
# - T. Le Scao et al., *BLOOM*, 2022, [arXiv:2211.05100](https://arxiv.org/abs/2211.05100); github.com/bigscience-workshop/bigscience,
#   `train/tr11-176B-ml/README.md` (105 s a step, layout, which FLOPs are counted).
# - S. Zhang et al., *OPT*, 2022, [arXiv:2205.01068](https://arxiv.org/abs/2205.01068). H. Touvron et al., *LLaMA*, 2023,
#   [arXiv:2302.13971](https://arxiv.org/abs/2302.13971), section 2.4 and table 15; *Llama 2*, 2023,
#   [arXiv:2307.09288](https://arxiv.org/abs/2307.09288), table 2.
# - A. Dubey et al., *The Llama 3 Herd of Models*, 2024, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783), table 4 and section 3.3.4; hours from
#   the model cards in github.com/meta-llama.
# - Stanford CS336, *Language Modeling from Scratch*, spring 2025, lecture 2 (70B on 1,024 H100s).
# - J. W. Young, *A first order approximation to the optimum checkpoint interval*, Comm. ACM 17(9), 1974. J. T. Daly, *A higher order
#   estimate of the optimum checkpoint interval for restart dumps*, Future Generation Computer Systems 22, 2006.
# - J. Hoffmann et al., *Training Compute-Optimal Large Language Models*, 2022, [arXiv:2203.15556](https://arxiv.org/abs/2203.15556). T. Besiroglu et
#   al., *Chinchilla Scaling: A replication attempt*, 2024, [arXiv:2404.10102](https://arxiv.org/abs/2404.10102).
# - D. Narayanan et al., 2021, [arXiv:2104.04473](https://arxiv.org/abs/2104.04473), equation 3. github.com/NVIDIA/Megatron-LM,
#   `megatron/training/arguments.py` (in which format gradients are summed).
# - Each published run's own source: `workshop/facts/data/training_runs.toml`.
