"""(g) Serving: tokens/s of our paged server by requests at once, and of its best case, beside the predictor.

The weights are random: a server's speed does not depend on what it says. The cheapest bound is bytes: a step
that gives one token to each of B requests reads every weight once, and each request's keys and values.
"""

from __future__ import annotations

import time

import torch

from benchmarks.gpu.stage import Row, Stage, catalogue_name, row
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run

SPEC = ModelSpec("1.3b", 24, 2048, 16, 32000, ffn_hidden_size=5504)
TOY = ModelSpec("toy", 2, 64, 4, 256, ffn_hidden_size=176)


def run(stage: Stage) -> None:
    """One request, then many."""
    for batch in stage.sized((1, 8, 32, 128), (1, 4), (2,)):
        stage.part(f"{batch} at once", lambda batch=batch: served(stage, batch), needs=20)


def served(stage: Stage, batch: int) -> list[Row]:
    """Tokens/s of requests of one length, prompts and answers timed together and steps of answers alone."""
    from workshop.models.from_spec import gpt_of
    from workshop.serve.server import Server

    spec = stage.sized(SPEC, TOY)
    prompt, output = stage.sized((256, 64), (8, 4))
    torch.manual_seed(0)
    with torch.device(stage.device):
        model = gpt_of(spec).to(torch.bfloat16 if stage.on_gpu else torch.float32).eval()
    blocks = batch * ((prompt + output) // 16 + 2)
    budget = max(batch, stage.sized(2048, 32))
    with torch.no_grad():
        for _ in range(stage.sized(2, 1)):  # the first warms up
            server = Server(model, blocks, budget=budget, prefix_cache=False)
            words = torch.randint(0, spec.vocab_size, (batch, prompt)).tolist()
            for one in words:
                server.add(one, output)
            began = time.perf_counter()
            server.run()
            seconds = time.perf_counter() - began
    answers = sorted(took for tokens, took in server.steps if tokens <= batch)
    between = answers[len(answers) // 2] if answers else None
    prediction = predicted(spec, batch, prompt, output) if stage.on_gpu else (None, None)
    by_bytes = seconds_by_bytes(spec, batch, prompt + output // 2) if stage.on_gpu else None
    rate, bound = between and batch / between, by_bytes and batch / by_bytes
    return [
        row("tokens/s of answers", batch * output / seconds, "tokens/s", prediction[0]),
        row("between two tokens", between, "s", prediction[1]),
        row("tokens/s between two tokens, beside bytes alone", rate, "tokens/s", bound),
    ]


def seconds_by_bytes(spec: ModelSpec, batch: int, tokens: int) -> float:
    """A step that gives each request one token reads each weight, and all tokens' keys and values, once.

    Of the embedding it reads one row a request: that table is not counted.
    """
    from workshop.facts.catalogue import device

    kept = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * tokens
    read = spec.num_params - spec.vocab_size * spec.hidden_size * (not spec.tied_embeddings)
    return 2 * (read + batch * kept) / device(catalogue_name()).memory_bandwidth


def predicted(spec: ModelSpec, batch: int, prompt: int, output: int) -> tuple[float, float]:
    """What `predict_serving` says of vLLM on this GPU: the bar, not what 300 lines of Python reach."""
    from workshop.facts.serving import Serving
    from workshop.predict.serving.prediction import predict_serving

    run = Run(spec, f"1x{catalogue_name()}", Layout(precision="bf16"), batch, prompt + output)
    prediction = predict_serving(Serving(run), prompt, output, batch)
    return prediction.tokens_per_second, prediction.time_between_tokens
