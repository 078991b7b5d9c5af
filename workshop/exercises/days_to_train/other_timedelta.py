from datetime import timedelta


def days_to_train(stages, peak_flops_per_second):
    rates = [num_devices * peak_flops_per_second * share for _, num_devices, share in stages]
    times = [timedelta(seconds=stage[0] / rate) for stage, rate in zip(stages, rates, strict=True)]
    return sum(times, timedelta()) / timedelta(days=1)
