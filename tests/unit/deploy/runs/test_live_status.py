"""The processes of a run as its driver's real endpoint tells of them, or says why it cannot."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deploy import cli
from deploy.launch.monitoring import target_groups
from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder
from deploy.runs.live_status import look
from deploy.runs.stage import StageRecord
from services.config.file import dump_config
from services.errors import StoreFault
from services.telemetry.exposition import serving
from services.telemetry.heartbeat import Beat

MISCONF = "beats: MISCONF Errors writing to the AOF file: No space left on device; give Redis the disk that it lacks"


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs/a")
    folder.path.mkdir(parents=True)
    dump_config(load_config("alfworld-tiny", ()), folder.config_file)
    (folder.path / "run.json").write_text("{}")
    return folder


def test_the_reason_for_which_a_driver_cannot_read_the_heartbeats_is_shown(folder, capsys):
    """It was told as one that does not answer, while the disk behind its Redis was full."""
    def refused() -> dict[str, Beat]:
        raise StoreFault(f"{MISCONF}\nwith more lines")

    with StageRecord(folder.stage_file), serving(refused, host="127.0.0.1", port=0) as address:
        folder.targets.parent.mkdir(parents=True)
        folder.targets.write_text(json.dumps(target_groups("a", address, ["http://127.0.0.1:1"])))
        assert cli.main(["status", str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^  driver  .* cannot read the heartbeats: {MISCONF}$", shown, re.MULTILINE)
    assert re.search(r"^  env 127\.0\.0\.1:1 .* does not answer$", shown, re.MULTILINE)
    assert "tickets wait" not in shown


class Page(BaseHTTPRequestHandler):
    """Another program, which has a page for every address."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<!doctype html>\n<p class=x>Welcome, { and \xff</p>\n")

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def another_program() -> Iterator[str]:
    """Yields the address of a Page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_another_program_at_an_address_of_the_run_is_one_that_does_not_answer(folder):
    """A driver and a server that were killed leave their ports to others. Their pages ended `gagpo status`."""
    folder.targets.parent.mkdir(parents=True)
    with another_program() as page, StageRecord(folder.stage_file), serving(
            dict, host="127.0.0.1", port=0) as address:
        folder.targets.write_text(json.dumps(target_groups("a", address, [f"http://{page}"])))
        assert [beat.doing for beat in look(folder.path).values()] == ["does not answer"]
        folder.targets.write_text(json.dumps(target_groups("a", page, [])))
        assert look(folder.path) == {}
