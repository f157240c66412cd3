"""scripts/containers pins the base image in both Containerfiles, and takes no image without a digest for one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAME = "docker.io/library/python:3.11-slim-bookworm"
FILES = ("deploy/docker/Containerfile", "deploy/docker/Containerfile.trainer")


@pytest.fixture
def pin(tmp_path: Path):
    """`pin(digest)` runs it in a copy of the tree, where the registry tells this digest."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "deploy/docker").mkdir(parents=True)
    for name in (*FILES, "scripts/containers"):
        shutil.copy(ROOT / name, tmp_path / name)

    def run(digest: str):
        podman = tmp_path / "podman"
        podman.write_text(f'#!/bin/sh\n[ "$1" = pull ] || echo "{digest}"\n')
        podman.chmod(0o755)
        return subprocess.run([tmp_path / "scripts/containers", "pin"], capture_output=True, text=True, timeout=30,
                              check=False, env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})

    return run


def base(folder: Path, name: str) -> str:
    return next(line for line in (folder / name).read_text().splitlines() if line.startswith("ARG BASE="))


def test_the_digest_of_the_registry_stands_in_both_files_and_gives_way_to_the_next(pin, tmp_path: Path):
    for digest in ("sha256:" + "a" * 64, "sha256:" + "b" * 64):
        done = pin(f"{NAME.partition(':')[0]}@{digest}")
        assert done.returncode == 0, done.stderr
        assert {base(tmp_path, name) for name in FILES} == {f"ARG BASE={NAME}@{digest}"}


def test_an_image_without_a_digest_is_refused(pin, tmp_path: Path):
    before = {name: base(tmp_path, name) for name in FILES}
    done = pin("")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert {name: base(tmp_path, name) for name in FILES} == before


@pytest.mark.parametrize("name", FILES)
def test_every_stage_stands_on_the_named_base(name: str):
    stages = [line.split()[1] for line in (ROOT / name).read_text().splitlines() if line.startswith("FROM ")]
    assert stages == ["$BASE", "$BASE"]
    assert base(ROOT, name).startswith(f"ARG BASE={NAME}")
