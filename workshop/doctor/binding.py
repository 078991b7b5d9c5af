"""Whether ranks run on the cores next to their GPUs, and how many threads they get."""

from __future__ import annotations

import os

from workshop.doctor.findings import Finding
from workshop.site.cores import core_list, core_numbers, gpu_places, numa_nodes
from workshop.site.current import in_allocation
from workshop.site.spec import SiteSpec


def check_gpu_cpus(site: SiteSpec) -> Finding:
    """The cores that the file names for each GPU are the kernel's own answer."""
    places = [place for place in gpu_places() if place.maker == site.gpu and place.cores]
    cores_by_gpu = "; ".join(f"GPU {i} (NUMA node {p.numa_node}): {p.cores}" for i, p in enumerate(places))
    if not site.gpu_cpus:
        if len({place.cores for place in places}) < 2:
            return Finding("ok", "not given" + f", nor needed: {cores_by_gpu}" * bool(places))
        lists = ", ".join(f'"{cores}"' for cores in fair_shares([place.cores for place in places]))
        return Finding(
            "note", f"not given, and here {cores_by_gpu}", f"gpu_cpus = [{lists}] in [node] binds the ranks"
        )
    if len(places) != len(site.gpu_cpus):
        if site.scheduler != "none" and not in_allocation(os.environ):
            return Finding("ok", f"{'; '.join(site.gpu_cpus)}, for the nodes")
        mismatch = f"the file names cores of {len(site.gpu_cpus)} GPUs, and this machine shows {len(places)}"
        return Finding(
            "note", mismatch, "the order is that of the PCI bus, as nvidia-smi and rocm-smi list them"
        )
    far = [
        f"GPU {i} is next to {place.cores}, the file says {cores}"
        for i, (place, cores) in enumerate(zip(places, site.gpu_cpus, strict=True))
        if not core_numbers(cores) <= core_numbers(place.cores)
    ]
    if far:
        return Finding(
            "note", "; ".join(far), "gpu_cpus in [node], unless the centre's manual says otherwise"
        )
    shown = "; ".join(f"GPU {i}: {cores}" for i, cores in enumerate(site.gpu_cpus))
    return Finding("ok", f"{shown}, as the kernel says")


def fair_shares(lists: list[str]) -> list[str]:
    """A share of the cores for each GPU, where several are next to the same ones."""
    shares = []
    for number, text in enumerate(lists):
        cores, same = sorted(core_numbers(text)), [i for i, other in enumerate(lists) if other == text]
        each = max(1, len(cores) // len(same))
        at = same.index(number) * each
        shares.append(core_list(set(cores[at : at + each])))
    return shares


def check_binding(site: SiteSpec) -> Finding:
    """How torchrun and the ranks are bound, and the threads of each."""
    threads = f"{site.threads} thread{'s' * (site.threads > 1)} a rank" if site.threads else "a thread a core"
    if "OMP_NUM_THREADS" in os.environ:
        threads = f"{os.environ['OMP_NUM_THREADS']} threads a rank (OMP_NUM_THREADS)"
    bound_by = f"srun --cpu-bind={site.cpu_bind}" if site.cpu_bind else "as the scheduler binds them"
    nodes = "; ".join(f"NUMA node {number}: {cores}" for number, cores in numa_nodes().items())
    own = core_list(os.sched_getaffinity(0))
    binding = f"{threads}; {bound_by}; this process may use {own} ({nodes or 'one NUMA node'})"
    if site.cpu_bind and site.scheduler != "slurm":
        return Finding(
            "note", f"cpu_bind {site.cpu_bind} is not used", "it is a flag of Slurm's srun: leave it out"
        )
    if site.threads and site.cpus and site.gpus and site.threads > site.cpus // site.gpus:
        share = site.cpus // site.gpus
        return Finding(
            "note", f"{threads}, and a rank has {share} cores", "threads = 0 in [node]: one a core"
        )
    return Finding("ok", binding)
