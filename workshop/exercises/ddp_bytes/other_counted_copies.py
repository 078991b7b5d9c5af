def ddp_bytes(num_parameters, bytes_per_value=4, bucket_view=True):
    return sum([num_parameters * bytes_per_value] * (5 - bucket_view))
