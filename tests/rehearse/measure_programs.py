"""One real rank that measures several programs, one after the other: `measure_programs.py FOLDER PORT... -- LINE...`

Every LINE is a program's file and its arguments; every one has a PORT to meet at. What takes long, importing
torch and transformers, happens once: each program runs in a fork of this process, with nothing left over from
the one before. Writes FOLDER/NUMBER-RANK.json, or NUMBER-RANK.error.
"""

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import transformers  # noqa: F401  imported here so that each fork has it

from workshop.measure import counter
from workshop.measure.session import measure

counter.enable()
torch.set_num_threads(1)


def measured(line: str, port: str) -> dict:
    """Run a program to its end under `measure`."""
    os.environ["MASTER_PORT"] = port
    sys.argv = line.split()
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    dist.destroy_process_group = lambda *_: None  # a DDP model that outlives its group can hang in gloo
    with measure() as record:
        runpy.run_path(sys.argv[0], run_name="__main__")
    return record.to_dict()


def main() -> None:
    """Fork for each program, and wait for it."""
    folder, *rest = sys.argv[1:]
    cut = rest.index("--")
    for number, (port, line) in enumerate(zip(rest[:cut], rest[cut + 1 :], strict=True)):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            continue
        answer = Path(folder, f"{number}-{os.environ['RANK']}.json")
        try:
            answer.write_text(json.dumps(measured(line, port)))
        except BaseException:  # noqa: BLE001  whatever happened is the answer
            answer.with_suffix(".error").write_text(traceback.format_exc())
        os._exit(0)


if __name__ == "__main__":
    main()
