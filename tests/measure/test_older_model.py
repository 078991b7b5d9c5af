"""A model, and what its optimizer keeps, that are older than the allocator's counter are still weighed."""

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

# The same numbers, of which the optimizer in hand keeps none itself, as those of `parallel.zero`.
KEPT_INSIDE = """
import torch
from workshop.measure import measure

class Outer(torch.optim.Optimizer):
    def __init__(self, parameters):
        self.inner = [torch.optim.AdamW([one], fused=True) for one in parameters]
        super().__init__([one for each in self.inner for one in each.param_groups[0]["params"]], {})

    def step(self):
        for one in self.inner:
            one.step()

model = torch.nn.Sequential(*[torch.nn.Linear(256, 256, bias=False) for _ in range(4)])
optimizer = Outer(model.parameters())

def step():
    model(torch.randn(8, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

step()
with measure(model, optimizer) as measured:
    step()
weights = 4 * 256 * 256 * 4
assert measured.memory.peak_parts.get("other", 0) >= 0, measured.memory.peak_parts
assert 4 * weights <= measured.memory.peak_bytes < 4.1 * weights, measured.memory.peak_bytes
print("weighed")
"""


def test_weights_made_before_the_counter_count_and_nothing_is_negative() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=90)
    assert "weighed" in done.stdout, done.stderr[-1500:]


def test_moments_that_other_optimizers_keep_count_too() -> None:
    done = subprocess.run([sys.executable, "-c", KEPT_INSIDE], capture_output=True, text=True, timeout=90)
    assert "weighed" in done.stdout, done.stderr[-1500:]
