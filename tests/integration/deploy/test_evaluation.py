"""An evaluation outside a run leaves nothing behind, and can be played by other nodes of a Ray cluster."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console
from scripted_member import Scripted

from deploy.console.plain import StatusLines
from deploy.training.evaluation import _play, check_results, erased, working_folder
from services.config.file import default_config
from services.config.tree import Config, SupervisionSection
from services.controller.supervise import Supervisor
from services.errors import DeadlineExceeded, UserError
from services.store.redis_server import private_redis
from services.store.store import Store
from services.telemetry.metrics_file import keep_row, read_rows


class Worker(Scripted):
    """A worker that writes until it is stopped."""

    def __init__(self, store: Store) -> None:
        super().__init__("worker", [])
        self._store = store

    def stop(self) -> None:
        super().stop()
        self._store.leases.acquire("learner", "worker")


def test_an_interrupted_evaluation_leaves_no_key_in_redis(tmp_path: Path):
    with private_redis(tmp_path) as url:
        mine, other = Store(url, "eval-mine"), Store(url, "other")
        other.leases.acquire("controller", "other")
        kept = set(other.connection.redis.scan_iter())
        with pytest.raises(KeyboardInterrupt):
            _interrupted(mine)
        assert set(other.connection.redis.scan_iter()) == kept


def _interrupted(store: Store) -> None:
    supervisor = Supervisor(print, SupervisionSection())
    with erased(store, supervisor, pytest.fail):
        store.leases.acquire("controller", "eval-mine")
        supervisor.add(Worker(store))
        assert list(store.connection.redis.scan_iter(match="gagpo:{eval-mine}*"))
        raise KeyboardInterrupt


def test_a_redis_that_fails_does_not_hide_the_error_of_an_evaluation(tmp_path: Path):
    notes = list[str]()
    with private_redis(tmp_path) as url:
        settings = default_config(["redis.outage_seconds=1"]).redis
        store = Store(url, "eval-mine", settings=settings)
        store.connection.check()
    with pytest.raises(ZeroDivisionError), erased(store, Supervisor(print, SupervisionSection()), notes.append):
        raise ZeroDivisionError
    assert [note.partition(":")[0] for note in notes] == ["the keys of this evaluation stay in Redis"]


def test_a_result_waits_for_a_folder_that_cannot_be_written_and_says_so(tmp_path: Path):
    """A folder stands where the file should be, so that opening it raises OSError, until it is removed."""
    file, notes = tmp_path / "eval.jsonl", list[str]()
    file.mkdir()
    threading.Timer(2.0, file.rmdir).start()
    keep_row(file, {"success_rate": 1.0}, wait_s=60.0, note=notes.append)
    assert [row["success_rate"] for row in read_rows(file)] == [1.0]
    assert [note.partition(" could not be written (")[0] for note in notes] == [str(file)]
    file.unlink()
    file.mkdir()
    with pytest.raises(DeadlineExceeded, match=r"eval\.jsonl could not be written for 0\.01 s .*collective_s"):
        keep_row(file, {"success_rate": 1.0}, wait_s=0.01, note=notes.append)


@pytest.mark.parametrize("cluster", [True, False])
def test_the_folder_is_where_all_nodes_see_it(cluster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if cluster:
        monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    with working_folder(default_config(["runs_dir=shared/runs"])) as folder:
        assert folder.is_absolute()
        assert (folder / "config.yaml").is_file()
        assert (folder.parent == tmp_path / "shared" / "runs") == cluster
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(folder.parent.iterdir()) if cluster else not folder.exists()


KILLED = """
import sys
from deploy.training.evaluation import working_folder
from services.config.file import default_config
from services.store.store import Store
keys = ["runs_dir=" + sys.argv[1], "ray.address=head:6379", "redis.url=" + sys.argv[2]]
with working_folder(default_config(keys)) as folder:
    Store(sys.argv[2], folder.name.removeprefix("gagpo-")).leases.acquire("controller", "it")
    print(folder, flush=True)
    sys.stdin.read()
"""


def start_evaluation(runs_dir: Path, url: str) -> tuple[subprocess.Popen[str], Path, Config]:
    """Starts an evaluation that waits. Returns its process, its folder and the config of a next one."""
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(runs_dir), url], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    config = default_config([f"runs_dir={runs_dir}", "ray.address=head:6379", f"redis.url={url}"])
    return process, Path(process.stdout.readline().strip()), config


def test_the_next_evaluation_deletes_what_a_killed_one_left_and_spares_a_living_one(tmp_path: Path):
    runs_dir = tmp_path / "runs"
    with private_redis(tmp_path / "redis") as url:
        killed, left, config = start_evaluation(runs_dir, url)
        redis = Store(url, "other").connection.redis
        mine = f"gagpo:{{{left.name.removeprefix('gagpo-')}}}:*"
        with working_folder(config):
            assert left.exists()
            assert list(redis.scan_iter(match=mine))
        killed.kill()
        killed.communicate(timeout=60)
        assert list(redis.scan_iter(match=mine))
        with working_folder(config) as folder:
            assert list(runs_dir.iterdir()) == [folder]
            assert not list(redis.scan_iter(match=mine))
    assert list(runs_dir.iterdir()) == []


def test_a_killed_evaluation_whose_redis_is_gone_holds_up_nobody(tmp_path: Path):
    notes = list[str]()
    with private_redis(tmp_path / "redis") as url:
        killed, left, config = start_evaluation(tmp_path / "runs", url)
        killed.kill()
        killed.communicate(timeout=60)
    with working_folder(config, notes.append):
        assert not left.exists()
    assert [note.partition(": ")[0] for note in notes] == ["the keys of a killed evaluation stay in Redis"]
    assert "redis.outage_seconds" in notes[0] or "3 s" in notes[0]


def test_a_folder_in_the_place_of_the_results_is_refused_before_the_games(tmp_path: Path):
    """It would have been noticed after them."""
    with pytest.raises(UserError, match="is a folder; name a file in it with --out"):
        check_results(tmp_path)
    check_results(tmp_path / "new.jsonl")


def test_an_evaluation_ends_no_server_of_a_live_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It would lose the episodes that it plays, as a run would."""
    (tmp_path / "live_game.py").write_text(
        "from gagpo.environments import text_spec\nSPEC = text_spec(object, name='live', replayable=False)\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = default_config(["env.name=live_game:SPEC", "env.recycle_hours=4"])
    with StatusLines(Console()) as lines, pytest.raises(UserError, match=r"recycle_hours=4\.0 ends environment"):
        _play(config, tmp_path, None, lines)
