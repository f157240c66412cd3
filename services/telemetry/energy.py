"""Joules that this machine has used, by its own counters: RAPL of its CPU packages, NVML of its GPUs.

Counters that cannot be read are left out: virtual machines have no RAPL, Linux shows it to root alone, and GPUs before
Volta do not count. Memory, disks, fans and the power supply's losses are in none of them, and whatever else runs on the
machine is in all of them.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
PACKAGES = "intel-rapl:[0-9]*"
"""Folders of Linux' RAPL zones, those of AMD's processors included. Packages have one colon, their parts have two."""
LAPTOP = "psys"
"""The name of the zone of an entire laptop, which is next to that of its package and includes it."""
NVML = "libnvidia-ml.so.1"


class EnergyMeter:
    """Measures joules from look to look."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._packages = [zone for zone in sorted(powercap.glob(PACKAGES))
                          if zone.name.count(":") == 1 and _name(zone) != LAPTOP]
        self._gpus = _Gpus()
        self._before = self._counters()

    def taken(self) -> float:
        """Returns the joules since the last look, or since the meter was made; not a number without any counter.

        A package's counter starts again at its largest value, after some quarter of an hour at full load. One start is
        made up for. Of several between two looks, all but the last are lost.
        """
        now, before = self._counters(), self._before
        self._before = now
        both = now.keys() & before.keys()
        if not both:
            return math.nan
        return math.fsum(now[name][0] - before[name][0] + (now[name][1] if now[name][0] < before[name][0] else 0.0)
                         for name in both)

    def _counters(self) -> Mapping[str, tuple[float, float]]:
        """Returns the joules of each counter, and where it starts again (0: never)."""
        counters: dict[str, tuple[float, float]] = {}
        for zone in self._packages:
            try:
                joules, most = (int((zone / name).read_text(encoding="utf-8")) / 1e6
                                for name in ("energy_uj", "max_energy_range_uj"))
            except (OSError, ValueError):  # only root may read it, or the driver has no value
                continue
            counters[zone.name] = joules, most
        return counters | {f"gpu {i}": (joules, 0.0) for i, joules in self._gpus.joules().items()}


def _name(zone: Path) -> str:
    try:
        return (zone / "name").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


class _Gpus:
    """The GPUs of this machine, or of this container."""

    def __init__(self) -> None:
        self._devices: list[ctypes.c_void_p] = []
        try:
            self._nvml = ctypes.CDLL(NVML)
        except OSError:  # no driver
            return
        count = ctypes.c_uint()
        if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return
        for index in range(count.value):
            device = ctypes.c_void_p()
            if not self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
                self._devices.append(device)

    def joules(self) -> dict[int, float]:
        """Returns the joules since the driver was loaded, by number of the GPU, of those that count."""
        joules_by_gpu: dict[int, float] = {}
        for i, device in enumerate(self._devices):
            millijoules = ctypes.c_ulonglong()
            if not self._nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)):
                joules_by_gpu[i] = millijoules.value / 1000
        return joules_by_gpu
