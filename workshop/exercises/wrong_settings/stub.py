def wrong_settings() -> dict[str, str]:
    """For each file the key that is wrong or missing; "nothing" for the right one."""
    return {
        "a": ...,
        "b": ...,
        "c": ...,
        "d": ...,
        "e": ...,
        "f": ...,
    }
