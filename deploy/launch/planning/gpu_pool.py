"""The GPUs that a run may use: those that the config names, or those of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from deploy.launch.ray_address import ray_address
from services.amounts import GIB
from services.config.tree import CPU, Config

ASK_S = 20.0


@dataclass(frozen=True, slots=True)
class GpuPool:
    """Some GPUs of one size."""

    count: int
    bytes: int
    """Memory of each GPU in bytes."""
    named: bool = False
    """Whether the config names these GPUs. If not, they are those of this machine."""

    @property
    def gib(self) -> float:
        """Memory of each GPU in GiB."""
        return self.bytes / GIB

    def __str__(self) -> str:
        size = f"{self.count} x {self.bytes / 1e9:.0f} GB"
        return f"the GPUs that hardware names, {size}," if self.named else f"the GPUs of this machine, {size},"


def named(config: Config) -> GpuPool | None:
    """Returns the GPUs of the config key `hardware`. A GB of that key is 10^9 bytes: a real GPU has a little more."""
    if config.hardware in (None, CPU):
        return None
    count, size = str(config.hardware).split("x")
    return GpuPool(count=int(count), bytes=int(size) * 10**9, named=True)


def pool_of(config: Config) -> GpuPool | None:
    """Returns the GPUs that a plan has to fit: those that the config names, else this machine's if the run stays on it.

    Returns None if they are unknown.
    """
    return named(config) or (visible() if ray_address(config) is None else None)


def visible() -> GpuPool | None:
    """Returns the NVIDIA GPUs that this process may use, with the memory of the smallest; None if there are none."""
    sizes = [int(line) for line in smi("memory.total") if line.isdigit()]
    return GpuPool(count=len(sizes), bytes=min(sizes) * 2**20) if sizes else None


def smi(field: str) -> list[str]:
    """Returns the value of nvidia-smi's `field` for each GPU that this process may use, without its unit; an empty
    list if there is no driver."""
    values = _query(f"--query-gpu={field}")
    return [values[place] for place in _usable(len(values))]


def _usable(count: int) -> list[int]:
    """Returns the indices of the machine's `count` GPUs that CUDA_VISIBLE_DEVICES names, by number or by the beginning
    of a UUID; all if it is not set. As in CUDA, the first entry that matches no GPU ends the list.

    nvidia-smi ignores the variable, but Ray counts only the GPUs in it. A part of a GPU (MIG) counts as a GPU.
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return list(range(count))
    uuids = _query("--query-gpu=uuid")
    usable: list[int] = []
    for name in map(str.strip, names.split(",")):
        places = [place for place, uuid in enumerate(uuids) if name and uuid.startswith(name)]
        place = int(name) if name.isdigit() else len(usable) if name.startswith("MIG-") else (*places, count)[0]
        if place >= count:
            break
        usable.append(place)
    return usable


def smi_processes() -> list[int]:
    """Returns the ids of the processes that hold memory of a GPU; an empty list if there is no driver."""
    return [int(line) for line in _query("--query-compute-apps=pid") if line.isdigit()]


def _query(what: str) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        done = subprocess.run(["nvidia-smi", what, "--format=csv,noheader,nounits"],
                              capture_output=True, encoding="utf-8", errors="replace", timeout=ASK_S, check=False)
    except subprocess.TimeoutExpired:
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
