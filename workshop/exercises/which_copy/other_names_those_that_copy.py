EXPRESSIONS = (
    *("x.T", "x[:, ::2]", "x.reshape(2, 6)", "x.T.reshape(12)", "x.contiguous()", "x.T.contiguous()"),
    *("x[[0, 2]]", "x[:1].expand(5, 4)", "x.to(torch.float32)", "rearrange(x, 'r c -> (c r)')"),
)
COPIES = {"x.T.reshape(12)", "x.T.contiguous()", "x[[0, 2]]", "rearrange(x, 'r c -> (c r)')"}


def which_copy() -> dict[str, bool]:
    return {expression: expression in COPIES for expression in EXPRESSIONS}
