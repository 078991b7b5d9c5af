"""Save and resume exactly: weights, optimizer, data position, random state; on any number of ranks.

    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.save(ready, batches, step=20)         # all ranks, together
    first_step = checkpoints.resume(ready, batches)   # 20, or 0 where nothing was saved

Each rank writes the parts it holds (torch.distributed.checkpoint), and the whole is described by parameter
name: what four ranks saved, two or one can read, and what FSDP2 saved, DDP can go on with. Beside it lie the
step, from which learning rate and data follow (both are functions of the step's number), and every rank's
random state, which only the same number of ranks can take up again.

What is exact: on the same ranks the next loss is the unbroken run's to the last bit. On others the weights
are the same bits and the data the same sequences, but sums over ranks are added in another order, so losses
agree to rounding. How a folder stays whole is in `files`.

DeepSpeed writes its own files, which only the same layout reads again; `to_one_file` makes of either kind
one file of plain weights.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from workshop.facts.checks import check_positive
from workshop.models.text import TextBatches
from workshop.site.owners import check_folder
from workshop.train import files
from workshop.train.ready import Ready, ReadyDeepSpeed

PROGRESS = "progress.json"
T = TypeVar("T")


class Checkpoints:
    """The checkpoints of one training, in one folder that all ranks see.

    Args:
        root: the folder; it is made when something is saved.
        keep: how many checkpoints stay; older ones are removed after a save.
    """

    def __init__(self, root: str | Path, keep: int = 2) -> None:
        check_positive("keep", keep)
        self.root, self.keep = Path(root), keep

    def save(self, ready: Ready, batches: TextBatches, step: int) -> Path:
        """Save what ``step`` steps have made; all ranks call it. Returns the checkpoint's folder.

        Raises:
            OSError: a rank could not write; nothing that was there before has changed.
        """
        partial = on_first_rank(lambda: self._begin(step))
        _save_state(ready, partial)
        on_every_rank(lambda: torch.save(_random_state(), partial / f"random-{ready.rank:05d}.pt"))
        progress = {"step": step, "num_ranks": ready.num_ranks, "kind": ready.kind}
        progress["data"] = batches.position()
        on_first_rank(lambda: (partial / PROGRESS).write_text(json.dumps(progress, indent=1)))
        mine = files.files_of(partial)[ready.rank :: ready.num_ranks]
        digests = on_every_rank(lambda: files.sums(partial, mine))
        return on_first_rank(
            lambda: self._finish(partial, {k: v for part in digests for k, v in part.items()})
        )

    def _begin(self, step: int) -> Path:
        self.root.mkdir(parents=True, exist_ok=True)
        files.prune(self.root, keep=len(files.whole_steps(self.root)) or 1)  # what a killed save has left
        partial = self.root / (files.free_name(self.root, step) + files.PARTIAL)
        partial.mkdir()
        return partial

    def _finish(self, partial: Path, digests: dict[str, str]) -> Path:
        whole = files.publish(partial, digests)
        files.prune(self.root, self.keep)
        return whole

    def resume(self, ready: Ready, batches: TextBatches, step: int | None = None) -> int:
        """Load the latest checkpoint (or that of ``step``) into ``ready``; the number of the next step.

        0, and nothing is changed, where nothing was ever saved and no step is asked for.

        Raises:
            DamagedCheckpointError: a file is missing or is not what was saved; it is named.
            ValueError: no checkpoint of that step; other data than the run had; another kind of engine; a
                folder that others could have written to (torch's checkpoints are pickles, which run code).
        """
        folder = on_first_rank(lambda: self.find(step))
        if folder is None:
            return 0
        on_first_rank(lambda: check_folder(folder.resolve(), "the checkpoint"))
        names = sorted(files.manifest(folder))
        on_every_rank(lambda: files.check_whole(folder, names[ready.rank :: ready.num_ranks]))
        progress = json.loads((folder / PROGRESS).read_text("utf-8"))
        _check_fits(progress, ready, batches)
        _load_state(ready, folder, progress["num_ranks"])
        if progress["num_ranks"] == ready.num_ranks:
            _restore_random_state(torch.load(folder / f"random-{ready.rank:05d}.pt", weights_only=False))
        return progress["step"]

    def find(self, step: int | None = None) -> Path | None:
        """The folder of the latest checkpoint, or of the last one saved at ``step``."""
        if step is None:
            return files.latest(self.root)
        saved = files.whole_steps(self.root)
        folders = [path for path in saved if int(path.name.split("-")[1]) == step]
        if not folders:
            names = ", ".join(path.name for path in saved) or "none"
            raise ValueError(f"no checkpoint of step {step} in {self.root} (there: {names})")
        return folders[-1]


def to_one_file(folder: str | Path, path: str | Path) -> Path:
    """A checkpoint's weights as one file for `torch.load`: name -> tensor (the master copy, if any).

    ``folder``: one checkpoint (``Checkpoints.find()``), of any kind and number of ranks; one process will do.

    Raises:
        DamagedCheckpointError: the checkpoint is not whole.
        ValueError: others could have written it.
    """
    folder, path = Path(folder), Path(path)
    check_folder(folder.resolve(), "the checkpoint")
    files.check_whole(folder)
    kind = json.loads((folder / PROGRESS).read_text("utf-8"))["kind"]
    weights = _deepspeed_weights(folder) if kind == "deepspeed" else _dcp_weights(folder)
    beside = path.with_name(path.name + files.PARTIAL)
    torch.save(weights, beside)
    files.flush_to_disk(beside)
    return beside.replace(path)


def _dcp_weights(folder: Path) -> dict[str, Tensor]:
    stored = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    wanted: dict[str, dict[str, Tensor]] = {"model": {}, "master": {}}
    for name, metadata in stored.items():
        part, _, parameter = name.partition(".")
        if part in wanted and isinstance(metadata, TensorStorageMetadata):
            wanted[part][parameter] = torch.empty(metadata.size, dtype=metadata.properties.dtype)
    with _alone_is_fine():
        dcp.load(wanted, checkpoint_id=folder, no_dist=True)
    return {**wanted["model"], **wanted["master"]}


def _deepspeed_weights(folder: Path) -> dict[str, Tensor]:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    return get_fp32_state_dict_from_zero_checkpoint(str(folder))


def _save_state(ready: Ready, partial: Path) -> None:
    if isinstance(ready, ReadyDeepSpeed):
        ready.engine.save_checkpoint(str(partial), tag="deepspeed")
        return
    with _alone_is_fine():
        dcp.save(ready.state(), checkpoint_id=partial, no_dist=not dist.is_initialized())


def _load_state(ready: Ready, folder: Path, num_ranks: int) -> None:
    if isinstance(ready, ReadyDeepSpeed):
        if num_ranks != ready.num_ranks:
            raise ValueError(
                f"{folder.name} was saved by DeepSpeed on {num_ranks} ranks and these are {ready.num_ranks}: "
                "its parts fit no other number. Take the weights from to_one_file(), or train with fsdp"
            )
        ready.engine.load_checkpoint(str(folder), tag="deepspeed")
        return
    state = ready.state()
    with _alone_is_fine():
        dcp.load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    ready.load(state)


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    """torch warns where there is no process group: one process needs none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _check_fits(progress: dict[str, Any], ready: Ready, batches: TextBatches) -> None:
    if progress["data"] != batches.position():
        raise ValueError(
            f"the checkpoint's data were {progress['data']}, now they are {batches.position()}: step "
            f"{progress['step']} would not be the same sequences. Give the same seq_len, global_batch, seed"
        )
    saved_by_engine, is_engine = progress["kind"] == "deepspeed", ready.kind == "deepspeed"
    if saved_by_engine != is_engine:
        raise ValueError(
            f"the checkpoint was saved by {progress['kind']} and this is {ready.kind}: DeepSpeed's optimizer "
            "state is in files that only DeepSpeed reads. Take the weights from to_one_file()"
        )


def _random_state() -> dict[str, Any]:
    state = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    return state | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _restore_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def on_first_rank(work: Callable[[], T]) -> T:
    """Rank 0's result or error, on every rank: nobody waits for one that has failed."""
    if not dist.is_initialized():
        return work()
    result: list[Any] = [None]
    if dist.get_rank() == 0:
        result = [_result_or_error(work)]
    dist.broadcast_object_list(result, src=0)
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


def on_every_rank(work: Callable[[], T]) -> list[T]:
    """Every rank's result, on every rank; the first error of any rank, on every rank."""
    if not dist.is_initialized():
        return [work()]
    results: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(results, _result_or_error(work))
    for one in results:
        if isinstance(one, Exception):
            raise one
    return results


def _result_or_error(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except (OSError, ValueError, RuntimeError) as error:
        return error
