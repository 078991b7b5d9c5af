"""A model that is older than the allocator's counter is still weighed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
from workshop.measure import measure
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256, bias=False) for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
with measure(model, optimizer) as measured:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 256)).square().mean().backward()
        optimizer.step()
parts = measured.memory.peak_parts if hasattr(measured.memory, "peak_parts") else measured.memory.parts
weights = 4 * 256 * 256 * 4
assert parts["weights"] == weights, parts
assert parts.get("other", 0) >= 0, parts
assert measured.memory.peak_bytes >= 4 * weights, measured.memory.peak_bytes
print("weighed")
"""


def test_weights_made_before_the_counter_count_and_nothing_is_negative() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=90)
    assert "weighed" in done.stdout, done.stderr[-1500:]
