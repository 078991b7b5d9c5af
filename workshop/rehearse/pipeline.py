"""What the neighbours of a pipeline stage would have said.

Before its first micro-batch `PipelineStage` asks the stage before it for the shapes it will send, as a Python
object (unless it was given `input_args` and `output_args`). In a world of one rank nobody answers. Two facts
replace the answer:

* Gradients have the shape and dtype of what they are gradients of. So what the next stage would announce for
  the way back is what this stage announced for the way there.
* The stage before: the same program is rehearsed as the first stage, in a process of its own, up to the
  moment where it announces its output. All boundaries of the pipeline are taken to be alike, which is noted.

Since torch 2.12 a stage asks by methods of its own (`_send_meta`, `_recv_meta`), before that by object lists
in `_shape_inference`, and only on the way there.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import stage as stage_module
from torch.distributed.pipelining.stage import PipelineStage
from torch.utils._pytree import tree_map_only

from workshop.measure.swap import swap
from workshop.rehearse import process
from workshop.rehearse.request import Request
from workshop.rehearse.tracer import StopRehearsal

Announce = Callable[[Any], None]
AskBefore = Callable[[PipelineStage], Any]
_STAGE: Any = stage_module  # some names of it are younger than torch 2.11


def install(request: Request, notes: dict[str, None]) -> None:
    """Answer metadata questions of pipeline stages in this process."""
    first_boundary: list[Any] = []

    def announce(meta: Any) -> None:
        if request.probe:
            Path(request.probe).write_bytes(pickle.dumps(meta))
            raise StopRehearsal

    def ask_before(stage: PipelineStage) -> Any:
        if not first_boundary:
            first_boundary.append(_ask_first_stage(request, stage))
            notes["pipeline: every boundary is taken to carry what the first stage sends"] = None
        return first_boundary[0]

    if hasattr(PipelineStage, "_send_meta"):
        _agree_with_myself()
        _answer_methods(announce, ask_before)
    else:
        _answer_object_lists(announce, ask_before)


def _answer_methods(announce: Announce, ask_before: AskBefore) -> None:
    """As stages ask since torch 2.12."""

    def send(self: Any, meta: Any, dst_stage: int) -> None:
        announce(meta)
        if dst_stage > self.stage_index:
            self._announced = meta

    def receive(self: Any, src_stage: int) -> Any:
        return _gradients_of(self._announced) if src_stage > self.stage_index else ask_before(self)

    swap(PipelineStage, "_send_meta", send)
    swap(PipelineStage, "_recv_meta", receive)


def _answer_object_lists(announce: Announce, ask_before: AskBefore) -> None:
    """As stages ask in torch 2.11: tensors without data travel as objects, and here their shapes do."""
    stage_class: Any = PipelineStage
    infer = stage_class._shape_inference

    def shape_inference(self: Any, args: Any, kwargs: Any = None) -> Any:
        def send(objects: list[Any], *args: Any, **kwargs: Any) -> None:
            announce(tree_map_only(torch.Tensor, _Shape, objects[0]))

        def receive(objects: list[Any], *args: Any, **kwargs: Any) -> None:
            objects[0] = tree_map_only(_Shape, _Shape.empty, ask_before(self))

        put_back = [swap(dist, "send_object_list", send), swap(dist, "recv_object_list", receive)]
        try:
            return infer(self, args, kwargs)
        finally:
            for original in put_back:
                original()

    swap(stage_class, "_shape_inference", shape_inference)


class _Shape:
    """Shape, strides and type of a tensor: a fake one cannot be pickled."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.sizes, self.strides, self.dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype

    def empty(self) -> torch.Tensor:
        """Such a tensor, without data."""
        return torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device="meta")


def _gradients_of(announced: Any) -> Any:
    """What the next stage would announce about gradients: those of the tensors it was told of."""
    return _STAGE._StageBackwardMeta(backward_metas=_STAGE._derive_grad_metas(announced.forward_metas))


def _agree_with_myself() -> None:
    """Stages vote on whether shapes are given or must be asked for; all run the same program, so all vote
    alike."""

    def forward_vote(self: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:
        dynamic = _STAGE.InferenceMode.needs_dynamic(self._user_meta, has_backward)
        self._vote = torch.tensor([0 if dynamic else 1], dtype=torch.int32)
        return self._vote

    def backward_result(self: Any, received_result: Any = None) -> torch.Tensor:
        return self._vote

    swap(PipelineStage, "_warmup_forward_vote", forward_vote)
    swap(PipelineStage, "_warmup_backward_result", backward_result)


def _ask_first_stage(request: Request, stage: PipelineStage) -> Any:
    group = stage.group or dist.distributed_c10d._get_default_group()
    first = dist.get_global_rank(group, stage.stage_index_to_group_rank[0])
    with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
        boundary, question, answer = (
            Path(folder, name) for name in ("boundary", "request.json", "answer.json")
        )
        question.write_text(replace(request, rank=first, probe=str(boundary)).to_json())
        done = process.child([str(question), str(answer)], timeout=120.0)
        if not boundary.exists():
            raise RuntimeError(f"the first pipeline stage never announced its output:\n{done.stderr[-1000:]}")
        return pickle.loads(boundary.read_bytes())
