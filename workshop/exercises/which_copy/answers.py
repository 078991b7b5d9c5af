# %% other: names_those_that_copy
EXPRESSIONS = (
    *("x.T", "x[:, ::2]", "x.reshape(2, 6)", "x.T.reshape(12)", "x.contiguous()", "x.T.contiguous()"),
    *("x[[0, 2]]", "x[:1].expand(5, 4)", "x.to(torch.float32)", "rearrange(x, 'r c -> (c r)')"),
)
COPIES = {"x.T.reshape(12)", "x.T.contiguous()", "x[[0, 2]]", "rearrange(x, 'r c -> (c r)')"}


def which_copy() -> dict[str, bool]:
    return {expression: expression in COPIES for expression in EXPRESSIONS}


# %% wrong: transposing_moves
# message: strides change places
def which_copy() -> dict[str, bool]:
    """For x = torch.arange(12.).view(3, 4): does the expression copy?"""
    return {
        "x.T": True,
        "x[:, ::2]": False,
        "x.reshape(2, 6)": False,
        "x.T.reshape(12)": True,
        "x.contiguous()": False,
        "x.T.contiguous()": True,
        "x[[0, 2]]": True,
        "x[:1].expand(5, 4)": False,
        "x.to(torch.float32)": False,
        "rearrange(x, 'r c -> (c r)')": True,
    }


# %% wrong: reshape_never_copies
# message: No single stride
def which_copy() -> dict[str, bool]:
    """For x = torch.arange(12.).view(3, 4): does the expression copy?"""
    return {
        "x.T": False,
        "x[:, ::2]": False,
        "x.reshape(2, 6)": False,
        "x.T.reshape(12)": False,
        "x.contiguous()": False,
        "x.T.contiguous()": True,
        "x[[0, 2]]": True,
        "x[:1].expand(5, 4)": False,
        "x.to(torch.float32)": False,
        "rearrange(x, 'r c -> (c r)')": True,
    }


# %% wrong: contiguous_always_copies
# message: in order already
def which_copy() -> dict[str, bool]:
    """For x = torch.arange(12.).view(3, 4): does the expression copy?"""
    return {
        "x.T": False,
        "x[:, ::2]": False,
        "x.reshape(2, 6)": False,
        "x.T.reshape(12)": True,
        "x.contiguous()": True,
        "x.T.contiguous()": True,
        "x[[0, 2]]": True,
        "x[:1].expand(5, 4)": False,
        "x.to(torch.float32)": False,
        "rearrange(x, 'r c -> (c r)')": True,
    }


# %% wrong: lists_are_slices
# message: equal distances
def which_copy() -> dict[str, bool]:
    """For x = torch.arange(12.).view(3, 4): does the expression copy?"""
    return {
        "x.T": False,
        "x[:, ::2]": False,
        "x.reshape(2, 6)": False,
        "x.T.reshape(12)": True,
        "x.contiguous()": False,
        "x.T.contiguous()": True,
        "x[[0, 2]]": False,
        "x[:1].expand(5, 4)": False,
        "x.to(torch.float32)": False,
        "rearrange(x, 'r c -> (c r)')": True,
    }


# %% wrong: expand_writes
# message: stride of 0
def which_copy() -> dict[str, bool]:
    """For x = torch.arange(12.).view(3, 4): does the expression copy?"""
    return {
        "x.T": False,
        "x[:, ::2]": False,
        "x.reshape(2, 6)": False,
        "x.T.reshape(12)": True,
        "x.contiguous()": False,
        "x.T.contiguous()": True,
        "x[[0, 2]]": True,
        "x[:1].expand(5, 4)": True,
        "x.to(torch.float32)": False,
        "rearrange(x, 'r c -> (c r)')": True,
    }


# %% wrong: to_always_copies
# message: float32 already
def which_copy() -> dict[str, bool]:
    """For x = torch.arange(12.).view(3, 4): does the expression copy?"""
    return {
        "x.T": False,
        "x[:, ::2]": False,
        "x.reshape(2, 6)": False,
        "x.T.reshape(12)": True,
        "x.contiguous()": False,
        "x.T.contiguous()": True,
        "x[[0, 2]]": True,
        "x[:1].expand(5, 4)": False,
        "x.to(torch.float32)": True,
        "rearrange(x, 'r c -> (c r)')": True,
    }


# %% wrong: einops_is_magic
# message: whatever einops calls it
def which_copy() -> dict[str, bool]:
    """For x = torch.arange(12.).view(3, 4): does the expression copy?"""
    return {
        "x.T": False,
        "x[:, ::2]": False,
        "x.reshape(2, 6)": False,
        "x.T.reshape(12)": True,
        "x.contiguous()": False,
        "x.T.contiguous()": True,
        "x[[0, 2]]": True,
        "x[:1].expand(5, 4)": False,
        "x.to(torch.float32)": False,
        "rearrange(x, 'r c -> (c r)')": False,
    }
