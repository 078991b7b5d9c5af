"""What Accelerate believes, without any help: one line from each process."""

import os

from accelerate import Accelerator

accelerator = Accelerator()
print(
    f"process with RANK {os.environ.get('RANK')}: rank {accelerator.process_index} of {accelerator.num_processes}, "
    f"{accelerator.distributed_type.name}",
    flush=True,
)
