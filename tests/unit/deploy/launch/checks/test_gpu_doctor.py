"""The checks of a machine with GPUs, against a program that answers as nvidia-smi does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from deploy.launch.checks import doctor, gpu_checks
from deploy.launch.planning import gpu_pool
from deploy.runs.configs import load_config
from envservice.spec import Finding
from services.errors import UserError

ROOT = Path(__file__).parents[5]
SMI = """#!/bin/sh
case "$*" in
  *driver_version*) printf '{driver}\\n{driver}\\n' ;;
  *compute_cap*) printf '{capability}\\n9.0\\n' ;;
  *memory.total*) printf '81559\\n81251\\n' ;;
  *uuid*) printf 'GPU-5c12\\nGPU-77af\\n' ;;
  *name*) printf 'NVIDIA H100 80GB HBM3\\nNVIDIA H100 80GB HBM3\\n' ;;
  *topo*) printf '\\tGPU0\\tGPU1\\n GPU0\\tX\\t{link}\\n GPU1\\t{link}\\tX\\n\\nLegend:\\n  X = Self\\n' ;;
esac
"""


@pytest.fixture
def with_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def install(driver: str, link: str = "OK", capability: str = "9.0") -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(SMI.format(driver=driver, link=link, capability=capability))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def flavour() -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "scripts" / "flavour"], capture_output=True, text=True, check=True)


def test_a_good_machine_has_no_complaint_about_its_gpus(with_smi):
    with_smi("580.65.06")
    assert gpu_pool.visible() == gpu_pool.GpuPool(2, 81251 * 2**20)
    found = {one.check: one for one in doctor.torch()}
    assert found["gpu"].detail == "NVIDIA H100 80GB HBM3; NVIDIA H100 80GB HBM3"
    assert (found["driver"].status, found["peer access"].status) == ("ok", "ok")
    assert {"nccl", "shared for NCCL", "interface"} <= found.keys()
    assert flavour().stdout == "cuda\n"


@pytest.mark.parametrize(("named", "expected"), [
    ("0,1", [81559, 81251]), ("0", [81559]), ("GPU-77", [81251]), ("1,GPU-5c12", [81251, 81559]), ("", []), ("-1", []),
    ("0,7,1", [81559]), ("NoDevFiles", []), ("MIG-93bd", [81559])])
def test_gpus_that_the_environment_hides_are_not_planned_with(named: str, expected: list[int], with_smi, monkeypatch):
    """Ray and CUDA count those of CUDA_VISIBLE_DEVICES alone. nvidia-smi lists all of the machine."""
    with_smi("580.65.06")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert [int(size) for size in gpu_pool.smi("memory.total")] == expected
    there = gpu_pool.visible()
    assert (there.count if there else 0) == len(expected)


def test_a_machine_without_a_compiler_is_told_so_before_a_run(with_smi, tmp_path: Path, monkeypatch):
    with_smi("580.65.06")
    assert doctor.compiler().status in ("ok", "warning")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor.compiler()
    assert (found.status, found.detail) == ("error", "no C compiler, and vLLM's kernels (Triton) need one")
    assert "gcc" in found.fix
    monkeypatch.setattr(gpu_checks, "installed", {"vllm": "0.32.0"}.get)
    with pytest.raises(UserError, match="this machine cannot run on its GPUs: no C compiler"):
        gpu_checks.check_builds(load_config("alfworld-tiny", ["rollout.gpus=1"]))


def test_a_machine_that_does_not_answer_in_time_is_told_of_and_the_other_checks_go_on(
        with_smi, tmp_path: Path, monkeypatch):
    with_smi("580.65.06")
    for name in ("nvidia-smi", "gcc"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(doctor, "ASK_S", 0.1)
    monkeypatch.setenv("CC", str(tmp_path / "gcc"))
    assert (doctor.peers().status, doctor.peers().detail) == ("warning", "nvidia-smi topo -p2p r says nothing")
    assert doctor.compiler().status == "error"
    assert "timed out after 0.1 seconds" in doctor.compiler().detail


def test_a_compiler_without_the_headers_of_python_is_refused(with_smi, tmp_path: Path, monkeypatch):
    """Triton 3.7.1 includes Python.h in backends/nvidia/driver.c, so the first engine would end there."""
    with_smi("580.65.06")
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda: {"include": str(tmp_path / "nowhere")})
    monkeypatch.setenv("CC", "gcc")
    found = doctor.compiler()
    assert found.status == "error"
    assert "Python.h: No such file or directory" in found.detail
    assert "libc6-dev python3." in found.fix
    monkeypatch.setenv("CC", "no-such-compiler")
    assert doctor.compiler().detail.endswith("No such file or directory: 'no-such-compiler'")
    monkeypatch.setattr(gpu_checks, "installed", {"vllm": "0.32.0"}.get)
    with pytest.raises(UserError, match="cannot compile vLLM's kernels"):
        gpu_checks.check_builds(load_config("alfworld-tiny", ["rollout.gpus=1"]))


def check(*keys: str) -> None:
    gpu_checks.check_builds(load_config("alfworld-tiny", ["rollout.gpus=1", *keys]))


def test_gpus_without_code_in_the_cuda_builds_are_refused_and_set_up_is_for_cpus(with_smi, monkeypatch):
    """CUDA 13 compiles for Turing and newer. A V100 (7.0) with driver 580 got builds without a kernel for it."""
    with_smi("580.65.06", capability="7.0")
    assert flavour().stdout == "cuda\n", "the other GPU is an H100"
    assert doctor.generation().status == "error"
    monkeypatch.setattr(gpu_checks, "installed", {"vllm": "0.32.0"}.get)
    with pytest.raises(UserError, match=r"compute capability 7\.0, and CUDA 13 needs 7\.5") as refused:
        check("model.dtype=bfloat16")
    assert "CUDA_VISIBLE_DEVICES" in refused.value.fix
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert doctor.generation().status == "ok"


def test_a_machine_of_old_gpus_alone_is_set_up_for_cpus(tmp_path: Path, with_smi):
    with_smi("580.65.06", capability="7.0")
    program = tmp_path / "nvidia-smi"
    program.write_text(program.read_text().replace("9.0", "6.1"))
    done = flavour()
    assert done.stdout == "cpu\n"
    assert "compute capability 7.0, and the CUDA builds need 7.5" in done.stderr


def test_bfloat16_needs_gpus_that_have_it(with_smi, monkeypatch):
    """vLLM refuses bfloat16 below 8.0 (check_if_supports_dtype), and torch's attention has no kernel there."""
    with_smi("580.65.06", capability="7.5")
    assert flavour().stdout == "cuda\n"
    assert (doctor.generation().status, doctor.generation().fix) == ("warning", "set model.dtype=float32")
    monkeypatch.setattr(gpu_checks, "installed", {"vllm": "0.32.0"}.get)
    monkeypatch.setattr(doctor, "compiler", lambda: Finding(check="compiler", status="ok", detail="gcc"))
    with pytest.raises(UserError, match=r"model\.dtype=bfloat16, .* has compute capability 7\.5"):
        check("model.dtype=bfloat16")
    check()


def test_blackwell_needs_nvcc_for_the_attention_that_vllm_prefers_there(with_smi, tmp_path: Path, monkeypatch):
    with_smi("580.65.06", capability="10.0")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(gpu_checks, "installed", {"vllm": "0.32.0"}.get)
    monkeypatch.setattr(doctor, "compiler", lambda: Finding(check="compiler", status="ok", detail="gcc"))
    assert doctor.attention().status == "error", "the other GPU is an H100"
    with pytest.raises(UserError, match=r"no nvcc, and vLLM's attention on this GPU \(FlashInfer\) needs it"):
        check("model.dtype=bfloat16")
    check()  # in float32 vLLM takes Triton's
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    check("model.dtype=bfloat16")


def test_an_old_driver_is_an_error_and_set_up_is_for_cpus(with_smi):
    with_smi("550.54.14")
    found = doctor.driver()
    assert (found.status, found.fix) == ("error", "install NVIDIA driver 580 or newer")
    done = flavour()
    assert done.stdout == "cpu\n"
    assert "550.54.14, and the CUDA builds need 580" in done.stderr


def test_gpus_that_do_not_reach_each_other_are_named(with_smi):
    with_smi("580.65.06", link="CNS")
    found = doctor.peers()
    assert (found.status, found.detail) == ("warning", "GPU0: CNS; GPU1: CNS")


def test_a_machine_without_a_driver_is_set_up_for_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert flavour().stdout == "cpu\n"
    assert gpu_pool.visible() is None
