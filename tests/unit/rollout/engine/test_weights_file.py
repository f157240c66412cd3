"""Workers of one machine share one file of weights, whoever of them dies."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from rollout.engine.weights_file import MARK, place_of, weights_file
from services.weights.pack import Packed, pack_tensors

DEADLINE_S = 60.0
DIES = """
import os, sys
from pathlib import Path
import numpy as np
from rollout.engine import weights_file as module
from services.weights.pack import pack_tensors
packed = pack_tensors([("w", np.arange(4096, dtype=np.float32))])
if sys.argv[2] == "writing":
    def half(descriptor, manifest, buffer, digest):
        os.write(descriptor, buffer.data[:100])
        os._exit(9)
    module._write = half
with module.weights_file(packed.manifest, packed.buffer, packed.digest, folder=Path(sys.argv[1])):
    os._exit(9)
"""


@pytest.fixture
def packed() -> Packed:
    return pack_tensors([("w", np.arange(4096, dtype=np.float32))])


def opened(packed: Packed, folder: Path):
    return weights_file(packed.manifest, packed.buffer, packed.digest, folder=folder)


def test_the_last_user_removes_the_file(packed: Packed, tmp_path: Path):
    with opened(packed, tmp_path) as first:
        with opened(packed, tmp_path) as second:
            assert first == second
        assert first.read_bytes() == packed.buffer.tobytes()
        assert first.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == []


def test_weights_that_shared_memory_has_no_room_for_go_to_the_folder_for_temporary_files():
    """A container's /dev/shm has 64 MB unless its start says otherwise."""
    assert place_of("x", 1) == Path("/dev/shm")
    assert place_of("x", 1 << 60) == Path(tempfile.gettempdir())


def test_a_second_worker_neither_hashes_nor_writes(packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with opened(packed, tmp_path) as path:
        monkeypatch.setattr("rollout.engine.weights_file._write", lambda *_: pytest.fail("it is there already"))
        with opened(packed, tmp_path) as again:
            assert again == path


def test_wrong_bytes_are_refused_and_leave_nothing(packed: Packed, tmp_path: Path):
    with (pytest.raises(ValueError, match=f"weights arrived with digest {packed.digest}, expected d"),
          weights_file(packed.manifest, packed.buffer, "d", folder=tmp_path)):
        pytest.fail("a file of wrong weights")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["writing", "using"])
def test_the_file_of_a_worker_that_died_is_written_again(packed: Packed, tmp_path: Path, when: str):
    done = subprocess.run([sys.executable, "-c", DIES, str(tmp_path), when], check=False, timeout=DEADLINE_S)
    assert done.returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.stat().st_size == (100 if when == "writing" else packed.buffer.nbytes)
    with opened(packed, tmp_path) as path:
        assert path.read_bytes() == packed.buffer.tobytes()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_version_that_nobody_uses_is_removed_and_one_in_use_stays(packed: Packed, tmp_path: Path):
    other = pack_tensors([("w", np.ones(8, dtype=np.float32))])
    subprocess.run([sys.executable, "-c", DIES, str(tmp_path), "using"], check=False, timeout=DEADLINE_S)
    with opened(other, tmp_path) as path:
        assert list(tmp_path.iterdir()) == [path]
        with opened(packed, tmp_path) as second:
            assert sorted(tmp_path.iterdir()) == sorted([path, second])


def test_many_workers_at_once_find_whole_files(packed: Packed, tmp_path: Path):
    """Threads hold locks of their own, because each opens the file itself."""
    wrong: list[str] = []

    def work() -> None:
        for _ in range(30):
            with opened(packed, tmp_path) as path:
                if path.read_bytes() != packed.buffer.tobytes():
                    wrong.append("torn")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.attack
@pytest.mark.parametrize("plant", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")],
                         ids=["folder", "file", "link"])
def test_strange_entries_under_our_name_are_passed_over(plant, packed: Packed, tmp_path: Path):
    """Any user can make them in shared memory and in a common /tmp."""
    plant(tmp_path / f"{MARK}{os.getuid()}-strange")
    with weights_file(packed.manifest, packed.buffer, packed.digest, folder=tmp_path) as path:
        assert path.stat().st_size == packed.buffer.nbytes
