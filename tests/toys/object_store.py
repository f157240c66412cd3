"""Real servers that speak the protocols of S3 and of Google Cloud Storage, each with one bucket, and the environment in
which their clients find them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import likely_port

PROGRAMS = Path(__file__).parents[2] / ".cache" / "object-store" / "bin"
BUCKET, GOOGLE_BUCKET = "s3://gagpo", "gs://gagpo"
READY_S = 120.0


@contextmanager
def object_store() -> Iterator[None]:
    """Runs moto's S3 server with an empty bucket."""
    port = likely_port()
    with _serving("moto_server", ["-H", "127.0.0.1", "-p", str(port)], port, {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}):
        from pyarrow import fs

        client, path = fs.FileSystem.from_uri(f"{BUCKET}?allow_bucket_creation=true")
        client.create_dir(path)
        yield


@contextmanager
def google_store(folder: Path) -> Iterator[None]:
    """Runs gcp-storage-emulator with an empty bucket. The account of its clients is a file in `folder`."""
    port, account = likely_port(), folder / "account.json"
    account.write_text(json.dumps({
        "type": "service_account", "project_id": "p", "private_key_id": "1", "client_id": "1",
        "private_key": _private_key(), "client_email": "somebody@p.iam.gserviceaccount.com",
        "token_uri": "http://127.0.0.1:9/token"}))  # never asked: the client signs its own tokens
    words = ["start", "--host", "127.0.0.1", "--port", str(port), "--default-bucket", "gagpo", "--in-memory"]
    with _serving("gcp-storage-emulator", words, port, {
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": f"http://127.0.0.1:{port}",
            "GOOGLE_APPLICATION_CREDENTIALS": str(account)}):
        yield


@contextmanager
def _serving(program: str, words: Sequence[str], port: int, environment: Mapping[str, str]) -> Iterator[None]:
    """Runs a server that keeps objects in memory, and sets this process's environment for its clients meanwhile."""
    if not (PROGRAMS / program).exists():
        pytest.skip(f"there is no {program}: scripts/object-store makes one")
    process = subprocess.Popen([PROGRAMS / program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setitem(os.environ, name, value)
        try:
            _wait(process, port)
            yield
        finally:
            process.kill()
            process.wait(60)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + READY_S
    while True:
        assert process.poll() is None, "the object store ended"
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            assert time.monotonic() < until, "the object store does not listen"
            time.sleep(0.1)
        else:
            return


def _private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                             serialization.NoEncryption()).decode()
