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
