"""What a compiled loss keeps: the logits in the format they were computed in, and no copy of them."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from workshop.facts.implementation import implementation
from workshop.facts.stack import FUSED_LOSS_BYTES, software, stack
from workshop.predict.memory.loss import bytes_per_logit

TOKENS, WORDS, WIDTH = 64, 512, 16
LOSSES = {
    "plain": lambda logits: logits,
    "in fp32": lambda logits: logits.float(),
    "soft cap": lambda logits: 15 * torch.tanh(logits.float() / 15),
}


def saved_for_backward(loss, hidden):
    """The dtypes of what is as wide as the vocabulary and saved, each storage once."""
    saved = {}

    def keep(tensor):
        if tensor.numel() >= TOKENS * WORDS:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = loss(hidden)
    dtypes = [tensor.dtype for tensor in saved.values()]
    value.backward()
    return dtypes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shaped", LOSSES.values(), ids=LOSSES)
def test_a_compiled_loss_saves_logits_only(shaped, dtype):
    """Autograd's partition decides that, before a device's kernels are written."""
    torch._dynamo.reset()
    head = torch.nn.Linear(WIDTH, WORDS, bias=False)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    targets = torch.randint(0, WORDS, (TOKENS,))

    def loss(hidden):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            return cross_entropy(shaped(head(hidden)), targets)

    compiled = torch.compile(loss, backend="aot_eager_decomp_partition")
    assert saved_for_backward(compiled, hidden) == [dtype]
    assert torch.float32 in saved_for_backward(loss, hidden)


def test_such_a_loop_is_a_stack():
    used = stack("torch-compile")
    assert used.implementation.compile
    assert bytes_per_logit(used.implementation, 2) == 4  # the logits and their gradient
    assert bytes_per_logit(implementation("torch"), 2) == 12
    assert used.software.logit_bytes == FUSED_LOSS_BYTES


def test_a_loss_that_is_fused_moves_less():
    assert stack("torch", memory={"loss": "fused"}).software.logit_bytes == FUSED_LOSS_BYTES
    assert stack("torch", memory={"loss": "fused"}, time={"logit_bytes": 9}).software.logit_bytes == 9
    assert stack("torch", memory={"step_room": 0.0}).software == software("torch")
    assert stack("torch-compile", memory={"loss": "fused"}).software == software("torch-compile")
    assert software("torch").logit_bytes / 4 == FUSED_LOSS_BYTES
