def which_copy() -> dict[str, bool]:
    """For x = torch.arange(12.).view(3, 4): does the expression copy?"""
    return {
        "x.T": ...,
        "x[:, ::2]": ...,
        "x.reshape(2, 6)": ...,
        "x.T.reshape(12)": ...,
        "x.contiguous()": ...,
        "x.T.contiguous()": ...,
        "x[[0, 2]]": ...,
        "x[:1].expand(5, 4)": ...,
        "x.to(torch.float32)": ...,
        "rearrange(x, 'r c -> (c r)')": ...,
    }
