"""A file that somebody already has: read into a run, with what is wrong and what is not understood.

    reading = read_config(Path("accelerate.yaml"), Given(model="llama-3-8b", device="H100", micro_batch=1,
                                                         seq_len=8192))
    reading.run         what it trains, ready for predict_memory
    reading.mistakes    what will go wrong, with the cure
    reading.unread      settings that have a meaning, but none for memory and traffic

Accelerate's YAML and DeepSpeed's JSON are told apart by their keys, not by the file's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop.configs.given import Given
from workshop.configs.known_keys import ACCELERATE, DEEPSPEED, DEEPSPEED_REMOVED
from workshop.configs.mistakes_accelerate import accelerate_mistakes
from workshop.configs.mistakes_deepspeed import deepspeed_mistakes
from workshop.configs.read_accelerate import said_by_accelerate
from workshop.configs.read_deepspeed import said_by_deepspeed
from workshop.configs.said import Said, missing, run_of
from workshop.configs.silent_mistakes import Mistake
from workshop.facts.run import Run

READ_ACCELERATE = """
    distributed_type num_processes num_machines mixed_precision fsdp_config deepspeed_config
    parallelism_config use_cpu compute_environment debug main_process_ip main_process_port machine_rank
    rdzv_backend same_network main_training_function mpirun_config fp16
""".split()
READ_DEEPSPEED = """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping
    zero_optimization bf16 bfloat16 fp16 optimizer steps_per_print wall_clock_breakdown
    activation_checkpointing zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
""".split()
NOTHING: tuple[Any, ...] = ("", None, "all", "no", "NO", {}, [], False)


@dataclass(frozen=True, repr=False)
class Reading:
    """What a file says. ``run`` is None while something is missing; ``lacking`` names it."""

    kind: str  # "accelerate" or "deepspeed"
    said: Said
    run: Run | None
    lacking: tuple[str, ...]
    mistakes: tuple[Mistake, ...]
    unread: tuple[str, ...]

    def __str__(self) -> str:
        lines = [_in_words(self.said, self.kind)]
        lines += [f"note: {note}" for note in self.said.notes]
        lines += [f"not understood here: {key}" for key in self.unread]
        lines += [str(mistake) for mistake in self.mistakes] or ["nothing wrong was found"]
        if self.lacking:
            lines.append(f"to say what it needs, give also {', '.join(self.lacking)}")
        return "\n".join(lines)

    __repr__ = __str__


def _in_words(said: Said, kind: str) -> str:
    stage = f", ZeRO stage {said.zero}" if said.engine != "ddp" else ""
    hybrid = f", {said.replicate} replicas" if said.replicate > 1 else ""
    ranks = f"{said.ranks} ranks" if said.ranks else "ranks as the launcher starts them"
    return f"{kind}: {said.engine}{stage}{hybrid}, {ranks}, mixed precision {said.width or 'left open'}"


def read_config(source: Path | str | Mapping[str, Any], given: Given | None = None) -> Reading:
    """Read a file (a `Path`), its text or its content.

    Raises
    ------
    ValueError
        It is neither YAML nor JSON, or neither Accelerate's nor DeepSpeed's; a value does not exist; file
        and ``given`` contradict each other.
    FileNotFoundError
        The file, or the JSON that it names, is not there.
    """
    given = given or Given()
    config, folder = content(source)
    kind = kind_of(config)
    inside = _inner_file(config, folder) if kind == "accelerate" else None
    if kind == "accelerate":
        said = said_by_accelerate(config, given, inside)
    else:
        said = said_by_deepspeed(config, given)
    lacking = tuple(missing(said, given))
    return Reading(
        kind,
        said,
        None if lacking else run_of(said, given),
        lacking,
        tuple(_mistakes(config, kind, inside, given)),
        tuple(_unread(config, kind)),
    )


def find_mistakes(source: Path | str | Mapping[str, Any], given: Given | None = None) -> list[Mistake]:
    """What goes wrong with a file, though it may be too broken for `read_config`; empty for none.

    Raises as `read_config` does for what is no configuration at all.
    """
    given = given or Given()
    config, folder = content(source)
    kind = kind_of(config)
    return _mistakes(config, kind, _inner_file(config, folder) if kind == "accelerate" else None, given)


def _mistakes(
    config: Mapping[str, Any], kind: str, inside: Mapping[str, Any] | None, given: Given
) -> list[Mistake]:
    if kind == "deepspeed":
        return deepspeed_mistakes(config, given)
    ranks = config.get("num_processes")
    known = given if given.num_processes or not isinstance(ranks, int) else _with_ranks(given, ranks)
    return accelerate_mistakes(config, given) + (deepspeed_mistakes(inside, known) if inside else [])


def _with_ranks(given: Given, ranks: int) -> Given:
    return Given(**{**vars(given), "num_processes": ranks})


def content(source: Path | str | Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """The file as a dictionary, and the folder that its own paths start from."""
    if isinstance(source, Mapping):
        return dict(source), Path()
    if isinstance(source, Path):
        if not source.is_file():
            raise FileNotFoundError(f"there is no file {source}")
        return _parsed(source.read_text("utf-8"), source.name), source.parent
    return _parsed(source, "the text"), Path()


def _parsed(text: str, name: str) -> dict[str, Any]:
    """JSON where it begins as JSON does, else YAML."""
    import yaml

    try:
        found = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{name} holds no settings: a configuration is a table of names and values")
    return found


def kind_of(config: Mapping[str, Any]) -> str:
    """``"accelerate"`` or ``"deepspeed"``, by which of the two knows more of the keys."""
    accelerate = sum(key in ACCELERATE for key in config)
    deepspeed = sum(key in (*DEEPSPEED, *DEEPSPEED_REMOVED) for key in config)
    if not accelerate and not deepspeed:
        keys = ", ".join(config) or "none"
        raise ValueError(
            f"these are keys of neither an Accelerate YAML nor a DeepSpeed JSON: {keys}. An Accelerate file "
            "has distributed_type, a DeepSpeed file zero_optimization or train_micro_batch_size_per_gpu"
        )
    return "accelerate" if accelerate >= deepspeed else "deepspeed"


def _inner_file(config: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
    """The DeepSpeed JSON that an Accelerate YAML names; its path is read from the folder of the YAML."""
    if config.get("distributed_type") != "DEEPSPEED":
        return None
    name = (config.get("deepspeed_config") or {}).get("deepspeed_config_file")
    return content(folder / name)[0] if name else None


def _unread(config: Mapping[str, Any], kind: str) -> list[str]:
    """Keys that the engines know, and that nothing here takes into account."""
    known, read = (ACCELERATE, READ_ACCELERATE) if kind == "accelerate" else (DEEPSPEED, READ_DEEPSPEED)
    return [
        f"{key}: {value!r}"
        for key, value in config.items()
        if key in known and key not in read and value not in NOTHING
    ]
