"""GPUs, as NVML tells: use, memory, power, temperature, clocks, why they are low, PCIe and NVLink.

Not every device has every number. What a device answers with NotSupported is None, and is not asked again.
The PCIe counters are slow: the driver watches the bus for 20 ms in each direction, so they are off unless
asked for. Source: NVIDIA, *NVML API Reference Guide*, "Device Queries" and "Field Value Enums".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from workshop.launch.gpus.nvml import driver, text
from workshop.measure.monitor_record import GpuSample

# nvmlClocksEventReasons: the bits, in the words of the driver's documentation.
REASONS = {
    0x001: "idle",
    0x002: "application clocks setting",
    0x004: "power cap (software)",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "temperature (software)",
    0x040: "temperature (hardware)",
    0x080: "power brake (hardware)",
    0x100: "display clock setting",
}
_ALL_LINKS = 0xFFFFFFFF  # the field's scope: the sum over all NVLinks


class GpuSampler:
    """Asks the driver; `launch.gpus.nvml.NoDriverError` where there is none.

    ``notes``: what went wrong, once each.
    """

    def __init__(self, pcie: bool = False):
        self.notes: list[str] = []
        self._stack = ExitStack()
        self._nvml = self._stack.enter_context(driver())
        self._pcie = pcie
        self._never: set[tuple[int, str]] = set()
        self._links: dict[int, tuple[float, int, int]] = {}
        self._handles = {
            i: self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())
        }
        self._names = {i: text(self._nvml.nvmlDeviceGetName(handle)) for i, handle in self._handles.items()}

    def sample(self) -> tuple[GpuSample, ...]:
        """Every GPU, now."""
        return tuple(self._one(index, handle) for index, handle in self._handles.items())

    def close(self) -> None:
        """Leave the driver."""
        self._stack.close()

    def _one(self, index: int, handle: Any) -> GpuSample:
        nvml = self._nvml

        def ask(what: str, *query: Any) -> Any:
            return self._ask(index, what, query[0], handle, *query[1:])

        rates = ask("utilization", "nvmlDeviceGetUtilizationRates")
        memory = ask("memory", "nvmlDeviceGetMemoryInfo")
        reasons = "nvmlDeviceGetCurrentClocksEventReasons"
        if not hasattr(nvml, reasons):  # its name before 2023
            reasons = "nvmlDeviceGetCurrentClocksThrottleReasons"
        bits = ask("clock reasons", reasons)
        return GpuSample(
            index,
            self._names[index],
            busy=rates and rates.gpu / 100,
            memory_busy=rates and rates.memory / 100,
            memory_used_bytes=memory and int(memory.used),
            memory_total_bytes=memory and int(memory.total),
            power_watts=_scaled(ask("power", "nvmlDeviceGetPowerUsage"), 1e-3),
            power_limit_watts=_scaled(ask("power limit", "nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            temperature_celsius=ask("temperature", "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            sm_clock_mhz=ask("SM clock", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=ask("memory clock", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            slowed=None if bits is None else tuple(why for bit, why in REASONS.items() if bits & bit),
            pcie=self._pcie_rates(ask) if self._pcie else None,
            nvlink=self._nvlink_rates(index, ask),
        )

    def _ask(self, index: int, what: str, query: str, *args: Any) -> Any:
        """One number; None where this device does not tell it."""
        if (index, what) in self._never:
            return None
        try:
            return getattr(self._nvml, query)(*args)
        except self._nvml.NVMLError as error:
            self._never.add((index, what))
            if not isinstance(error, self._nvml.NVMLError_NotSupported):
                self.notes.append(f"GPU {index} does not tell its {what}: {error}")
            return None

    def _pcie_rates(self, ask: Callable[..., Any]) -> tuple[float, float] | None:
        counters = {"TX": self._nvml.NVML_PCIE_UTIL_TX_BYTES, "RX": self._nvml.NVML_PCIE_UTIL_RX_BYTES}
        rates = [ask(f"PCIe {name}", "nvmlDeviceGetPcieThroughput", c) for name, c in counters.items()]
        if None in rates:
            return None
        return rates[0] * 1e3, rates[1] * 1e3  # kB a second

    def _nvlink_rates(self, index: int, ask: Callable[..., Any]) -> tuple[float, float] | None:
        """Differences of the counters (KiB of data) over all links; None the first time."""
        nvml = self._nvml
        fields = [nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX]
        values = ask("NVLink", "nvmlDeviceGetFieldValues", [(field, _ALL_LINKS) for field in fields])
        if values is None or any(value.nvmlReturn != nvml.NVML_SUCCESS for value in values):
            self._never.add((index, "NVLink"))
            return None
        sent, got = (int(value.value.ullVal) for value in values)
        now, before = time.perf_counter(), self._links.get(index)
        self._links[index] = (now, sent, got)
        if before is None:
            return None
        seconds = max(now - before[0], 1e-9)
        return (sent - before[1]) * 1024 / seconds, (got - before[2]) * 1024 / seconds


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
