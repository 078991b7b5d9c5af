r"""Distillation: a small model learns what a large one thinks of every word, not only which word came.

A label says one thing about a position. The teacher's probabilities say something about every word of the
vocabulary: that *house* was nearly as likely as *home*, and *seven* was not. Hinton et al. (2015, arXiv
1503.02531) soften both sides with a temperature T, so that small probabilities are heard too::

    p = softmax(teacher / T)        q = softmax(student / T)        loss = T^2 KL(p || q)

Why T^2? The gradient with respect to a student's logit z_i is (q_i - p_i) / T, and for a large T both
probabilities are 1/N + (their logit - mean) / (N T): so it is about (z_i - v_i) / (N T^2), the section's
equation 4. Times T^2 it is about as large as the labels' gradient whatever T is, and as T grows distillation
turns into plain matching of logits (each set less its mean).

Which way round? Forward KL(p || q), above, punishes a student for having no probability where the teacher has
some: it spreads to cover everything. Reverse KL(q || p) punishes probability where the teacher has none: it
chooses what it can do well (MiniLLM, Gu et al. 2023, arXiv 2306.08543, figure 2; there it is taken over texts
that the student wrote itself, here over a given text).

DistilBERT (Sanh et al. 2019, arXiv 1910.01108, section 3) adds up three losses: soft targets, labels, and the
cosine between both models' hidden states. Its student *is* every second layer of the teacher. `cut_student`
does that to a language model: layers spread over the depth, their weights copied, embedding and head too.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workshop.models.gpt import GPT

# -- losses --------------------------------------------------------------------------------------------------


def forward_kl(student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student), mean over positions, no T^2.

    Both (..., words), of one vocabulary; returns a scalar in nats. ValueError where shapes differ or the
    temperature is not positive.
    """
    student, teacher = _log_probabilities(student_logits, teacher_logits, temperature)
    return (teacher.exp() * (teacher - student)).sum(-1).mean()


def soft_loss(student_logits: Tensor, teacher_logits: Tensor, temperature: float = 2.0) -> Tensor:
    """T^2 KL(teacher || student) of both softmaxes at temperature T (arXiv 1503.02531, section 2).

    Shapes and errors as for `forward_kl`. The teacher's logits should carry no gradient.
    """
    return temperature**2 * forward_kl(student_logits, teacher_logits, temperature)


def _log_probabilities(student: Tensor, teacher: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    if student.shape != teacher.shape:
        raise ValueError(
            f"student's logits are {tuple(student.shape)}, the teacher's {tuple(teacher.shape)}: "
            "distillation by logits needs the same positions and the same vocabulary"
        )
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; take a positive one, 1 to 4 as a rule")
    return (
        F.log_softmax(student.float() / temperature, -1),
        F.log_softmax(teacher.float() / temperature, -1),
    )


def hidden_loss(student_hidden: Tensor, teacher_hidden: Tensor) -> Tensor:
    """1 - cosine between hidden states of one width, mean over positions (arXiv 1910.01108, section 3).

    Both (..., hidden). ValueError where the widths differ: such a student needs a projection of its own.
    """
    if student_hidden.shape != teacher_hidden.shape:
        raise ValueError(
            f"hidden states are {tuple(student_hidden.shape)} and {tuple(teacher_hidden.shape)}: "
            "a cosine needs the same width, so project the student's states first"
        )
    return (1 - F.cosine_similarity(student_hidden.float(), teacher_hidden.float(), dim=-1)).mean()


@dataclass(frozen=True)
class Seen:
    """What a model said of a batch: logits (batch, seq, words), hidden states (batch, seq, hidden) or
    None."""

    logits: Tensor
    hidden: Tensor | None = None


@dataclass(frozen=True)
class DistilLoss:
    """soft * T^2 KL + labels * cross-entropy + hidden * (1 - cosine), each weight its own.

    The weights are those of DistilBERT's training script (transformers, examples/research_projects/
    distillation: alpha_ce 5, alpha_mlm 2, alpha_cos 1, temperature 2); the paper names the three losses.
    """

    soft: float = 5.0
    labels: float = 2.0
    hidden: float = 1.0
    temperature: float = 2.0

    def __call__(self, student: Seen, teacher: Seen, targets: Tensor) -> Tensor:
        """The weighted sum, a scalar. ``targets`` (batch, seq): the words that came, -100 where none counts.

        A part whose weight is 0 is not computed. ValueError where hidden states are weighed and missing.
        """
        total = student.logits.new_zeros((), dtype=torch.float32)
        if self.soft:
            total = total + self.soft * soft_loss(student.logits, teacher.logits, self.temperature)
        if self.labels:
            flat = student.logits.flatten(0, -2).float()
            total = total + self.labels * F.cross_entropy(flat, targets.flatten())
        if self.hidden:
            if student.hidden is None or teacher.hidden is None:
                raise ValueError(f"hidden states weigh {self.hidden}, but only logits were given: pass both")
            total = total + self.hidden * hidden_loss(student.hidden, teacher.hidden)
        return total


# -- students ------------------------------------------------------------------------------------------------


def spread_layers(num_teacher: int, num_student: int) -> tuple[int, ...]:
    """Which layers to keep: the first, the last, and evenly between. ``spread_layers(30, 4)``: 0 10 19 29.

    ValueError where the student would be deeper than the teacher, or have no layer.
    """
    if not 1 <= num_student <= num_teacher:
        raise ValueError(f"a student of {num_student} layers cannot be cut from {num_teacher}: take 1 to all")
    if num_student == 1:
        return (0,)
    return tuple(round(index * (num_teacher - 1) / (num_student - 1)) for index in range(num_student))


_LAYER = re.compile(r"^(.*\blayers\.)(\d+)(\..*)$")


def layer_cut(state_dict: Mapping[str, Tensor], layers: Sequence[int]) -> dict[str, Tensor]:
    """The teacher's state dict with only these layers, numbered anew; everything else as it is."""
    new = {old: number for number, old in enumerate(layers)}
    kept = {}
    for name, tensor in state_dict.items():
        match = _LAYER.match(name)
        if match is None:
            kept[name] = tensor
        elif int(match[2]) in new:
            kept[f"{match[1]}{new[int(match[2])]}{match[3]}"] = tensor
    return kept


def cut_student(teacher: nn.Module, layers: Sequence[int]) -> nn.Module:
    """A model of the teacher's own class with these of its layers, every tensor a copy of the teacher's.

    For `GPT` and for transformers' decoders with `model.layers`. Raises ValueError where a layer is named
    twice or is not there.
    """
    num_layers = len(teacher.model.layers)  # type: ignore[union-attr, arg-type]
    if len(set(layers)) < len(layers) or not set(layers) <= set(range(num_layers)) or not layers:
        raise ValueError(f"layers {list(layers)}: name some of 0 to {num_layers - 1}, each once")
    config: Any = copy.deepcopy(teacher.config)
    if isinstance(teacher, GPT):
        config = replace(config, num_layers=len(layers))
    else:
        config.num_hidden_layers = len(layers)
        if getattr(config, "layer_types", None):
            config.layer_types = [config.layer_types[index] for index in layers]
    example = next(teacher.parameters())
    student = type(teacher)(config).to(example.device, example.dtype)
    student.load_state_dict(layer_cut(teacher.state_dict(), layers))
    return student.train(teacher.training)


def keep_words(model: nn.Module, words: Tensor) -> nn.Module:
    """Keep these rows of embedding and head, in place: the model then knows no other word.

    ``words``: sorted token numbers without repeats, (kept,). Text is renumbered by `torch.searchsorted(words,
    tokens)`. The softmax goes over the kept words only, so probabilities are those of the whole model given
    that the word is one of them. A tied head stays tied. ValueError where words are not sorted.
    """
    if words.numel() == 0 or not bool((words.diff() > 0).all()):
        raise ValueError("words must be sorted token numbers, each once: use torch.unique(tokens)")
    embedding: nn.Embedding = model.model.embed_tokens  # type: ignore[union-attr, assignment]
    head: nn.Linear = model.lm_head  # type: ignore[assignment]
    is_tied = head.weight is embedding.weight
    embedding.weight = nn.Parameter(embedding.weight.data[words].clone())
    head.weight = embedding.weight if is_tied else nn.Parameter(head.weight.data[words].clone())
    embedding.num_embeddings = head.out_features = len(words)
    embedding.padding_idx = None
    config: Any = model.config
    if isinstance(model, GPT):
        model.config = replace(config, vocab_size=len(words))
        model.model.config = model.config
    else:
        config.vocab_size = len(words)
    return model
