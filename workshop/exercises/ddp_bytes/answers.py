# %% other: counted_copies
def ddp_bytes(num_parameters, bytes_per_value=4, bucket_view=True):
    return sum([num_parameters * bytes_per_value] * (5 - bucket_view))


# %% wrong: forgets_the_moments
# message: two moments are missing
def ddp_bytes(num_parameters: int, bytes_per_value: int = 4, bucket_view: bool = True) -> int:
    """Bytes a rank holds for weights, gradients, moments and gradient buckets."""
    weights = gradients = num_parameters * bytes_per_value
    buckets = 0 if bucket_view else gradients
    return weights + gradients + buckets


# %% wrong: forgets_the_gradients
# message: the gradients, or one of
def ddp_bytes(num_parameters: int, bytes_per_value: int = 4, bucket_view: bool = True) -> int:
    """Bytes a rank holds for weights, gradients, moments and gradient buckets."""
    weights = gradients = num_parameters * bytes_per_value
    moments = 2 * num_parameters * bytes_per_value
    buckets = 0 if bucket_view else gradients
    return weights + moments + buckets


# %% wrong: divides_by_the_ranks
# message: Adding ranks does not divide the memory
def ddp_bytes(
    num_parameters: int, bytes_per_value: int = 4, bucket_view: bool = True, world_size: int = 4
) -> float:
    """Bytes a rank holds for weights, gradients, moments and gradient buckets."""
    weights = gradients = num_parameters * bytes_per_value
    moments = 2 * num_parameters * bytes_per_value
    buckets = 0 if bucket_view else gradients
    return (weights + gradients + moments + buckets) / world_size


# %% wrong: forgets_the_buckets
# message: gradients a second time
def ddp_bytes(num_parameters: int, bytes_per_value: int = 4, bucket_view: bool = True) -> int:
    """Bytes a rank holds for weights, gradients, moments and gradient buckets."""
    weights = gradients = num_parameters * bytes_per_value
    moments = 2 * num_parameters * bytes_per_value
    return weights + gradients + moments
