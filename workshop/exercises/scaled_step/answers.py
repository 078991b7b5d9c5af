# %% other: norm_first
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    scale, good_steps = state
    optimizer.zero_grad()
    loss.backward(torch.tensor(float(scale)))
    gradients = [parameter.grad for parameter in model.parameters()]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm() / scale
    state = decide(scale, good_steps, bool(norm.isfinite()))
    if state[2]:
        for gradient in gradients:
            gradient *= min(1.0, limit / norm.item()) / scale
        optimizer.step()
    return state[:2]


# %% other: gradients_by_autograd
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    scale, good_steps = state
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(scale * loss, parameters)
    finite = not any((~gradient.isfinite()).any() for gradient in gradients)
    new_scale, good_steps, may_step = decide(scale, good_steps, finite)
    if may_step:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient / scale
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
        optimizer.zero_grad()
    return new_scale, good_steps


# %% wrong: forgets_to_divide
# message: still as many times too large
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    (loss * scale).backward()
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scale, good_steps, may_step = decide(scale, good_steps, finite)
    if may_step:
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
    optimizer.zero_grad()
    return scale, good_steps


# %% wrong: never_scales
# message: Backward ran on the loss itself
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    loss.backward()
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scale, good_steps, may_step = decide(scale, good_steps, finite)
    if may_step:
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
    optimizer.zero_grad()
    return scale, good_steps


# %% wrong: divides_alone
# message: without having multiplied the loss
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    loss.backward()
    for parameter in model.parameters():
        parameter.grad /= scale
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scale, good_steps, may_step = decide(scale, good_steps, finite)
    if may_step:
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
    optimizer.zero_grad()
    return scale, good_steps


# %% wrong: clips_first
# message: clipped before they were divided
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    (loss * scale).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    for parameter in model.parameters():
        parameter.grad /= scale
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scale, good_steps, may_step = decide(scale, good_steps, finite)
    if may_step:
        optimizer.step()
    optimizer.zero_grad()
    return scale, good_steps


# %% wrong: never_clips
# message: clipped to a norm of at most `limit`
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    (loss * scale).backward()
    for parameter in model.parameters():
        parameter.grad /= scale
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scale, good_steps, may_step = decide(scale, good_steps, finite)
    if may_step:
        optimizer.step()
    optimizer.zero_grad()
    return scale, good_steps


# %% wrong: steps_anyway
# message: The optimizer stepped with gradients that are not finite
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    (loss * scale).backward()
    for parameter in model.parameters():
        parameter.grad /= scale
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scale, good_steps, _ = decide(scale, good_steps, finite)
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    optimizer.zero_grad()
    return scale, good_steps


# %% wrong: checks_after_the_step
# message: looked at the weights after the step
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    (loss * scale).backward()
    for parameter in model.parameters():
        parameter.grad /= scale
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    scale, good_steps, _ = decide(scale, good_steps, finite)
    optimizer.zero_grad()
    return scale, good_steps


# %% wrong: looks_for_inf_alone
# message: NaN is not finite either
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    (loss * scale).backward()
    for parameter in model.parameters():
        parameter.grad /= scale
    finite = all(not p.grad.isinf().any() for p in model.parameters())
    scale, good_steps, may_step = decide(scale, good_steps, finite)
    if may_step:
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
    optimizer.zero_grad()
    return scale, good_steps


# %% wrong: forgets_zero_grad
# message: gradients of the step before
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    (loss * scale).backward()
    for parameter in model.parameters():
        parameter.grad /= scale
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scale, good_steps, may_step = decide(scale, good_steps, finite)
    if may_step:
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
    return scale, good_steps


# %% wrong: zero_grad_after_steps_alone
# message: After a skipped step
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    (loss * scale).backward()
    for parameter in model.parameters():
        parameter.grad /= scale
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scale, good_steps, may_step = decide(scale, good_steps, finite)
    if may_step:
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad()
    return scale, good_steps


# %% wrong: divides_by_the_next_scale
# message: by the next scale
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    (loss * scale).backward()
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scale, good_steps, may_step = decide(scale, good_steps, finite)
    for parameter in model.parameters():
        parameter.grad /= scale
    if may_step:
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
    optimizer.zero_grad()
    return scale, good_steps


# %% wrong: steps_with_zeros
# message: A step with gradients of 0 is a step
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    (loss * scale).backward()
    for parameter in model.parameters():
        parameter.grad /= scale
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scale, good_steps, may_step = decide(scale, good_steps, finite)
    if not may_step:
        for parameter in model.parameters():
            parameter.grad.zero_()
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    optimizer.zero_grad()
    return scale, good_steps


# %% wrong: clips_each_alone
# message: one norm for all parameters together
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    (loss * scale).backward()
    for parameter in model.parameters():
        parameter.grad /= scale
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scale, good_steps, may_step = decide(scale, good_steps, finite)
    if may_step:
        for parameter in model.parameters():
            torch.nn.utils.clip_grad_norm_(parameter, limit)
        optimizer.step()
    optimizer.zero_grad()
    return scale, good_steps
