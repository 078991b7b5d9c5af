"""What a byte of memory is for: one vocabulary for predictions, rehearsals and measurements.

Some words only a prediction uses (it knows `stage boundaries` and `logits and loss` from other activations),
others only a measurement (it sees DDP's `buckets`, and `other` is what nobody claimed).
"""

from __future__ import annotations

PARTS: dict[str, str] = {
    "weights": "what the rank holds of the model",
    "weight cache": "copies of the weights in fewer bits, which autocast keeps while backward waits",
    "gathered weights": "what FSDP assembles from shards for the time of a layer",
    "gradients": "what the rank holds of the gradients",
    "gathered gradients": "gradients of whole layers, before they are reduced and scattered",
    "optimizer": "moments, master weights",
    "stage boundaries": "what a pipeline stage received and keeps for its backward pass",
    "activations": "what the forward pass keeps for the backward pass",
    "logits and loss": "the last layer's outputs and what the loss keeps",
    "temporaries": "what lives within an operation or a layer",
    "buckets": "DDP's flat copies of gradients",
    "communication": "what a collective reads or writes",
    "buffers": "a module's buffers: running means, rotary tables",
    "workspace": "what a library such as cuBLAS takes for itself",
    "other": "what nobody claimed",
}
"""Part of memory -> what it holds, in the order in which parts are listed."""
