"""A Kubernetes API server with its etcd on this machine. It has no node: it checks and keeps what it is given.

The programs are those that Kubernetes' own tests (envtest) use, in the folder $KUBEBUILDER_ASSETS.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from tests.toys.ports import likely_port
from tests.toys.waiting import wait_until

ASSETS = os.environ.get("KUBEBUILDER_ASSETS", "")
PROGRAMS = ("etcd", "kube-apiserver")
START_S = 300.0
CALL_S = 120.0
END_S = 30.0

needs_api_server = pytest.mark.skipif(
    not all((Path(ASSETS) / name).is_file() for name in PROGRAMS) or shutil.which("kubectl") is None,
    reason="needs kubectl, and etcd and kube-apiserver in the folder $KUBEBUILDER_ASSETS")


class Kubectl:
    """Calls kubectl with one server's administrator."""

    def __init__(self, settings: Path) -> None:
        self._settings = settings

    def call(self, *arguments: str, text: str | None = None, folder: Path | None = None) -> tuple[int, str]:
        """Returns the exit status and all output. `text` is the input, `folder` where it runs."""
        done = subprocess.run(["kubectl", "--kubeconfig", str(self._settings), *arguments], input=text, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=CALL_S, cwd=folder, check=False)
        return done.returncode, done.stdout

    def apply(self, *resources: dict[str, object]) -> None:
        """Makes the resources. Fails if the server refuses one, or warns of one."""
        status, said = self.call("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(resources))
        assert status == 0, said
        assert "Warning" not in said, said


@contextmanager
def api_server(folder: Path) -> Iterator[Kubectl]:
    """Runs a new server, with its files in `folder`."""
    key, token = folder / "accounts.key", secrets.token_hex(16)
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True, timeout=CALL_S)
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    store, peers, port = likely_port(), likely_port(), likely_port()
    kubectl = Kubectl(_settings(folder, port, token))
    with ExitStack() as stack:
        stack.enter_context(_running(folder, "etcd", [
            f"--data-dir={folder / 'etcd'}", f"--listen-client-urls=http://127.0.0.1:{store}",
            f"--advertise-client-urls=http://127.0.0.1:{store}", f"--listen-peer-urls=http://127.0.0.1:{peers}"]))
        server = stack.enter_context(_running(folder, "kube-apiserver", [
            f"--etcd-servers=http://127.0.0.1:{store}", f"--secure-port={port}", "--bind-address=127.0.0.1",
            f"--cert-dir={folder / 'certificates'}", f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}"]))

        def ready() -> bool:
            assert server.poll() is None, (folder / "kube-apiserver.log").read_text()[-2000:]
            return kubectl.call("get", "--raw", "/readyz")[0] == 0

        wait_until(ready, seconds=START_S)
        yield kubectl


def _settings(folder: Path, port: int, token: str) -> Path:
    """Writes the file from which kubectl knows the server and its administrator."""
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": f"https://127.0.0.1:{port}",
                                                  "insecure-skip-tls-verify": True}}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}]}))
    return path


@contextmanager
def _running(folder: Path, program: str, arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{program}.log").open("wb") as log, subprocess.Popen(
            [Path(ASSETS) / program, *arguments], stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
