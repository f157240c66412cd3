"""Models of the hub: found in the cache, never fetched unasked, recorded with their commit, pushed with one command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from deploy.runs.configs import load_config
from deploy.runs.folder import open_run
from deploy.runs.model_sources import origin, push, with_local_model
from deploy.training.sweep import is_finished
from services.errors import UserError

ROOT = Path(__file__).parents[4]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache that holds acme/tiny at one commit, as huggingface_hub lays it out."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--acme--tiny"
    (model / "snapshots" / COMMIT).mkdir(parents=True)
    (model / "snapshots" / COMMIT / "config.json").write_text("{}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    return tmp_path


def config(*overrides):
    return with_local_model(load_config("alfworld-tiny", overrides))


def test_a_name_is_its_folder_in_the_cache_and_run_json_has_the_commit(cache, tmp_path):
    found = config("model.path=acme/tiny", f"runs_dir={tmp_path / 'runs'}")
    assert found.model.path == cache / "models--acme--tiny" / "snapshots" / COMMIT
    assert config("model.path=acme/tiny", f"model.revision={COMMIT}").model.path == found.model.path
    folder, _ = open_run(found, games="", resume=False)
    assert json.loads(folder.identity_file.read_text())["model"] == f"acme/tiny@{COMMIT}"


def second_cache(cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies the cache to another folder, from which models are taken from then on."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return Path(shutil.copytree(cache / "models--acme--tiny", folder / "models--acme--tiny"))


@pytest.mark.parametrize("gone", [True, False])
def test_a_run_goes_on_with_the_same_commit_from_another_cache(gone: bool, cache, tmp_path, monkeypatch):
    words = ("model.path=acme/tiny", f"runs_dir={tmp_path / 'runs'}")
    folder, _ = open_run(config(*words, "model.download=false"), games="", resume=False)
    other = second_cache(cache, tmp_path / "other", monkeypatch)
    folder.summary.write_text("{}")
    if gone:
        shutil.rmtree(cache / "models--acme--tiny")
    for again in (config(*words), config(*words, "model.revision=main")):
        assert again.model.path == other / "snapshots" / COMMIT
        assert is_finished(again), "a sweep leaves it out"
        assert open_run(again, games="", resume=True)[0] == folder
    if gone:
        assert with_local_model(load_config(folder.config_file)).model.path == other / "snapshots" / COMMIT


def test_a_run_does_not_go_on_with_another_commit(cache, tmp_path):
    words = ("model.path=acme/tiny", f"runs_dir={tmp_path / 'runs'}")
    open_run(config(*words), games="", resume=False)
    model = cache / "models--acme--tiny"
    (model / "snapshots" / COMMIT).rename(model / "snapshots" / ("f" * 40))
    (model / "refs" / "main").write_text("f" * 40)
    with pytest.raises(UserError, match=r"another config: model\.path is .*snapshots/0123456789ab"):
        open_run(config(*words), games="", resume=True)


@pytest.mark.parametrize("named", ["acme/other", "acme/tiny/x", "tiny", "/acme/tiny"])
def test_a_model_that_is_not_in_the_cache_is_left_to_preflight(cache, named):
    assert config(f"model.path={named}").model.path == Path(named)
    assert origin(Path(named)) == ""


def test_a_folder_goes_before_a_name(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme/tiny").mkdir(parents=True)
    assert config("model.path=acme/tiny").model.path == Path("acme/tiny")


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's API as an upload of small files needs. `log` has what it was asked."""

    log: list[tuple[str, str, bytes]]

    def _answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.log.append(("GET", self.path, b""))
        self._answer({"id": "acme/agent", "sha": COMMIT, "siblings": [], "private": True})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.log.append(("POST", self.path, body))
        if self.headers.get("authorization") != "Bearer hf_right":
            self._answer({"error": "Invalid username or password."}, 401)
        elif self.path.endswith("/repos/create"):
            self._answer({"url": "https://huggingface.co/acme/agent"})
        elif "/preupload/" in self.path:
            files = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for one in json.loads(body)["files"]]
            self._answer({"files": files})
        else:
            self._answer({"commitUrl": f"https://huggingface.co/acme/agent/commit/{COMMIT}", "commitOid": COMMIT,
                          "success": True})

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    handler = type("Handler", (Hub,), {"log": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler.log
    server.shutdown()
    server.server_close()


def pushed(url, folder, token):
    """huggingface_hub reads its address when it is imported, so a process of its own pushes."""
    code = ("import sys\nfrom pathlib import Path\nfrom deploy.runs.model_sources import push\n"
            "print(push(Path(sys.argv[1]), 'acme/agent'))")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, env=kept | {"HF_ENDPOINT": url, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1",
                                      "PYTHONPATH": str(ROOT), "HF_HOME": str(folder.parent / "home")}, check=False)


def test_an_exported_folder_is_pushed_and_a_refusal_is_one_line(hub, tmp_path):
    url, log = hub
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "README.md").write_text("# agent\n")
    (folder / "config.json").write_text("{}")
    done = pushed(url, folder, "hf_right")
    assert done.returncode == 0, done.stderr
    assert COMMIT in done.stdout
    created = next(json.loads(body) for _, path, body in log if path.endswith("/repos/create"))
    assert created.get("visibility", created.get("private")) in ("private", True)
    committed = next(body.decode() for _, path, body in log if "/commit/" in path)
    sent = {json.loads(line)["value"].get("path") for line in committed.splitlines()}
    assert sent == {None, "README.md", "config.json"}  # the first line is the commit's message
    refused = pushed(url, folder, "hf_wrong")
    assert refused.returncode == 1
    assert f"{folder} is written, and could not be pushed to acme/agent" in refused.stderr


def test_a_name_without_an_owner_is_refused_before_anything_is_sent(tmp_path):
    with pytest.raises(UserError, match="no name of a repository"):
        push(tmp_path, "agent")
