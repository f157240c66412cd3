"""Attacks on commands as a user types them, each in a process of its own with bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from folder_holder import held_folder

from services.store.redis_server import private_redis

pytestmark = [pytest.mark.attack, pytest.mark.timeout(200)]

MEMORY = 6 << 30
"""Bytes of address space of a command. Its libraries alone map one or two GiB."""
DRY = ("train", "--config", "alfworld-tiny", "--dry-run")


def gagpo(*arguments: object) -> subprocess.CompletedProcess[str]:
    # The shell sets the bound: Python that ran between fork and exec could hang, since this process has threads.
    bounded = ["sh", "-c", f'ulimit -v {MEMORY >> 10} && exec "$@"', "sh", sys.executable, "-m", "deploy.cli"]
    return subprocess.run(
        [*bounded, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150,
        check=False, env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"})


def refused(*arguments: object) -> str:
    """The one line with which a command refuses."""
    done = gagpo(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout + done.stderr
    return done.stderr


def test_a_name_that_leads_out_of_the_runs_changes_nothing_beside_them(tmp_path: Path):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "thesis").write_text("years of work")
    for name in ("..", "../beside"):
        assert "name" in refused("train", "--config", "alfworld-tiny", f"runs_dir={tmp_path / 'runs'}", f"name={name}")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["thesis"]


def test_a_second_training_in_one_folder_is_refused_and_writes_nothing(tmp_path: Path):
    with held_folder(tmp_path):
        for resume in ((), ("--resume",)):
            said = refused("train", *resume, "--config", "alfworld-tiny", f"runs_dir={tmp_path}", "name=r")
            assert "another process works in" in said
        assert [path.name for path in (tmp_path / "r").iterdir()] == [".lock"]


def test_a_password_in_a_url_is_shown_by_no_command(tmp_path: Path):
    with private_redis(tmp_path) as url:
        done = gagpo(*DRY, "--json", f"redis.url={url}")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert str(urlsplit(url).password) not in said
    assert "gagpo:***@" in said


@pytest.mark.parametrize("arguments", [
    ("credit", "/dev/zero"), ("train", "--config", "/dev/zero"), (*DRY, "learner.lr=.inf"), (*DRY, f"steps={10**23}")],
    ids=lambda arguments: " ".join(arguments)[-30:])
def test_an_input_without_end_or_sense_is_refused_in_bounded_memory(arguments: tuple[str, ...]):
    refused(*arguments)


def test_weights_that_lie_about_their_size_take_no_memory(tmp_path: Path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    refused(*DRY, f"model.path={tmp_path}", "sft.enabled=false")
