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
