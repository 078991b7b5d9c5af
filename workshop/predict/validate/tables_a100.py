"""Readers of the tables measured on A100 (and one MosaicML table that has H100 as well).

What a table leaves unsaid and had to be assumed stands in its reader's docstring.
"""

from __future__ import annotations

from workshop.predict.validate.cases import HARDWARE, SECONDS, Case
from workshop.predict.validate.rows import (
    FULL,
    SELECTIVE,
    CannotPredict,
    Row,
    batches,
    columns,
    gpt,
    number,
    whole,
)


def vtrain(row: Row, table: str, index: int) -> Case:
    """Megatron-DeepSpeed on A100; full recomputation; vocabulary 51,200.

    In the single-node table, rows that differ in layers only leave for the output head without tensor
    parallelism a time in proportion to hidden size and batch, at 80 TFLOP/s, and with it 200. That is what
    GPT-2's own vocabulary, the odd 50,257, does to a matrix product, and Megatron pads it only as tensor
    parallelism demands; so it is taken here.

    Between nodes its authors' own configurations have 800 Gbit/s for the 8 devices of a node, half a DGX's.
    """
    tp, dp, pp = (whole(row, x) for x in ("tp", "dp", "pp"))
    micro, count = batches(row, dp)
    seq = whole(row, "seq_len_tokens")
    hidden = whole(row, "hidden_size")
    vocab = 50257 if tp == 1 and "singlenode" in table else 51200
    model = gpt(whole(row, "num_layers"), hidden, whole(row, "attention_heads"), seq, vocab)
    return Case(
        table,
        f"hidden {hidden}, tp {tp}",
        index,
        SECONDS,
        number(row, "iteration_time_ms") / 1e3,
        model,
        f"{tp * dp * pp}xA100-80GB",
        seq,
        "megatron-2022",
        "megatron-fp16",
        columns(replicate=dp, tensor=tp, pipeline=pp, micro_batch=micro, accumulation=count, recompute=FULL),
        inter="infiniband-hdr-4-per-node",
    )


def sc21(row: Row, table: str, index: int) -> Case:
    """Megatron-LM's weak scaling on Selene. TFLOP/s count recomputation; sequence 2,048, vocabulary
    51,200.
    """
    tp, pp, gpus = whole(row, "tp"), whole(row, "pp"), whole(row, "gpus")
    layers = whole(row, "num_layers")
    dp = gpus // (tp * pp)
    micro, count = batches(row, dp)
    chunk = whole(row, "layers_per_virtual_stage", 0)
    virtual = layers // (pp * chunk) if chunk else 1
    return Case(
        table,
        f"tp {tp}",
        index,
        HARDWARE,
        number(row, "achieved_tflops_per_gpu"),
        gpt(layers, whole(row, "hidden_size"), whole(row, "attention_heads"), 2048),
        f"{gpus}xA100-80GB",
        2048,
        "megatron-2021",
        "megatron-fp16",
        columns(
            replicate=dp,
            tensor=tp,
            pipeline=pp,
            virtual_stages=virtual,
            micro_batch=micro,
            accumulation=count,
            recompute=FULL,
        ),
        megatron_count=True,
    )


def sc21_zero3(row: Row, table: str, index: int) -> Case:
    """GPT-3 and a 530B model by ZeRO-3 alone, or by tensor 8 and the rest pipeline (arXiv 2104.04473,
    section 5.2).
    """
    size, gpus, ways = number(row, "params_billion"), whole(row, "gpus"), whole(row, "model_parallel_size")
    shapes = {175: (96, 12288, 96), 530: (105, 20480, 128)}
    nearest = min(shapes, key=lambda known: abs(known - size))
    model = gpt(*shapes[nearest], 2048)
    sharded = row["scheme"].startswith("ZeRO-3")
    tp = 1 if sharded else min(8, ways)
    pp = 1 if sharded else ways // tp
    dp = gpus // (tp * pp)
    micro, count = batches(row, dp)
    layout = columns(
        shard=dp if sharded else 1,
        replicate=1 if sharded else dp,
        zero=3 if sharded else 0,
        tensor=tp,
        pipeline=pp,
        micro_batch=micro,
        accumulation=count,
        recompute=FULL,
    )
    return Case(
        table,
        "ZeRO-3" if sharded else "PTD-P",
        index,
        HARDWARE,
        number(row, "achieved_tflops_per_gpu"),
        model,
        f"{gpus}xA100-80GB",
        2048,
        "deepspeed-2021" if sharded else "megatron-2021",
        "deepspeed-fp16" if sharded else "megatron-fp16",
        layout,
        megatron_count=True,
    )


_BLOOM_HEADS = {14400: 96, 13824: 64, 14336: 64}


def bloom(row: Row, table: str, index: int) -> Case:
    """BigScience's search for BLOOM's layout on Jean Zay; vocabulary 250,880, ZeRO-1, bf16, full
    recomputation.

    Where the source leaves the hidden width out it is 14,400 (the rows of that section repeat in one that
    names it). Layers not given are what the parameters in the name leave, as the nearest multiple of the
    stages.
    """
    tp, pp = whole(row, "tp"), whole(row, "pp")
    nodes = whole(row, "nodes_of_8", 0) or whole(row, "gpus") // 8
    dp = whole(row, "dp", nodes * 8 // (tp * pp))
    hidden = whole(row, "hidden_size", 14400)
    size = number({"size": (row.get("params_B_text") or "").rstrip("B")}, "size", 0.0)
    layers = whole(row, "num_layers", round((size * 1e9 / hidden - 51200) / (12 * hidden) / pp) * pp)
    heads = whole(row, "attention_heads", _BLOOM_HEADS.get(hidden, 64))
    if layers <= 0:
        raise CannotPredict("neither layers nor parameters are given")
    micro, count = batches(row, dp)
    model = gpt(layers, hidden, heads, 2048, 250880)
    seconds, gpus = number(row, "iteration_time_s"), tp * pp * dp
    flops = number(row, "tflops_per_gpu_hardware") * 1e12 * gpus * seconds
    _check_batch(flops / (96 * 2048 * layers * hidden**2), micro * count * dp)
    layout = columns(
        shard=dp, zero=1, tensor=tp, pipeline=pp, micro_batch=micro, accumulation=count, recompute=FULL
    )
    return Case(
        table,
        f"hidden {hidden}, pp {pp}",
        index,
        SECONDS,
        seconds,
        model,
        f"{gpus}xA100-80GB",
        2048,
        "megatron-deepspeed-bloom",
        "deepspeed-bf16",
        layout,
        inter="omni-path-4x100-per-node",
    )


def _check_batch(said: float, batch: int) -> None:
    """Refuse a row whose seconds and TFLOP/s contradict its batch."""
    if not 0.9 < said / batch < 1.3:
        raise CannotPredict(f"its seconds and its TFLOP/s mean a batch of {said:.0f}, not {batch}")


def korthikanti(row: Row, table: str, index: int) -> Case:
    """Full recomputation against sequence parallelism with selective recomputation (arXiv 2205.05198, table
    5).
    """
    if not row["table"].startswith("Table 5"):
        raise CannotPredict("a row about memory")
    tp, pp, dp = (whole(row, x) for x in ("tp", "pp", "dp"))
    micro, count = batches(row, dp)
    full = row["mode"] == "full"
    return Case(
        table,
        row["mode"],
        index,
        SECONDS,
        number(row, "iteration_time_s"),
        gpt(whole(row, "num_layers"), whole(row, "hidden_size"), whole(row, "attention_heads"), 2048),
        f"{tp * pp * dp}xA100-80GB",
        2048,
        "megatron-2022",
        "megatron-fp16",
        columns(
            replicate=dp,
            tensor=tp,
            sequence_parallel=not full,
            pipeline=pp,
            virtual_stages=whole(row, "pp_interleave_stages"),
            micro_batch=micro,
            accumulation=count,
            recompute=FULL if full else SELECTIVE,
        ),
    )


def megatron_2020(row: Row, table: str, index: int) -> Case:
    """Tensor-parallel weak scaling of 2020 on DGX-2 (V100) and DGX A100; sequence 1,024, full
    recomputation.
    """
    tp, gpus = whole(row, "tp"), whole(row, "gpus")
    batch = int(row["setting"].split("batch ")[1].split()[0])
    device = "V100-32GB" if "V100" in row["setting"] else "A100-40GB"
    dp = gpus // tp
    layers, hidden, heads = (whole(row, x) for x in ("num_layers", "hidden_size", "attention_heads"))
    return Case(
        table,
        f"{device[:4]} tp {tp}",
        index,
        SECONDS,
        number(row, "iteration_time_ms") / 1e3,
        gpt(layers, hidden, heads, 1024),
        f"{gpus}x{device}",
        1024,
        "megatron-2021",
        "megatron-fp16",
        columns(replicate=dp, tensor=tp, micro_batch=batch // dp, recompute=FULL),
    )
