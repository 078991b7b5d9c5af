def ddp_bytes(num_parameters: int, bytes_per_value: int = 4, bucket_view: bool = True) -> int:
    """Bytes a rank holds when `optimizer.step()` returns."""
    weights = gradients = num_parameters * bytes_per_value
    moments = 2 * num_parameters * bytes_per_value
    buckets = 0 if bucket_view else gradients
    return weights + gradients + moments + buckets
