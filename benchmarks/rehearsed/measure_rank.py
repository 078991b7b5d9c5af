"""What each real rank runs: `measure_rank.py ANSWER_FOLDER PROGRAM ARGS...` runs PROGRAM under `measure`.

Writes rank-N.json. The counter goes on before the program makes its first tensor, so the trace is exact.

The group is not destroyed: a DDP model that outlives its group can deadlock in gloo (torch 2.13). It ends
with the process. Run it with `workshop.launch`, whose ranks begin in milliseconds, or with torchrun.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from workshop.measure import counter
from workshop.measure.session import measure

counter.enable()
torch.set_num_threads(1)
folder, program, *arguments = sys.argv[1:]
sys.argv = [program, *arguments]
dist.destroy_process_group = lambda *_: None
with measure() as measured:
    runpy.run_path(program, run_name="__main__")
Path(folder, f"rank-{os.environ['RANK']}.json").write_text(json.dumps(measured.to_dict()))
