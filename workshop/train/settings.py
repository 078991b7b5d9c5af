"""What a training run is told beside its model and layout: one frozen table, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from workshop.facts.checks import check_choice, check_not_negative, check_positive
from workshop.train.schedule import Schedule

ENGINES = ("auto", "plain", "ddp", "zero", "deepspeed", "fsdp")


@dataclass(frozen=True)
class Settings:
    """How to train.

    Args:
        num_steps: optimizer steps in all.
        optimizer, learning_rate, weight_decay: see `optimizers.build_optimizers`.
        schedule, warmup: see `schedule.Schedule`.
        clip_norm: the gradient's norm is cut to this; 0 leaves it.
        engine: which library shards; "auto" takes the one that the layout's stage and precision belong to.
            "zero" is the version written by hand (`parallel.zero`).
        compile: a backend of torch.compile, such as "inductor", for every layer; "" compiles nothing.
        seed: of the weights and of the data's order.
        log, log_every: see `log.open_log`; a line every so many steps.
        save_every, keep: a checkpoint every so many steps (0: none), of which so many are kept.

    Raises ValueError for values that cannot be.
    """

    num_steps: int = 20
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup: int = 0
    clip_norm: float = 1.0
    engine: str = "auto"
    compile: str = ""
    seed: int = 0
    log: str = "jsonl"
    log_every: int = 10
    save_every: int = 0
    keep: int = 2

    def __post_init__(self) -> None:
        for name in ("num_steps", "log_every", "keep"):
            check_positive(name, getattr(self, name))
        for name in ("warmup", "save_every"):
            check_not_negative(name, getattr(self, name))
        for name in ("learning_rate", "weight_decay", "clip_norm"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be zero or more, not {getattr(self, name)!r}")
        check_choice("engine", self.engine, ENGINES)
        self.rates()

    def rates(self) -> Schedule:
        """The learning rate of every step."""
        return Schedule(self.learning_rate, self.schedule, self.num_steps, self.warmup)
