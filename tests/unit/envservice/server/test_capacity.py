"""How many sessions fit; the folders are laid out as the kernel shows control groups."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envservice.server.capacity import memory_bytes, own_memory_bytes, session_limit, sessions_bytes
from services.amounts import GIB
from services.config.file import default_config
from services.config.tree import EnvSection
from services.errors import UserError

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("settings", "session", "memory", "expected"), [
    ({}, 0, 1, 1024),
    ({}, GIB, 64 * GIB, 32),
    ({"max_sessions": 8}, GIB, 64 * GIB, 8),
    ({"servers": 4}, GIB, 64 * GIB, 8),
    ({"memory_gb": 10}, GIB, 64 * GIB, 10),
    ({"memory_gb": 10, "servers": 3}, GIB, 64 * GIB, 3),
    ({}, GIB, 2 * GIB, 1),
])
def test_sessions_are_bounded_by_number_and_by_their_share_of_memory(settings, session, memory, expected):
    assert session_limit(EnvSection(**settings), session, memory=memory) == expected


@pytest.mark.parametrize(("settings", "expected"), [
    ({}, 4 * GIB), ({"servers": 4}, GIB), ({"memory_gb": 3, "servers": 2}, 3 * GIB // 2),
])
def test_records_of_sessions_are_bounded_by_the_same_share_of_memory(settings, expected):
    assert sessions_bytes(EnvSection(**settings), memory=8 * GIB) == expected


def test_no_room_for_one_session_is_one_line():
    with pytest.raises(UserError, match=r"alfworld takes 1.00 GiB, and each server has 0.50; raise env.memory_gb"):
        session_limit(EnvSection(servers=2), GIB, memory=2 * GIB)


@pytest.mark.parametrize(("setting", "what"), [
    ("env.recycle_hours=0.001", "env.recycle_hours cannot be 0.001; it should be greater than or equal to 0.01"),
    ("env.recycle_hours=-1", "env.recycle_hours cannot be -1; it should be greater than or equal to 0.01"),
    ("env.recycle_hours=.inf", "env.recycle_hours cannot be inf; it should be a finite number"),
    ("env.recycle_gb=.inf", "env.recycle_gb cannot be inf; it should be a finite number"),
    ("env.memory_gb=.inf", "env.memory_gb cannot be inf; it should be a finite number"),
])
def test_bounds_that_no_server_could_keep_are_refused_with_those_that_one_could(setting: str, what: str):
    with pytest.raises(UserError) as error:
        default_config([setting])
    assert str(error.value) == what


@pytest.mark.parametrize(("limits", "own", "expected"), [
    ({}, "0::/\n", MACHINE),
    ({"memory.max": "max"}, "0::/\n", MACHINE),
    ({"memory.max": str(2 * GIB)}, "0::/\n", 2 * GIB),
    ({"memory.max": "max", "a/memory.max": str(GIB), "a/b/memory.max": "max"}, "0::/a/b\n", GIB),
    ({"memory/memory.limit_in_bytes": str(3 * GIB)}, "9:cpu:/x\n4:memory:/docker/of-the-host\n0::/\n", 3 * GIB),
    ({"memory/memory.limit_in_bytes": "9223372036854771712"}, "4:memory:/\n", MACHINE),
    ({"memory/memory.limit_in_bytes": str(3 * GIB), "memory/a/memory.limit_in_bytes": str(GIB)}, "4:memory:/a\n", GIB),
    ({"cpu/memory.max": "1"}, "2:cpu:/\n", MACHINE),
])
def test_the_container_s_limit_counts_in_both_versions_of_control_groups(
    limits: dict[str, str], own: str, expected: int, tmp_path: Path,
):
    (tmp_path.parent / "memory.max").write_text("1")  # outside of what is mounted
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert memory_bytes(tmp_path, own) == expected


def test_this_machine_can_be_asked():
    assert 2**28 < memory_bytes() <= MACHINE


def test_own_memory_is_what_a_process_holds():
    code = ("from envservice.server.capacity import own_memory_bytes as own\nbefore = own()\n"
            "held = bytearray(b'x') * 2**26\nprint(own() - before)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert 0.9 < int(done.stdout) / 2**26 < 1.2
    assert own_memory_bytes() > 2**20
