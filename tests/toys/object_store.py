"""A real S3 server with one bucket, and the environment in which its clients find it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVER = Path(__file__).parents[2] / ".cache" / "object-store" / "bin" / "moto_server"
BUCKET = "s3://gagpo"
READY_S = 120.0


class ObjectStore:
    """The server as a child process. It keeps objects in memory, so `stop` loses them."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_DEFAULT_REGION": "us-east-1",
                            "AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
        self._process = subprocess.Popen([SERVER, "-H", "127.0.0.1", "-p", str(self.port)],
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        """Waits until the server listens."""
        until = time.monotonic() + READY_S
        while True:
            assert self._process.poll() is None, "the object store ended"
            try:
                socket.create_connection(("127.0.0.1", self.port), 5).close()
            except OSError:
                assert time.monotonic() < until, "the object store does not listen"
                time.sleep(0.1)
            else:
                return

    def make_bucket(self) -> None:
        """Makes the bucket by the client that the product uses."""
        from pyarrow import fs

        client, path = fs.FileSystem.from_uri(f"{BUCKET}?allow_bucket_creation=true")
        client.create_dir(path)

    def stop(self) -> None:
        """Ends the server."""
        self._process.kill()
        self._process.wait(30)


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Yields a server with an empty bucket. Sets this process's environment for its clients, and restores it."""
    if not SERVER.exists():
        pytest.skip("there is no object store: scripts/object-store makes one")
    store = ObjectStore()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setitem(os.environ, name, value)
        try:
            store.wait()
            store.make_bucket()
            yield store
        finally:
            store.stop()
