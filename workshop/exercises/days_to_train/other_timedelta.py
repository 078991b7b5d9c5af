def days_to_train(flops, num_devices, peak_flops_per_second, mfu):
    from datetime import timedelta

    return timedelta(seconds=flops / num_devices / peak_flops_per_second / mfu) / timedelta(days=1)
