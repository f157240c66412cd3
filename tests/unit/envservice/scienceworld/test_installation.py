from pathlib import Path

import pytest

from envservice.scienceworld import simulator
from envservice.scienceworld.spec import findings
from services.errors import UserError


@pytest.fixture(autouse=True)
def _forget():
    simulator.find_java.cache_clear()
    yield
    simulator.find_java.cache_clear()


def java(folder: Path, says: str) -> Path:
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    command.chmod(0o755)
    return command


def test_without_java_there_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    complaint = "runs on Java, and there is none; apt-get install openjdk-17-jre-headless"
    with pytest.raises(UserError, match=complaint) as raised:
        simulator.find_java()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("says", "complaint"), [
    ('openjdk version "1.8.0_402"', "needs Java 11 or newer, and .* is Java 8"), ("no JVM here", "is broken"),
])
def test_a_java_too_old_or_broken_is_refused(
    says: str, complaint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=complaint):
        simulator.find_java()


@pytest.mark.parametrize(("says", "version"), [
    ('openjdk version "17.0.15" 2025-04-15', 17), ('java version "21" 2023-09-19 LTS', 21),
    ('openjdk version "11.0.2"', 11),
])
def test_java_home_is_asked_first(says: str, version: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    command = java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert simulator.find_java() == str(command)
    assert simulator.java_version(str(command)) == version


def test_java_home_that_points_nowhere_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=f"there is none at {tmp_path}/gone/bin/java"):
        simulator.find_java()


def test_the_doctor_reports_the_same_missing_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setattr(simulator, "find_jar", lambda: tmp_path / "scienceworld.jar")
    (finding,) = findings()
    assert (finding.check, finding.status) == ("ScienceWorld", "warning")
    assert "there is none" in finding.detail
    assert "openjdk-17-jre-headless" in finding.fix


def test_another_simulator_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulator, "installed", lambda name: "1.1.0")
    with pytest.raises(UserError, match=r"1\.1\.0 is installed, not 1\.2\.3; pip install scienceworld==1\.2\.3"):
        simulator.find_jar()
    monkeypatch.setattr(simulator, "installed", lambda name: None)
    with pytest.raises(UserError, match="is not installed"):
        simulator.find_jar()
    with pytest.raises(UserError, match="py4j"):
        simulator.find_gateway()
