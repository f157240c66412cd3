"""A run that goes on waits for its servers. A new run, or one with another address, waits for a short time only."""

from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from ports import likely_port

from deploy.launch.checks import servers
from deploy.launch.planning.task_sets import open_task_sets
from deploy.members.env_server import EnvServer
from deploy.runs.configs import load_config
from services.config.file import dump_config
from services.config.tree import Config
from services.errors import Unanswered, Unavailable, UserError
from services.outages import retry_server
from services.store.redis_server import RedisServer, find_redis


def config(*overrides: str) -> Config:
    return load_config("alfworld-tiny", overrides)


def written(tmp_path: Path, *overrides: str) -> Config:
    """Returns a config as the folder of a run has it: without the password."""
    (tmp_path / "config.yaml").write_text(config(*overrides).model_dump_json())
    return load_config(tmp_path / "config.yaml", ())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """Provides a Redis that is not started."""
    made = RedisServer(tmp_path / "redis", find_redis())
    yield made
    made.close()


def test_a_run_that_goes_on_waits_until_its_redis_answers(server: RedisServer, tmp_path: Path):
    told: list[str] = []

    def start(line: str) -> None:
        told.append(line)
        server.start()

    now = config(f"redis.url={server.url}")
    servers.check_redis(now, written(tmp_path, f"redis.url={server.url}"), start)
    assert len(told) == 1
    assert "Redis cannot be reached" in told[0]
    assert told[0].endswith("; waiting for it for up to 300 s")


def test_a_new_run_waits_for_a_redis_that_restarts(server: RedisServer):
    told: list[str] = []

    def start(line: str) -> None:
        told.append(line)
        server.start()

    servers.check_redis(config(f"redis.url={server.url}", "supervision.reach_seconds=290"), None, start)
    assert len(told) == 1
    assert told[0].endswith("; waiting for it for up to 290 s")


def test_a_new_address_of_redis_is_refused_in_the_end(server: RedisServer, tmp_path: Path):
    before = written(tmp_path, "redis.url=redis://127.0.0.1:6379/0")
    for run in (None, before):
        with pytest.raises(Unanswered, match=r"start it or correct redis\.url"):
            servers.check_redis(config(f"redis.url={server.url}", "supervision.reach_seconds=0"), run, pytest.fail)


def test_a_wrong_password_is_refused_at_once(server: RedisServer, tmp_path: Path):
    server.start()
    wrong = f"redis.url={server.url.replace('@', 'x@')}"
    with pytest.raises(UserError, match="refused the password"):
        servers.check_redis(config(wrong), written(tmp_path, wrong), pytest.fail)


class Healthy(BaseHTTPRequestHandler):
    """Answers every GET with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_a_run_that_goes_on_waits_until_its_environment_servers_answer():
    port, started = likely_port(), list[HTTPServer]()

    def start(_line: str) -> None:
        started.append(HTTPServer(("127.0.0.1", port), Healthy))
        Thread(target=started[0].serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    now = config(f"env.urls=[http://127.0.0.1:{port}]", "supervision.reach_seconds=0")
    with pytest.raises(Unanswered, match="no environment server answers"):
        servers.check_servers(now, None, str)
    with pytest.raises(Unanswered, match="no environment server answers"):
        servers.check_servers(now, config("env.urls=[http://127.0.0.1:1]"), str)
    servers.check_servers(now, now, start)
    started[0].shutdown()
    started[0].server_close()


@pytest.mark.parametrize("error", [Unanswered("no answer", "start it"), Unavailable("no answer")])
def test_the_wait_ends_with_the_last_refusal(error: Exception):
    def never() -> None:
        raise error

    told: list[str] = []
    with pytest.raises(type(error), match=str(error)):
        retry_server(never, 0.01, told.append)
    assert told == ["no answer; waiting for it for up to 0.01 s"]


def test_a_server_with_other_rows_of_as_many_tasks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Only the rows differ: their number and the ids of the tasks are the same."""
    (tmp_path / "quiz.py").write_text("from envservice.adapters.dataset import dataset_spec\n"
                                      "SPEC = dataset_spec(dict, name='quiz')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    def asking(name: str) -> Config:
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(f'{{"question": "{name} {row}?", "split": "{split}"}}\n'
                                for split in ("train", "validation", "test") for row in range(8)))
        return config("env.name=quiz:SPEC", f"env.data={file}", "eval.episodes=8", "eval.panel=8",
                      "learner.groups_per_step=8")

    ours, other = asking("ours"), asking("other")
    sets = open_task_sets(ours)
    assert sets.games != open_task_sets(other).games
    for played, refused in ((ours, False), (other, True)):
        dump_config(played, tmp_path / "config.yaml")
        server = EnvServer(0, likely_port(), tmp_path / "config.yaml", tmp_path)
        server.start()
        try:
            server.wait()
            with pytest.raises(UserError, match="give both the same data") if refused else nullcontext():
                servers.check_versions([server.url], env=sets.env_name, engine=sets.engine)
        finally:
            server.stop()
