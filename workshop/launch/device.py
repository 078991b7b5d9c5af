"""Which device the ranks run on, the sentence that says so, and the lease of its GPUs.

    GPUs for all ranks          a GPU each, NCCL
    fewer GPUs than ranks       the CPU, gloo; NCCL wants a GPU for each rank
    the same, --share-gpu       ranks share the GPUs, gloo through the host's memory (`child.staged_group`)
    none                        the CPU, gloo; --share-gpu is refused

Nowhere else is this chosen. A rank learns that it shares by the variable `SHARED_GPUS`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workshop.launch.gpus import leases
from workshop.launch.gpus.lease_files import in_words
from workshop.launch.gpus.nvml import Gpu, node_gpus
from workshop.site import current
from workshop.site.cores import GPU_CPUS

SHARE_GPU = "WORKSHOP_SHARE_GPU"
"""Set by the user to share where there are fewer GPUs than ranks, without a flag in each cell."""
SHARED_GPUS = "WORKSHOP_SHARED_GPUS"
"""Set by us, in ranks that share: how many GPUs they share. Rank r of a node has number r modulo that."""


@dataclass(frozen=True)
class Device:
    """``cuda`` with NCCL where every rank has a GPU of its own, else ``cpu`` with gloo; or ``cuda`` shared.

    lease: the GPUs that were taken (None: nothing was). maker: nvidia, amd. near: the cores next to each of
    these GPUs, where the site names them. shared: GPUs that more ranks share; 0: nobody shares.
    """

    kind: str
    sentence: str
    lease: leases.Lease | None = None
    maker: str = "nvidia"
    near: tuple[str, ...] = ()
    shared: int = 0

    def environment(self) -> dict[str, str]:
        """Variables that hold the ranks to the choice: the GPUs of the lease; on CPU none."""
        if self.kind != "cuda":  # ROCR_VISIBLE_DEVICES stays: torch takes an empty one for one GPU
            return {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
        near = {SHARED_GPUS: str(self.shared)} if self.shared else {}
        if self.lease is None:
            return near
        chosen = ",".join(self.lease.gpus)
        near |= {GPU_CPUS: " ".join(self.near)} if self.near else {}
        if self.maker == "amd":  # ROCR's are the node's numbers; HIP counts among those that ROCR leaves
            own = ",".join(map(str, range(len(self.lease.gpus))))
            return {
                "ROCR_VISIBLE_DEVICES": chosen,
                "HIP_VISIBLE_DEVICES": own,
                "CUDA_VISIBLE_DEVICES": own,
                **near,
            }
        return {"CUDA_VISIBLE_DEVICES": chosen, **near}

    def release(self) -> None:
        """Give the GPUs back; safe to call twice."""
        if self.lease is not None:
            self.lease.release()


def choose(n: int, gpus: int, share: bool = False) -> Device:
    """The device for ``n`` ranks on a node with ``gpus`` GPUs.

    NCCL wants one GPU for each rank, so with fewer GPUs than ranks all ranks go to the CPU, or share.
    """
    ranks = f"{n} rank{'s' * (n > 1)}"
    if 0 < n <= gpus:
        return Device("cuda", f"{ranks} on {n} of {gpus} GPU{'s' * (gpus > 1)}, NCCL")
    if gpus and share:
        which = "one GPU" if gpus == 1 else f"{gpus} GPUs"
        sentence = f"{ranks} share {which}, gloo through the host: right in values and memory, not in speed"
        return Device("cuda", sentence, shared=gpus)
    if gpus:
        return Device("cpu", f"{ranks} on CPU, gloo (NCCL needs a GPU for each rank; {gpus} here)")
    return Device("cpu", f"{ranks} on CPU, gloo")


def take(n: int, session: Any, share: bool | None = None) -> Device:
    """The device for ``n`` ranks, with a lease of as many GPUs where it is ``cuda``.

    session: the launch engine's, which has counted the GPUs. share: let ranks share GPUs where there are too
    few; None: as the variable `SHARE_GPU` says. Raises ValueError for sharing where there is no GPU,
    `leases.GpusTaken` when other notebooks leave too few, EngineError when leases cannot be written.
    """
    if not session.gpus:
        refuse_to_share(share, "there is no GPU here that torch can use")
        return choose(n, 0)
    known, site = node_gpus(), current.site_of_file()
    maker, lists = (site.gpu, site.gpu_cpus) if site else (current.maker_here(), ())
    names = amd_gpus(session.gpus) if maker == "amd" else visible_gpus(session.gpus, known)
    if not names:
        refuse_to_share(share, "CUDA_VISIBLE_DEVICES hides every GPU from this notebook")
    device = choose(n, len(names), wants_to_share(share))
    if device.kind != "cuda":
        return device
    used = {gpu.uuid: gpu.processes for gpu in known if gpu.processes}
    lease = leases.take(min(n, len(names)), names, busy=used, also=[session.process])
    foreign = [name for name in lease.gpus if name in used and not lease.shares(name)]
    also_running = "".join(
        f"; {in_words(name)} also runs {', '.join(f'process {pid}' for pid in used[name])}"
        for name in foreign
    )
    near = tuple(cores for name in lease.gpus if (cores := _near(name, known, lists)))
    near = near if len(near) == len(lease.gpus) else ()
    return replace(device, sentence=device.sentence + also_running, lease=lease, maker=maker, near=near)


def wants_to_share(share: bool | None) -> bool:
    """What was said of one launch, else what the variable `SHARE_GPU` says of all."""
    return os.environ.get(SHARE_GPU, "") not in ("", "0") if share is None else share


def refuse_to_share(share: bool | None, why: str) -> None:
    """ValueError where ``--share-gpu`` was asked for and cannot be had."""
    if share:
        raise ValueError(f"--share-gpu: {why}; leave the flag out, and the ranks run on the CPU over gloo")


def _near(name: str, known: Sequence[Gpu], lists: Sequence[str]) -> str:
    """The cores next to a GPU: its number on the node tells which of the site's lists."""
    number = next((str(gpu.index) for gpu in known if gpu.uuid == name), name)
    return lists[int(number)] if number.isdecimal() and int(number) < len(lists) else ""


def amd_gpus(count: int, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The node's numbers of the AMD GPUs that programs here may use.

    ``ROCR_VISIBLE_DEVICES`` (Slurm sets it) hides GPUs first; ``HIP_VISIBLE_DEVICES``, or under the name
    that CUDA's programs know ``CUDA_VISIBLE_DEVICES``, counts among those that it left. Source: AMD, *ROCm
    documentation*, "GPU isolation techniques".
    """
    left = _parts(environment.get("ROCR_VISIBLE_DEVICES"))
    chosen = _parts(environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES")))
    if chosen is None:
        return (left or [str(i) for i in range(count)])[:count]
    if left is None:
        return chosen[:count]
    return [left[int(i)] for i in chosen if i.isdecimal() and int(i) < len(left)][:count]


def _parts(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def visible_gpus(count: int, known: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the GPUs that programs here may use: UUIDs where NVML tells them, else numbers.

    count: how many CUDA sees. ``CUDA_VISIBLE_DEVICES`` may name them by number, UUID or its beginning. A
    number is NVML's (the PCI bus's), which is CUDA's own where all GPUs of a node are alike, or where
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    named = [str(i) for i in range(count)] if text is None else [part.strip() for part in text.split(",")]
    return [_full_name(name, known) for name in named if name][:count]


def _full_name(name: str, known: Sequence[Gpu]) -> str:
    fitting = [gpu.uuid for gpu in known if str(gpu.index) == name or gpu.uuid.startswith(name)]
    return fitting[0] if len(fitting) == 1 else name


def choose_for_nodes(per_node: int, gpus: Sequence[int], share: bool | None = None) -> Device:
    """The device for ``per_node`` ranks on each of the nodes that have so many GPUs; they cannot share."""
    refuse_to_share(share, "ranks share the GPUs of one node, not those of several")
    one = choose(per_node, min(gpus))
    if len(gpus) == 1:
        return one
    total = per_node * len(gpus)
    ranks = f"{total} ranks on {len(gpus)} nodes"
    return Device(one.kind, f"{ranks}, NCCL" if one.kind == "cuda" else f"{ranks}, CPU, gloo")
