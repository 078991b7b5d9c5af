"""What sources call models and devices, in the catalogue's names. An unknown name is refused and lists the
known.
"""

from __future__ import annotations

import re

from workshop.facts import catalogue
from workshop.facts.checks import nearest
from workshop.facts.model import ModelSpec
from workshop.predict.case import NotPredictable
from workshop.published.cells import gpt

# Where a source's name is not the catalogue's with other hyphens. NeMo's own GPT-3 sizes are shapes:
# github NVIDIA/NeMo, nemo/collections/llm/recipes (layers, hidden, heads).
ALIASES = {
    "llama3405b": "llama-3.1-405b",
    "nemotron15b": "nemotron-4-15b",
    "nemotron340b": "nemotron-4-340b",
    "kimik21t": "kimi-k2",
    "gpt3175b": "gpt3-175b",
}
SHAPES = {"gpt35b": (24, 4096, 32), "gpt320b": (44, 6144, 48)}


def _folded(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def named_model(name: str, seq_len: int = 2048) -> ModelSpec:
    """A model by the name that a source gives it; what stands in brackets is left out."""
    plain = _folded(name.split("(")[0])
    if plain in SHAPES:
        return gpt(*SHAPES[plain], seq_len)
    known = {_folded(each): each for each in catalogue.models()}
    if plain in ALIASES:
        return catalogue.model(ALIASES[plain])
    if plain not in known:
        raise NotPredictable(
            f"the shape of model {name!r} is not known{nearest(name, catalogue.models())} "
            f"(known: {', '.join(sorted(catalogue.models()))})"
        )
    return catalogue.model(known[plain])


def named_device(name: str, gigabytes: float = 0) -> str:
    """A device of the catalogue by the name that a source gives it, such as "A100-SXM4-80GB" or "DGX-H100".

    gigabytes: the memory to take where the name leaves it open ("A100" comes with 40 and with 80); a source
    that needs it says so among its assumptions.
    """
    words = name.lower().replace("_", " ").replace("-", " ")
    size = re.search(r"(\d+)\s*gb", words)
    wanted = float(size[1]) if size else gigabytes
    candidates = []
    for known, spec in catalogue.devices().items():
        family = re.sub(r"-(\d+gb|pcie)", "", known.lower()).replace("-", " ")
        short = family.removeprefix("rtx ")
        if not re.search(rf"(?<!\w)({re.escape(family)}|{re.escape(short)})(?!\w)", words):
            continue
        if ("pcie" in words) == ("PCIe" in known):
            candidates.append((known, spec.memory_bytes / 1e9))
    bare = [
        entry for entry in candidates if "-" not in entry[0]
    ]  # "H100" is the 80 GB one; there is no bare A100
    if not wanted and len(bare) == 1:
        candidates = bare
    if wanted:
        # 80 GB may be 80 GiB less what the driver keeps: near is enough, and sizes are far apart.
        candidates = [(known, size_) for known, size_ in candidates if 0.9 < size_ / wanted < 1.1]
    if len(candidates) != 1:
        listed = ", ".join(known for known, _ in candidates) or ", ".join(catalogue.devices())
        which = "may be several devices" if candidates else "is not known here"
        raise NotPredictable(f"device {name!r} {which} (known: {listed})")
    return candidates[0][0]
