"""SmolLM2-135M: a real language model, small enough for two cores.

A Llama: 30 layers of width 576, 9 heads with 3 for keys and values, 49,152 tokens, embeddings tied to the
head, 134.5 million parameters (Ben Allal et al. 2025, arXiv 2502.02737). The package holds it as GGUF in 4
bits (Q4_1: blocks of 32 weights, each with a scale and an offset); ``convert`` turns that into bf16 once.

**What this means for quantization lessons.** The weights *are* 4-bit numbers, written out. A scheme with the
same blocks would find them again without loss and look perfect. Compare schemes with other group sizes, or
symmetric ones, and say so.

``num_layers`` keeps that many layers, spread evenly from the first to the last: a smaller model with the same
tokenizer that still makes some sense after a little training, as DistilBERT's students begin (Sanh et al.
2019, arXiv 1910.01108, section 3). Out of the box it is worse than the whole one, and much worse below 20
layers.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workshop.assets import cache
from workshop.assets.store import Unavailable, folder, is_offline, place
from workshop.assets.table import asset
from workshop.process.quiet import quietly
from workshop.site.current import scrubbed

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NAME = "smollm2"
KEPT_DTYPE = "bf16"
CONVERT_SECONDS = 600.0


def converted_place() -> Path:
    """Where the bf16 copy lies, or would: beside the asset's own folder."""
    return cache.root() / f"{place(asset(NAME)).name}.{KEPT_DTYPE}"


def is_converted() -> bool:
    """Whether `load` can begin at once."""
    return cache.is_whole(converted_place())


def convert() -> Path:
    """The folder with the model in bf16 as transformers writes it, made on first use (half a minute, a
    process).

    Two processes at once: one converts, the other waits.

    Raises Unavailable: the package cannot be had, or `gguf` (which reads the file) is not installed.
    """
    source, goal = folder(NAME), converted_place()
    if cache.is_whole(goal):
        return goal
    with cache.lock(f"{NAME}.{KEPT_DTYPE}"):
        if not cache.is_whole(goal):
            with cache.filling(goal) as work:
                _run_converter(source, work)
    return goal


def _run_converter(source: Path, into: Path) -> None:
    """`workshop.assets.convert` in a process of its own, within a time limit, offline, on one thread."""
    if importlib.util.find_spec("gguf") is None:
        raise Unavailable(
            f"{NAME} comes as a GGUF file, and the package that reads it is missing: pip install gguf"
        )
    command = [sys.executable, "-m", "workshop.assets.convert", str(source), str(into)]
    environment = {**scrubbed(os.environ), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CONVERT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"converting {NAME} took longer than {CONVERT_SECONDS:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}, and no word"])[-1]
        raise Unavailable(f"{NAME} could not be converted: {last}")


def load(
    name: str = NAME,
    num_layers: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in eval mode and its tokenizer.

    Args:
        name: ``smollm2``, or, with ``WORKSHOP_HUB=1`` in the environment, a repository of the Hugging Face
            hub such as ``HuggingFaceTB/SmolLM2-360M-Instruct`` (checked by the hub's own hashes, not by
            ours).
        num_layers: keep so many layers, spread over the depth; all by default.
        dtype: of the weights; bf16 by default.
        device: where to put it.

    Raises:
        ValueError: an unknown name, or more layers than there are.
        Unavailable: the model is not here and cannot be fetched.
    """
    import torch

    dtype = dtype or torch.bfloat16
    there = _from_hub(name) if "/" in name else _local(name)
    with quietly():
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    with quietly():
        tokenizer = AutoTokenizer.from_pretrained(there)
        if tokenizer.pad_token is None:  # older versions of transformers read none from the packed model
            tokenizer.pad_token = tokenizer.eos_token
        config = AutoConfig.from_pretrained(there)
        if num_layers is None or num_layers == config.num_hidden_layers:
            model: Any = AutoModelForCausalLM.from_pretrained(there, dtype=dtype)
        else:
            model = _cut(there, config, num_layers, dtype)
    return model.to(device).eval(), tokenizer


def _local(name: str) -> Path:
    if name.lower() not in (NAME, "smollm2-135m", "smollm2-135m-instruct"):
        raise ValueError(
            f"unknown language model {name!r} (known: {NAME}; or with WORKSHOP_HUB=1 a repository of the "
            f"Hugging "
            "Face hub, such as HuggingFaceTB/SmolLM2-360M-Instruct)"
        )
    if not is_converted():
        folder(NAME)
        print(f"converting {NAME} to {KEPT_DTYPE}, once: about half a minute", flush=True)
    return convert()


def _from_hub(repository: str) -> Path:
    """A snapshot of a repository of the hub, if the user asked for the hub."""
    if os.environ.get("WORKSHOP_HUB", "0") in ("", "0"):
        raise Unavailable(
            f"{repository!r} is a repository of the Hugging Face hub, and the workshop asks the hub only "
            f"where it is "
            f"told to: set WORKSHOP_HUB=1. Without it there is language_model.load({NAME!r}), which comes "
            f"as a package"
        )
    from huggingface_hub import snapshot_download

    kinds = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(snapshot_download(repository, allow_patterns=kinds, local_files_only=is_offline()))
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"the hub did not give {repository!r}: {str(error).splitlines()[0]}. "
            f"Without it there is language_model.load({NAME!r})"
        ) from error


def spread(num_layers: int, out_of: int) -> list[int]:
    """Which layers to keep: evenly spread, the first and the last among them.

    >>> spread(4, 30)
    [0, 10, 19, 29]
    """
    if not 1 <= num_layers <= out_of:
        raise ValueError(f"num_layers = {num_layers}: the model has {out_of}; keep between 1 and {out_of}")
    if num_layers == 1:
        return [0]
    return [round(i * (out_of - 1) / (num_layers - 1)) for i in range(num_layers)]


def _cut(there: Path, config: Any, num_layers: int, dtype: torch.dtype) -> PreTrainedModel:
    """The model with some of its layers; only their weights are read."""
    import transformers
    from safetensors import safe_open

    kept = spread(num_layers, config.num_hidden_layers)
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[old] for old in kept]
    new_place = {f"model.layers.{old}.": f"model.layers.{new}." for new, old in enumerate(kept)}
    weights = {}
    for file in sorted(there.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 - not a dict
                prefix = next((p for p in new_place if key.startswith(p)), None)
                if prefix:
                    weights[new_place[prefix] + key.removeprefix(prefix)] = stored.get_tensor(key)
                elif not key.startswith("model.layers."):
                    weights[key] = stored.get_tensor(key)
    kind = getattr(transformers, config.architectures[0])
    return kind.from_pretrained(None, config=config, state_dict=weights, dtype=dtype)
