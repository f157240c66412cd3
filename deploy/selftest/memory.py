"""The memory of the GPU in the self-test: how much is in use, and a process that holds some of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from deploy.launch.planning.gpu_pool import smi
from deploy.selftest.sizes import Size

HOLDER = """
import sys, torch
held = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_memory(gib: float) -> Iterator[None]:
    """Lets another process hold that much memory of the GPU during the block. Raises RuntimeError if it cannot."""
    if not gib:
        yield
        return
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(gib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != b"held\n":
            raise RuntimeError(f"another process could not take {gib:g} GiB of the GPU")
        yield
    finally:
        holder.communicate()


def used_mib(size: Size) -> float:
    """Returns the memory in use: of the GPU, or the resident memory of the processes below this one."""
    if size.device == "cuda":
        return float(smi("memory.used")[0])
    return sum(child.memory_info().rss for child in psutil.Process().children(recursive=True)) / 2**20
