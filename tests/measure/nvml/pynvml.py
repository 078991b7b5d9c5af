"""A stand-in for nvidia-ml-py: its names, its errors, a node of two GPUs. `STATE` is what a test changes."""

# ruff: noqa: N801, N802, N816

NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_PCIE_UTIL_TX_BYTES = 0
NVML_PCIE_UTIL_RX_BYTES = 1
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
NVML_SUCCESS = 0
NVML_ERROR_NOT_SUPPORTED = 3
nvmlClocksEventReasonGpuIdle = 0x1
nvmlClocksEventReasonApplicationsClocksSetting = 0x2
nvmlClocksEventReasonSwPowerCap = 0x4
nvmlClocksEventReasonHwSlowdown = 0x8
nvmlClocksEventReasonSyncBoost = 0x10
nvmlClocksEventReasonSwThermalSlowdown = 0x20
nvmlClocksEventReasonHwThermalSlowdown = 0x40
nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80
nvmlClocksEventReasonDisplayClockSetting = 0x100


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    def __str__(self):
        return "NVML Shared Library Not Found"


class NVMLError_DriverNotLoaded(NVMLError):
    def __str__(self):
        return "Driver Not Loaded"


class NVMLError_NotSupported(NVMLError):
    def __str__(self):
        return "Not Supported"


class NVMLError_GpuIsLost(NVMLError):
    def __str__(self):
        return "GPU is lost"


UUIDS = ("GPU-aaaa0000", "GPU-bbbb1111")
STATE: dict = {}


def reset():
    STATE.update(init_error=None, open=0, processes={0: [], 1: []}, raises={}, nvlink=[0, 0], calls=[])


reset()


class _Struct:
    def __init__(self, **fields):
        vars(self).update(fields)


def _called(name):
    STATE["calls"].append(name)
    assert STATE["open"], f"{name} before nvmlInit"
    if name in STATE["raises"]:
        raise STATE["raises"][name]()


def nvmlInit():
    if STATE["init_error"]:
        raise STATE["init_error"]()
    STATE["open"] += 1


def nvmlShutdown():
    STATE["open"] -= 1


def nvmlDeviceGetCount():
    return len(UUIDS)


def nvmlDeviceGetHandleByIndex(index):
    return ("handle", index)


def nvmlDeviceGetUUID(handle):
    return UUIDS[handle[1]]


def nvmlDeviceGetName(handle):
    return "Pretend GPU"


def nvmlDeviceGetComputeRunningProcesses(handle):
    _called("nvmlDeviceGetComputeRunningProcesses")
    return [_Struct(pid=pid, usedGpuMemory=1) for pid in STATE["processes"][handle[1]]]


def nvmlDeviceGetUtilizationRates(handle):
    _called("nvmlDeviceGetUtilizationRates")
    return _Struct(gpu=75, memory=40)


def nvmlDeviceGetMemoryInfo(handle):
    _called("nvmlDeviceGetMemoryInfo")
    return _Struct(total=80 * 2**30, used=20 * 2**30, free=60 * 2**30)


def nvmlDeviceGetPowerUsage(handle):
    _called("nvmlDeviceGetPowerUsage")
    return 350_000


def nvmlDeviceGetEnforcedPowerLimit(handle):
    _called("nvmlDeviceGetEnforcedPowerLimit")
    return 700_000


def nvmlDeviceGetTemperature(handle, sensor):
    _called("nvmlDeviceGetTemperature")
    assert sensor == NVML_TEMPERATURE_GPU
    return 61


def nvmlDeviceGetClockInfo(handle, kind):
    _called("nvmlDeviceGetClockInfo")
    return {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 2619}[kind]


def nvmlDeviceGetCurrentClocksEventReasons(handle):
    _called("nvmlDeviceGetCurrentClocksEventReasons")
    return nvmlClocksEventReasonSwPowerCap | nvmlClocksEventReasonSwThermalSlowdown


def nvmlDeviceGetPcieThroughput(handle, counter):
    _called("nvmlDeviceGetPcieThroughput")
    return 1_000 if counter == NVML_PCIE_UTIL_TX_BYTES else 2_000


def nvmlDeviceGetFieldValues(handle, field_ids):
    _called("nvmlDeviceGetFieldValues")
    STATE["nvlink"] = [STATE["nvlink"][0] + 1024, STATE["nvlink"][1] + 2048]
    return [
        _Struct(fieldId=field, nvmlReturn=NVML_SUCCESS, value=_Struct(ullVal=value))
        for (field, _scope), value in zip(field_ids, STATE["nvlink"], strict=True)
    ]
