"""The checks of `gagpo doctor` on a machine with NVIDIA GPUs: driver, generation, compilers, NCCL, peers, memory that
processes share, address.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator

from deploy.launch.planning import machine
from deploy.launch.planning.gpu_pool import ASK_S, smi
from services.findings import Finding, installed
from services.units import GIB

DRIVER = 580
"""The oldest driver that runs CUDA 13, which torch and vLLM are built for."""
OLDEST = (7, 5)
"""Compute capability of the oldest GPUs that CUDA 13 compiles for: Turing. scripts/flavour has the same number."""
WITH_BFLOAT16 = (8, 0)
"""Compute capability from which on GPUs have bfloat16, and torch has attention for rows of any length: Ampere."""
DATA_CENTER_BLACKWELL = 10
"""First number of the compute capability of B200 and B300."""
_ROW = re.compile(r"\s*GPU\d+\s+(X|OK|NS|CNS|GNS|TNS|U)\b")
SHARED_GIB = 8.0
"""Ray's object store holds two versions of the weights here, and NCCL its buffers."""


def findings(gpus: int) -> Iterator[Finding]:
    """Yields the findings of a machine with `gpus` GPUs."""
    yield driver()
    yield generation()
    yield compiler()
    yield attention()
    yield nccl()
    if gpus > 1:
        yield peers()
    yield shared_memory()
    yield address()


def driver() -> Finding:
    """Checks that the driver runs CUDA 13."""
    found = (smi("driver_version") or ["unknown"])[0]
    major = re.match(r"\d+", found)
    if major is not None and int(major[0]) >= DRIVER:
        return Finding(check="driver", status="ok", detail=found)
    return Finding(check="driver", status="error", detail=f"{found} does not run CUDA 13",
                   fix=f"install NVIDIA driver {DRIVER} or newer")


def capabilities() -> list[tuple[int, int]]:
    """Returns the compute capabilities of the GPUs that this process may use, the lowest first."""
    found = (re.fullmatch(r"(\d+)\.(\d+)", value) for value in smi("compute_cap"))
    return sorted((int(one[1]), int(one[2])) for one in found if one)


def generation() -> Finding:
    """Checks that the CUDA builds have code for the GPUs, and whether these have bfloat16."""
    found = next(iter(capabilities()), None)
    if found is None:
        return Finding(check="generation", status="warning", detail="nvidia-smi names no compute capability",
                       fix=f"install NVIDIA driver {DRIVER} or newer")
    detail = f"compute capability {found[0]}.{found[1]}"
    if found < OLDEST:
        return Finding(check="generation", status="error", detail=f"{detail}, and CUDA 13 needs 7.5 (Turing) or more",
                       fix="hide this GPU by CUDA_VISIBLE_DEVICES, or install `.[cpu]`")
    if found < WITH_BFLOAT16:
        return Finding(check="generation", status="warning", detail=f"{detail}: no bfloat16, which begins at 8.0",
                       fix="set model.dtype=float32")
    return Finding(check="generation", status="ok", detail=detail)


def compiler() -> Finding:
    """Checks for what Triton needs when an engine first starts: it compiles its launcher in C, against Python's headers
    (`_build` in triton/runtime/build.py).
    """
    python = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    fix = f"apt-get install gcc libc6-dev {python}"
    if not (found := os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return Finding(check="compiler", status="error", detail="no C compiler, and vLLM's kernels (Triton) need one",
                       fix=fix)
    try:
        done = subprocess.run([found, "-E", f"-I{sysconfig.get_paths()['include']}", "-x", "c", "-"],
                              input="#include <Python.h>\n", capture_output=True, encoding="utf-8", errors="replace",
                              timeout=ASK_S, check=False)
        wrong = next((line for line in done.stderr.splitlines() if "error" in line), "")
    except (OSError, subprocess.TimeoutExpired) as error:
        wrong = str(error)
    if wrong:
        return Finding(check="compiler", status="error", fix=fix,
                       detail=f"{found} cannot compile vLLM's kernels (Triton): {wrong}")
    return Finding(check="compiler", status="ok", detail=found)


def attention() -> Finding:
    """Checks for what vLLM's attention needs in bfloat16 on B200 and B300: FlashInfer, which vLLM prefers there,
    compiles its kernels with nvcc unless a package has them (`_get_backend_priorities` in vllm/platforms/cuda.py).
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = shutil.which("nvcc") or shutil.which(f"{home}/bin/nvcc")
    own = all(major != DATA_CENTER_BLACKWELL for major, _ in capabilities())
    if own or nvcc or installed("flashinfer-jit-cache"):
        return Finding(check="attention", status="ok",
                       detail="vLLM's own kernels" if own else nvcc or "prebuilt kernels")
    return Finding(check="attention", status="error",
                   detail="no nvcc, and vLLM's attention on this GPU (FlashInfer) needs it",
                   fix="install the CUDA toolkit 13 and set CUDA_HOME, or the package flashinfer-jit-cache")


def nccl() -> Finding:
    """Checks that NCCL is installed in the version that torch was built with."""
    found = installed("nvidia-nccl-cu13")
    if found is not None:
        return Finding(check="nccl", status="ok", detail=found)
    return Finding(check="nccl", status="warning", detail="not installed: learner ranks on GPUs cannot meet",
                   fix="rm -rf .venv, then scripts/setup")


def peers() -> Finding:
    """Checks that every GPU can read the memory of every other GPU directly."""
    try:
        said = subprocess.run([shutil.which("nvidia-smi") or "nvidia-smi", "topo", "-p2p", "r"], capture_output=True,
                              encoding="utf-8", errors="replace", timeout=ASK_S, check=False).stdout
    except subprocess.TimeoutExpired:
        said = ""
    rows = [line.split() for line in said.splitlines() if _ROW.match(line)]
    bad = sorted({f"{row[0]}: {state}" for row in rows for state in row[1:] if state not in ("X", "OK")})
    if rows and not bad:
        return Finding(check="peer access", status="ok", detail=f"all {len(rows)} GPUs reach each other")
    return Finding(check="peer access", status="warning",
                   detail="; ".join(bad) or "nvidia-smi topo -p2p r says nothing",
                   fix="look at the PCIe ACS and IOMMU settings: collectives go through host memory otherwise")


def shared_memory() -> Finding:
    """Checks the size of /dev/shm. Inside a node, weights travel through it."""
    there = machine.shared_memory() / GIB
    enough = there >= SHARED_GIB
    return Finding(check="shared for NCCL", status="ok" if enough else "warning", detail=f"{there:.1f} GiB",
                   fix="" if enough else f"give it {SHARED_GIB:g} GiB or more: --shm-size of the container")


def address() -> Finding:
    """Checks that this host's name is not a loopback address: gloo binds to it, and other nodes could not reach it."""
    name = socket.gethostname()
    try:
        found = socket.gethostbyname(name)
    except OSError:
        found = "no address"
    local = found.startswith("127.") or found == "no address"
    return Finding(check="interface", status="warning" if local else "ok", detail=f"{name} is {found}",
                   fix=f"on several nodes: give {name} the address of its network in /etc/hosts, or set "
                       "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to its interface" if local else "")
