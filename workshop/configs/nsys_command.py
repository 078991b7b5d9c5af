"""The command line that profiles a program's ranks with NVIDIA Nsight Systems.

One ``nsys profile`` stands before torchrun and follows all processes below it, so all ranks of a node come
into one report. It traces CUDA's calls and kernels, NVTX ranges (`measure.span` makes them) and calls of the
operating system (``osrt``); it samples no stacks, which keeps reports small. With a range, only what lies
inside the first NVTX range of that name is recorded: a few steps after the warm-up, not the loading. Names
made at run time, as PyTorch's are, count only with ``NSYS_NVTX_PROFILER_REGISTER_ONLY=0``.

Source: NVIDIA, *Nsight Systems User Guide*, "CLI Profile Command Switch Options".
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[\w./-]+")


def nsys_command(script: str, n: int, output: str, *, inside: str = "", python: str = "python3") -> list[str]:
    """The words of the command line for ``n`` ranks of ``script`` on this node.

    output: the report's name; nsys adds ``.nsys-rep``. inside: an NVTX range; empty records the whole run.
    ValueError for fewer than one rank, or a name that nsys would read as something else.
    """
    if n < 1:
        raise ValueError(f"{n} ranks: a profile needs at least one")
    if not _NAME.fullmatch(output) or output.startswith("-"):
        raise ValueError(f"output {output!r}: letters, digits and . _ / - (nsys reads % as a variable)")
    if "@" in inside:
        raise ValueError(f"range {inside!r}: nsys reads @ as the beginning of a domain")
    capture = [
        "--capture-range=nvtx",
        f"--nvtx-capture={inside}",
        "--capture-range-end=stop",
        "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
    ]
    return [
        *("nsys", "profile", "--trace=cuda,nvtx,osrt", "--sample=none", "--force-overwrite=true"),
        *(capture if inside else []),
        f"--output={output}",
        *(python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}", script),
    ]
