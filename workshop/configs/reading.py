"""A file that somebody already has: read into a run, with what is wrong and what is not understood.

    reading = read_config(Path("accelerate.yaml"), Overrides(model="llama-3-8b", device="H100", micro_batch=1,
                                                             seq_len=8192))
    reading.run         what it trains, ready for predict_memory
    reading.mistakes    what will go wrong, with the cure
    reading.unread      settings that have a meaning, but none for memory and traffic

Accelerate's YAML, DeepSpeed's JSON, torchtitan's TOML, Megatron-LM's arguments and NeMo's YAML are told
apart by their content, not by the file's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop.configs.formats.accelerate import parse_accelerate
from workshop.configs.formats.content import Content, content
from workshop.configs.formats.deepspeed import parse_deepspeed
from workshop.configs.formats.megatron import parse_megatron
from workshop.configs.formats.nemo import parse_nemo
from workshop.configs.formats.torchtitan import parse_torchtitan
from workshop.configs.job_file import ParsedJob
from workshop.configs.known_keys import ACCELERATE, DEEPSPEED
from workshop.configs.mistakes.accelerate import accelerate_mistakes
from workshop.configs.mistakes.deepspeed import deepspeed_mistakes
from workshop.configs.mistakes.mistake import Mistake, table_at, whole_number
from workshop.configs.overrides import Overrides
from workshop.configs.parsed import ParsedConfig
from workshop.facts.run import Run
from workshop.facts.short_repr import short_repr

READ_ACCELERATE = """
    distributed_type num_processes num_machines mixed_precision fsdp_config deepspeed_config
    parallelism_config use_cpu compute_environment debug main_process_ip main_process_port machine_rank
    rdzv_backend same_network main_training_function mpirun_config fp16 fp8_config
""".split()
READ_DEEPSPEED = """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping
    zero_optimization bf16 bfloat16 fp16 optimizer steps_per_print wall_clock_breakdown
    activation_checkpointing zero_allow_untested_optimizer zero_force_ds_cpu_optimizer tensor_parallel
    sequence_parallel_size torch_autocast data_types expert_parallel hybrid_engine
""".split()
JUDGED = ("accelerate", "deepspeed")
"""Kinds of files whose mistakes are known; of the others the settings are read, and no more."""

NOTHING: tuple[Any, ...] = ("", None, "all", "no", "NO", {}, [], False)


@dataclass(frozen=True, repr=False)
class Reading:
    """What a file says. ``run`` is None while something is missing; ``lacking`` names it.

    ``mistakes`` holds also what depends on who reads the file (`Mistake.is_certain` tells them apart), and
    ``not_modelled`` why there is no run, whatever is added.
    """

    kind: str  # one of `KINDS` of `workshop.configs.formats.content`
    parsed: ParsedConfig | ParsedJob
    run: Run | None
    lacking: tuple[str, ...]
    mistakes: tuple[Mistake, ...]
    unread: tuple[str, ...]
    not_modelled: tuple[str, ...] = ()

    @property
    def certain(self) -> tuple[Mistake, ...]:
        """The mistakes that are ones, whoever reads the file."""
        return tuple(mistake for mistake in self.mistakes if mistake.is_certain)

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.parsed.in_words()}"]
        lines += [f"note: {note}" for note in self.parsed.notes]
        if self.parsed.without_effect:
            lines.append(f"without effect on the prediction: {', '.join(self.parsed.without_effect)}")
        lines += [f"not understood here: {key}" for key in self.unread]
        lines += [f"not modelled: {reason}" for reason in self.not_modelled]
        lines += [str(mistake) for mistake in self.mistakes]
        if self.kind not in JUDGED:
            but = "but for keys said twice, " if self.certain else ""
            lines.append(f"{but}mistakes are not looked for in a file of {self.kind}")
        elif not self.certain:
            lines.append("nothing wrong was found")
        if self.lacking and not self.not_modelled:
            lines.append(f"to say what it needs, give also {', '.join(self.lacking)}")
        return "\n".join(lines)

    __repr__ = __str__


def read_config(source: Path | str | Mapping[str, Any], overrides: Overrides | None = None) -> Reading:
    """Read a file (a `Path`), its text or its content.

    Raises:
        ValueError: It is no configuration, or nobody's that is known here; a value does not exist; file and
            ``overrides`` contradict each other.
        FileNotFoundError: The file, or the JSON that it names, is not there.
    """
    overrides = overrides or Overrides()
    file = content(source)
    inside = _inner_file(file)
    parsed = _parsed_file(file, inside, overrides)
    against, lacking = tuple(parsed.reasons_against()), tuple(parsed.missing(overrides))
    return Reading(
        file.kind,
        parsed,
        None if lacking or against else parsed.run(overrides),
        lacking,
        tuple(_mistakes(file, inside, overrides)),
        tuple(_unread(file)),
        against,
    )


def _parsed_file(
    file: Content, inside: Mapping[str, Any] | None, overrides: Overrides
) -> ParsedConfig | ParsedJob:
    if file.kind == "accelerate":
        return parse_accelerate(file.table, overrides, inside)
    if file.kind == "run":
        raise ValueError("this is a run of the workshop's own: `workshop predict` reads it")
    if file.kind == "deepspeed":
        return parse_deepspeed(file.table, overrides)
    jobs = {"torchtitan": parse_torchtitan, "megatron": parse_megatron, "nemo": parse_nemo}
    return jobs[file.kind](file.table, overrides)


def find_mistakes(
    source: Path | str | Mapping[str, Any], overrides: Overrides | None = None
) -> list[Mistake]:
    """What goes wrong with a file, though it may be too broken for `read_config`; empty for none.

    Raises as `read_config` does for what is no configuration at all.
    """
    file = content(source)
    return _mistakes(file, _inner_file(file), overrides or Overrides())


def _mistakes(file: Content, inside: Mapping[str, Any] | None, overrides: Overrides) -> list[Mistake]:
    if file.kind == "deepspeed":
        return deepspeed_mistakes(file.table, overrides)
    mistakes = [
        Mistake(
            key, "silent", f"said twice; YAML keeps the last, {short_repr(value)}", "take one of them out"
        )
        for key, value in file.twice
    ]
    if file.kind != "accelerate":
        return mistakes
    mistakes += accelerate_mistakes(file.table, overrides)
    if inside is not None:
        ranks = whole_number(file.table.get("num_processes")) or 0
        readers = overrides.readers(via_accelerate=True)
        mistakes += deepspeed_mistakes(inside, overrides.with_ranks(ranks), readers)
    return mistakes


def _inner_file(file: Content) -> dict[str, Any] | None:
    """The DeepSpeed JSON that an Accelerate YAML names; its path is read from the folder of the YAML."""
    if file.kind != "accelerate" or file.table.get("distributed_type") != "DEEPSPEED":
        return None
    name = table_at(file.table, "deepspeed_config").get("deepspeed_config_file")
    return content(file.folder / str(name)).table if name else None


def _unread(file: Content) -> list[str]:
    """Keys that the engines know, and that nothing here takes into account."""
    if file.kind not in JUDGED:  # a job file lists them itself
        return []
    known, read = (ACCELERATE, READ_ACCELERATE) if file.kind == "accelerate" else (DEEPSPEED, READ_DEEPSPEED)
    return [
        f"{key}: {short_repr(value)}"
        for key, value in file.table.items()
        if key in known and key not in read and value not in NOTHING
    ]
