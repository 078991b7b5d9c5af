"""One bit a number: send signs, remember the rest.  (Karimireddy et al. 2019, arXiv 1901.09847)

Of every number only its sign travels, and for each block of 1,024 one scale, the block's mean magnitude::

    decoded = scale * sign(x)         1 bit + 4 bytes / 1,024  =  1.03 bits a number, 31 times less than fp32

Most of x is lost, so it is not thrown away but kept and added to the next step's (*error feedback*)::

    compensated = x + error
    sent        = encode(compensated)
    error       = compensated - decode(sent)

Summed over steps, what was sent is what there was, but for the last error: nothing is lost, it is only late.

Signs cannot be summed on the way (the sum of three signs is no sign), so a ring all_reduce will not do. Tang
et al. (2021, arXiv 2102.02888) do it in two phases, and each rank is the *server* of an Nth of the vector::

    1  all_to_all     each rank sends part j, encoded, to rank j; rank j decodes and averages N of them
    2  all_gather     rank j encodes its average, with an error of its own, and sends it to everybody

All ranks decode the same bytes, so they get the same mean, bit by bit. Bytes sent by a rank: 2 (N-1)/N times
the encoded vector, as in a ring.
"""

# No `from __future__ import annotations` here: DDP compares a hook's annotations with its own classes.
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

BLOCK = 1024
"""Numbers that share one scale. (The papers take one for a whole tensor; blocks keep layers apart.)"""


def encode(values: Tensor) -> Tensor:
    """Fp32 (blocks * 1,024) to uint8 (blocks, 132): each block's scale, then its signs, eight to a byte."""
    blocks = values.view(-1, BLOCK)
    scales = blocks.abs().mean(dim=1, keepdim=True)
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=values.device)
    bits = ((blocks >= 0).view(-1, BLOCK // 8, 8) * weights).sum(dim=2, dtype=torch.uint8)
    return torch.cat([scales.view(torch.uint8), bits], dim=1)


def decode(message: Tensor) -> Tensor:
    """The inverse of `encode` as far as there is one: scale times sign, fp32, flat."""
    scales = message[:, :4].contiguous().view(torch.float32)
    places = torch.arange(8, dtype=torch.uint8, device=message.device)
    bits = (message[:, 4:, None] >> places) & 1
    return ((bits.view(-1, BLOCK).float() * 2 - 1) * scales).flatten()


class SignMean:
    """The mean over ranks of a flat fp32 vector, one bit a number; remembers what it could not send.

    num_values: the vector's length, the same in every call.
    error_feedback: False forgets the errors; to see what that does.
    """

    def __init__(
        self, num_values: int, group: dist.ProcessGroup | None = None, error_feedback: bool = True
    ) -> None:
        self.num_values, self.group, self.error_feedback = num_values, group, error_feedback
        self.ranks = dist.get_world_size(group)
        self.padding = -num_values % (self.ranks * BLOCK)
        self.worker_error: Tensor | float = 0.0  # of this rank's own vector
        self.server_error: Tensor | float = 0.0  # of the averaged part that this rank serves

    def __call__(self, values: Tensor) -> Tensor:
        """The mean; every rank gets the same bits."""
        mine, self.worker_error = self._compress(F.pad(values, (0, self.padding)), self.worker_error)
        received = torch.empty_like(mine)
        dist.all_to_all_single(received, mine, group=self.group)
        average = decode(received).view(self.ranks, -1).mean(dim=0)
        served, self.server_error = self._compress(average, self.server_error)
        gathered = torch.empty_like(mine)
        dist.all_gather(list(gathered.chunk(self.ranks)), served, group=self.group)
        return decode(gathered)[: self.num_values]

    def _compress(self, values: Tensor, error: Tensor | float) -> tuple[Tensor, Tensor | float]:
        compensated = values + error
        message = encode(compensated)
        return message, compensated - decode(message) if self.error_feedback else 0.0


class SignState:
    """What `sign_hook` remembers: a `SignMean` for each bucket, and how many steps there were.

    start: steps that are sent in full, at least 2 (DDP settles its buckets after the first).
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, start: int = 2, error_feedback: bool = True
    ) -> None:
        if start < 2:
            raise ValueError(f"start = {start}: at least 2, for DDP settles its buckets after the first step")
        self.group, self.start, self.error_feedback = group, start, error_feedback
        self.steps = 0
        self.means: dict[int, SignMean] = {}


def sign_hook(state: SignState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Mean over ranks of a bucket's signs and scales, with error feedback; a future of its (numbers,)."""
    flat = bucket.buffer()
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    if state.steps < state.start:
        dist.all_reduce(flat, group=state.group)
        flat.div_(dist.get_world_size(state.group))
    else:
        if bucket.index() not in state.means:
            state.means[bucket.index()] = SignMean(flat.numel(), state.group, state.error_feedback)
        flat.copy_(state.means[bucket.index()](flat.float()))
    state.steps += bucket.is_last()
    done.set_result(flat)
    return done
