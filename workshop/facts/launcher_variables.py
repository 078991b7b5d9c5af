"""What a launcher tells a process of its place: RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK and the like.

They are right for the process they were made for and wrong for every process that inherits them. A rank that
believes an inherited ``SLURM_NTASKS`` waits for tasks that do not exist. So each launch takes them away from
the environment it hands on, on this machine (`site.current`) and in a batch script (`site.job`).
"""

from __future__ import annotations

import re

LAUNCHER_NAMES = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_NAME "
    "ROLE_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT JPY_PARENT_PID JPY_SESSION_NAME".split()
)
LAUNCHER_PREFIXES = (
    "TORCHELASTIC_",
    "SLURM_",
    "SLURMD_",
    "SRUN_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "MPI_",
    "HYDRA_",
    "PET_",
)
# The job's own folders and its end: the same for every process of it, so every rank may have them.
PLACES_OF_THE_JOB = ("SLURM_TMPDIR", "SLURM_SCRATCH", "SLURM_SUBMIT_DIR", "SLURM_JOB_END_TIME")
# What says which job this is, and not which process: a program may want it, for example after a requeue.
OF_THE_JOB = (
    "WORKSHOP_JOB",
    "WORKSHOP_JOB_TASK",
    "WORKSHOP_JOB_START",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_RESTART_COUNT",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    *PLACES_OF_THE_JOB,
)
PROXY_NAMES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")

# Matches, in full, the name of a variable that a launcher sets to tell a process its place.
OF_LAUNCHER = re.compile(
    rf"(?!(?:{'|'.join(PLACES_OF_THE_JOB)})$)(?:{'|'.join(sorted(LAUNCHER_NAMES))}|(?:{'|'.join(LAUNCHER_PREFIXES)}).*)",
    re.DOTALL,
)

# What torch or Python reads while it is imported: names that begin so.
READ_AT_IMPORT = (
    "TORCH",
    "PYTORCH",
    "CUDA",
    "HIP",
    "ROCR",
    "OMP_",
    "KMP_",
    "MKL_",
    "PYTHON",
    "LD_",
    "LANG",
    "LC_",
)
