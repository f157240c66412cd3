"""The checks of a machine with GPUs, against a program that answers as nvidia-smi does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from deploy.launch import cards, doctor, gpu_checks, gpu_doctor
from deploy.runs.configs import load_config
from services.errors import UserError

ROOT = Path(__file__).parents[4]
SMI = """#!/bin/sh
case "$*" in
  *driver_version*) printf '{driver}\\n{driver}\\n' ;;
  *memory.total*) printf '81559\\n81251\\n' ;;
  *uuid*) printf 'GPU-5c12\\nGPU-77af\\n' ;;
  *name*) printf 'NVIDIA H100 80GB HBM3\\nNVIDIA H100 80GB HBM3\\n' ;;
  *topo*) printf '\\tGPU0\\tGPU1\\n GPU0\\tX\\t{link}\\n GPU1\\t{link}\\tX\\n\\nLegend:\\n  X = Self\\n' ;;
esac
"""


@pytest.fixture
def with_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def install(driver: str, link: str = "OK") -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(SMI.format(driver=driver, link=link))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def flavour() -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "scripts" / "flavour"], capture_output=True, text=True, check=True)


def test_a_good_machine_has_no_complaint_about_its_cards(with_smi):
    with_smi("580.65.06")
    assert cards.visible() == cards.Cards(2, 81251 * 2**20)
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
    assert [int(size) for size in cards.smi("memory.total")] == expected
    there = cards.visible()
    assert (there.count if there else 0) == len(expected)


def test_a_machine_without_a_compiler_is_told_so_before_a_run(with_smi, tmp_path: Path, monkeypatch):
    with_smi("580.65.06")
    assert gpu_doctor.compiler().status in ("ok", "warning")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = gpu_doctor.compiler()
    assert (found.status, found.detail) == ("error", "no C compiler, and vLLM's kernels (Triton) need one")
    assert "gcc" in found.fix
    monkeypatch.setattr(gpu_checks, "installed", {"vllm": "0.32.0"}.get)
    with pytest.raises(UserError, match="and there is no C compiler"):
        gpu_checks.check_builds(load_config("alfworld-tiny", ["rollout.gpus=1"]))


def test_an_old_driver_is_an_error_and_set_up_is_for_cpus(with_smi):
    with_smi("550.54.14")
    found = gpu_doctor.driver()
    assert (found.status, found.fix) == ("error", "install NVIDIA driver 580 or newer")
    done = flavour()
    assert done.stdout == "cpu\n"
    assert "550.54.14, and the CUDA builds need 580" in done.stderr


def test_gpus_that_do_not_reach_each_other_are_named(with_smi):
    with_smi("580.65.06", link="CNS")
    found = gpu_doctor.peers()
    assert (found.status, found.detail) == ("warning", "GPU0: CNS; GPU1: CNS")


def test_a_machine_without_a_driver_is_set_up_for_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert flavour().stdout == "cpu\n"
    assert cards.visible() is None
