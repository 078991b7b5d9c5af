"""SmolLM2-135M served: tokens a second of each step of lesson 56, and of others beside them.

    pip install xllamacpp        # llama.cpp in a wheel; without it, its lines are left out
    python -m benchmarks.serving --json data/measurements/serving.json

One thread, and seconds of the processor's time, prompts included: whatever else runs on the machine
takes time from all alike, and is not counted. Each line is measured ``--repeats`` times in turns, and
the best is kept. Every text of ours is compared with the plain loop's (two users) and with the cache's
(all).
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.machine import machine
from workshop.adapt.nf4 import quantize_nf4
from workshop.assets import language_model, questions
from workshop.assets.store import folder
from workshop.models.from_hub import as_gpt
from workshop.models.gpt import GPT
from workshop.serve.server import Server
from workshop.serve.speculate import OneSequence, Propose, model_draft, ngram_draft, speculate

Texts = list[list[int]]
Step = Callable[[], Texts]
CLOSE = 1e-3  # logits nearer than this may change places when sums are taken in another order


class Int8Linear(nn.Module):
    """Weights in one byte and a scale for each row; made 32 bits wide again in every pass."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.scale = linear.weight.detach().abs().amax(1) / 127
        self.codes = (linear.weight.detach() / self.scale[:, None]).round().to(torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.codes.to(x.dtype)) * self.scale


class Int8Kernel(Int8Linear):
    """The same codes, read by PyTorch's own kernel for them, in bf16: the one gpt-fast takes on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        wide: Tensor = torch._weight_int8pack_mm(x.bfloat16(), self.codes, self.scale.bfloat16())
        return wide.to(x.dtype)


class NF4Linear(nn.Module):
    """Weights in half a byte, by hand."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.packed = quantize_nf4(linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.packed.dequantize().to(x.dtype))


def with_linears(model: GPT, kind: Callable[[nn.Linear], nn.Module]) -> GPT:
    """A copy whose layers have other linear maps; the head stays."""
    changed = copy.deepcopy(model)
    for module in [m for layer in changed.model.layers for m in (layer.self_attn, layer.mlp)]:
        for name, linear in list(module.named_children()):
            if isinstance(linear, nn.Linear):
                setattr(module, name, kind(linear))
    return changed


class Contenders:
    """What is measured, each a function that gives every user's new tokens."""

    def __init__(self, users: int, count: int) -> None:
        self.count = count
        self.hub, self.tokenizer = language_model.load("smollm2", dtype=torch.float32)
        self.gpt = as_gpt(self.hub)
        self.asked = [example.text for example in questions.load().test[:users]]
        self.prompts = [self.prompt(text) for text in self.asked]
        beginning = "Answer briefly and in plain words. " * 12
        self.alike = [self.prompt(beginning + text) for text in self.asked]
        self.guessed: dict[str, dict[str, float]] = {}
        few = language_model.load("smollm2", 15, dtype=torch.float32)[0]
        self.drafts: dict[str, Callable[[], Propose]] = {
            "n-gram": lambda: ngram_draft,
            "15 of its own 30 layers": lambda: model_draft(as_gpt(few), 512),
        }

    def prompt(self, text: str) -> list[int]:
        """A question as the chat model expects it."""
        chat = [{"role": "user", "content": text}]
        words = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self.tokenizer(words).input_ids
        return ids

    @torch.inference_mode()
    def plain(self, users: int = 1) -> tuple[Texts, list[list[float]]]:
        """The loop that reads everything again, and the margin of each token."""
        texts, margins = [], []
        for prompt in self.prompts[:users]:
            tokens, ahead = list(prompt), list[float]()
            for _ in range(self.count):
                best = self.gpt(torch.tensor([tokens]))[0, -1].topk(2)
                tokens.append(int(best.indices[0]))
                ahead.append(float(best.values[0] - best.values[1]))
            texts.append(tokens[len(prompt) :])
            margins.append(ahead)
        return texts, margins

    def serve(self, prompts: Sequence[list[int]], model: GPT | None = None, **options: Any) -> Texts:
        """Our server; each user's tokens."""
        server = Server(model or self.gpt, 512, **{"budget": 1024, **options})
        requests = [server.add(prompt, self.count) for prompt in prompts]
        server.run()
        return [request.output for request in requests]

    def one_after_the_other(self, prompts: Sequence[list[int]], prefix_cache: bool) -> Texts:
        """Users who come one at a time."""
        server = Server(self.gpt, 512, budget=1024, prefix_cache=prefix_cache)
        texts = []
        for prompt in prompts:
            request = server.add(prompt, 8)
            server.run()
            texts.append(request.output)
        return texts

    def speculated(self, draft: str) -> Texts:
        """Four users, one at a time, with four guesses before each pass."""
        speculations = [
            speculate(OneSequence(self.gpt, 512), prompt, self.count, self.drafts[draft](), 4)
            for prompt in self.prompts[:4]
        ]
        passes, right = (
            sum(map(len, (f.right for f in speculations))),
            sum(sum(f.right) for f in speculations),
        )
        wrong = sum(a > b for f in speculations for a, b in zip(f.guessed, f.right, strict=True))
        self.guessed[f"speculation, {draft}"] = {
            "tokens_per_pass": round((passes + right) / passes, 2),
            "acceptance": round(right / max(1, right + wrong), 2),
        }
        return [f.output for f in speculations]

    def generate(self, users: int) -> Texts:
        """transformers, with its own cache; a batch is filled up at the left."""
        longest = max(map(len, self.prompts[:users]))
        rows = [[self.tokenizer.eos_token_id] * (longest - len(p)) + p for p in self.prompts[:users]]
        mask = [[0] * (longest - len(p)) + [1] * len(p) for p in self.prompts[:users]]
        how = {"do_sample": False, "max_new_tokens": self.count, "min_new_tokens": self.count}
        with torch.inference_mode():
            ids = self.hub.generate(
                torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                pad_token_id=self.tokenizer.eos_token_id,
                **how,
            )
        texts: Texts = ids[:, longest:].tolist()
        return texts


def llama_cpp(contenders: Contenders, users: int) -> Callable[[int], Texts] | None:
    """llama.cpp on the very file that our weights come from, one thread; None where it is not installed."""
    try:
        import xllamacpp
    except ImportError:
        return None
    params = xllamacpp.CommonParams()
    params.model.path = str(next(folder("smollm2").glob("*.gguf")))
    params.n_ctx, params.n_parallel = 512 * users, users
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.sampling.temp = 0.0
    server = xllamacpp.Server(params)

    def one(prompt: list[int]) -> list[int]:
        wanted = {"prompt": prompt, "max_tokens": contenders.count, "temperature": 0.0, "ignore_eos": True}
        text = server.handle_completions({**wanted, "cache_prompt": False})["choices"][0]["text"]
        ids: list[int] = contenders.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def complete(num: int) -> Texts:
        with ThreadPoolExecutor(num) as pool:
            return list(pool.map(one, contenders.prompts[:num]))

    return complete


def steps(c: Contenders) -> dict[str, tuple[Step, int, str]]:
    """By name: what runs, the users it serves, and what to know about it."""
    users, gpt = len(c.prompts), c.gpt
    common = next(i for i, column in enumerate(zip(*c.alike, strict=False)) if len(set(column)) > 1)
    alike = f"{users} users, one after the other, the same {common} tokens first"
    by_name: dict[str, tuple[Step, int, str]] = {
        "plain loop": (lambda: c.plain()[0], 1, "one user"),
        "cache": (lambda: c.serve(c.prompts[:1]), 1, "one user"),
        "static batch of 4": (
            lambda: [t for i in range(0, users, 4) for t in c.serve(c.prompts[i : i + 4])],
            users,
            f"{users} users",
        ),
        "continuous": (lambda: c.serve(c.prompts), users, f"{users} users"),
        "continuous, chunks of 64": (lambda: c.serve(c.prompts, budget=64), users, f"{users} users"),
        "prefix cache off": (lambda: c.one_after_the_other(c.alike, False), users, alike),
        "prefix cache on": (lambda: c.one_after_the_other(c.alike, True), users, alike),
    }
    for draft in c.drafts:
        by_name[f"speculation, {draft}"] = (
            lambda draft=draft: c.speculated(draft),
            4,
            "four users, in turns",
        )
    kinds = {"int8, by hand": Int8Linear, "int8, PyTorch's kernel": Int8Kernel, "NF4, by hand": NF4Linear}
    for name, kind in kinds.items():
        changed = with_linears(gpt, kind)
        by_name[name] = (lambda changed=changed: c.serve(c.prompts[:1], changed), 1, "one user")
    for num in (1, users):
        who = "one user" if num == 1 else f"{num} users"
        by_name[f"transformers generate, {who}"] = (lambda num=num: c.generate(num), num, "its own cache")
    if run := llama_cpp(c, users):
        for num in (1, users):
            who = "one user" if num == 1 else f"{num} users"
            by_name[f"llama.cpp, {who}"] = (
                lambda num=num: run(num),
                num,
                "4 bits: the file our weights are from",
            )
    return by_name


def agreement(texts: Texts, wanted: Texts) -> dict[str, int]:
    """How many texts there are and are the plain cache's, and after how many tokens on average they part."""
    pairs = [list(zip(mine, plain, strict=False)) for mine, plain in zip(texts, wanted, strict=False)]
    alike = [next((i for i, (a, b) in enumerate(pair) if a != b), len(pair)) for pair in pairs]
    equal = sum(n == len(pair) == len(wanted[0]) for n, pair in zip(alike, pairs, strict=True))
    return {"texts": len(texts), "texts_equal": equal, "tokens_equal": round(sum(alike) / len(alike))}


def main() -> None:
    """Measure in turns, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of each user")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the record here")
    how = parser.parse_args()
    torch.set_num_threads(1)
    contenders = Contenders(how.users, how.tokens)
    plain, margins = contenders.plain(2)
    wanted = contenders.serve(contenders.prompts)
    for text, loop, ahead in zip(wanted, plain, margins, strict=False):
        apart = next((i for i, (a, b) in enumerate(zip(text, loop, strict=True)) if a != b), None)
        assert apart is None or ahead[apart] < CLOSE, "the server's text is not the plain loop's"
    todo = steps(contenders)
    seconds: dict[str, float] = {}
    texts: dict[str, Texts] = {}
    for _ in range(how.repeats):
        for name, (step, _, _) in todo.items():
            started = time.process_time()
            texts[name] = step()
            took = time.process_time() - started
            seconds[name] = min(took, seconds.get(name, took))
            print(f"{name:<40} {took:.2f} s", flush=True)
    results = []
    for name, (_, users, note) in todo.items():
        num = sum(map(len, texts[name])) if "llama.cpp" not in name else users * how.tokens
        rate = round(num / seconds[name], 1)
        row: dict[str, Any] = {"name": name, "users": users, "tokens_per_second": rate, "note": note}
        if not name.startswith("prefix"):
            row |= agreement(texts[name], wanted)
        row |= contenders.guessed.get(name, {})
        results.append(row)
        print(row)
    if how.json:
        record = {
            "date": date.today().isoformat(),
            "command": " ".join(["python -m benchmarks.serving", *sys.argv[1:]]),
            "machine": machine(("torch", "transformers", "xllamacpp")),
            "threads": 1,
            "seconds": "of the processor's time, prompts included, the best of the repeats",
            "tokens_each": how.tokens,
            "results": results,
        }
        how.json.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
