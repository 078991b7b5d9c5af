"""Train a small model once and let every log keep its numbers: python -m tests.train.programs.tracked FOLDER [LOG ...].

What the loop handed over goes into ``FOLDER/logged.json``, each log into ``FOLDER/NAME``. With ``--read-aim`` a
repository of Aim is read in place of that, indexed first as `aim up` and `aim storage reindex` do.
"""

import json
import os
import sys
from pathlib import Path

from tools.aim_apart import FOLDER as AIM


def train(folder, names):
    import torch

    from workshop.facts.layout import Layout
    from workshop.models.gpt import GPT, GPTConfig
    from workshop.models.text import TextBatches
    from workshop.train.apply_layout import apply_layout
    from workshop.train.log import open_log
    from workshop.train.loop import train_loop
    from workshop.train.settings import Settings

    class All:
        """One log that writes to all of them."""

        def __init__(self):
            self.logs = [open_log(name, folder / name) for name in names]
            self.said = []

        def write(self, step, **values):
            self.said.append([step, values])
            for log in self.logs:
                log.write(step, **values)

        def close(self):
            for log in self.logs:
                log.close()

    torch.manual_seed(0)
    config = GPTConfig(256, 32, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=64)
    settings = Settings(num_steps=6, log_every=2, learning_rate=1e-2, schedule="linear", warmup=2)
    ready = apply_layout(GPT(config), Layout(precision="fp32"), settings)
    log = All()
    train_loop(ready, TextBatches(16, 4), settings, log=log)
    log.close()
    (folder / "logged.json").write_text(json.dumps(log.said))


def read_aim(folder):
    import aim

    aim.Repo(str(folder))._recreate_index()
    found = {}
    (run,) = aim.Repo(str(folder)).iter_runs()
    for metric in run.metrics():
        found[metric.name] = [[step, columns[0]] for step, columns in metric.data.items()]
    (folder / "read.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.path.append(str(AIM))  # last: what both have comes from where everyone has it
    os.environ["PYTHONPATH"] = str(AIM)  # Aim makes its tables in a process of its own
    if sys.argv[1] == "--read-aim":
        read_aim(Path(sys.argv[2]))
    else:
        train(Path(sys.argv[1]), sys.argv[2:])
