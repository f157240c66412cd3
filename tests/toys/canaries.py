"""Looks for secrets in all that other users or later readers could see: command lines, environments, files.

It also knows where the secrets of a private run are, and what an intruder would put into a run's folder.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from processes import name_of, words_of

from services.store.redis_server import url_served_from

PERIOD_S = 0.2
LISTENERS_EVERY = 10
"""Samples of command lines for each look at what listens, which costs more."""
CHUNK = 1 << 20


class Watch(threading.Thread):
    """Samples the command lines of all processes, and the environments of those below `root`, until end().

    `found` names each secret that was seen, and the process that showed it; `names` are those of the processes below
    `root` that were looked at; `listening` has the addresses on which these accept TCP connections. The process
    `holder` may have a secret in its environment.
    """

    def __init__(self, root: int, secrets: Mapping[str, str], holder: int | None = None) -> None:
        super().__init__(daemon=True)
        self._root, self._secrets, self._holder = psutil.Process(root), secrets, holder
        self._done = threading.Event()
        self._round = 0
        self.names: set[str] = set()
        self.listening: set[str] = set()
        self.found: set[str] = set()

    def run(self) -> None:
        while not self._done.is_set():
            try:
                children = self._root.children(recursive=True)
            except psutil.NoSuchProcess:  # it has ended, and all that it started
                return
            if self._round % LISTENERS_EVERY == 0:
                self.listening |= listening([self._root, *children])
            self._round += 1
            below = {process.pid for process in children} - {self._holder}
            for process in Path("/proc").glob("[0-9]*"):
                names = ("cmdline", "environ") if int(process.name) in below else ("cmdline",)
                for name in names:
                    try:
                        data = (process / name).read_bytes()
                    except OSError:  # it has just ended
                        continue
                    self.found.update(f"{secret} in the {name} of {process.name}: {data[:200]!r}"
                                      for secret, text in self._secrets.items() if text.encode() in data)
            self.names |= set(filter(None, map(name_of, children)))
            self._done.wait(PERIOD_S)

    def end(self) -> None:
        """Returns when the last sample is taken."""
        self._done.set()
        self.join(60)


def listening(processes: Iterable[psutil.Process]) -> set[str]:
    """The addresses on which these processes accept TCP connections."""
    found: set[str] = set()
    for process in processes:
        try:
            found |= {connection.laddr.ip for connection in process.net_connections("tcp")
                      if connection.status == psutil.CONN_LISTEN}
        except psutil.NoSuchProcess:  # it has just ended
            continue
    return {address.removeprefix("::ffff:") for address in found}


def private_secrets(root: int, folder: Path) -> tuple[dict[str, str], int] | None:
    """The secrets that a private run has made for itself, and its environment server's process; None before they are.

    They are read where only its owner can: in files of mode 0600 and in the environments of its processes.
    """
    below = psutil.Process(root).children(recursive=True)
    server = next((process for process in below if "serve-env" in words_of(process)), None)
    raylet = next((process for process in below if name_of(process) == "raylet"), None)
    url = url_served_from(folder / "redis")
    if server is None or raylet is None or url is None:
        return None
    return {"the password of Redis": str(urlsplit(url).password), "the token": server.environ()["GAGPO_ENV_TOKEN"],
            "Ray's token": Path(raylet.environ()["RAY_AUTH_TOKEN_PATH"]).read_text()}, server.pid


class _Touch:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


def plant_pickles(run: Path, mark: Path) -> int:
    """Puts pickles that would make the file `mark` where PyTorch looks for them in a run. Returns how many.

    The digests of the checkpoints are made to fit, as an intruder with write access would do.
    """
    data, count = pickle.dumps(_Touch(mark)), 0
    names = (".metadata", "__0_0.distcp", "data.pkl", "hf/pytorch_model.bin", "hf/training_args.bin")
    for meta in run.glob("checkpoints/step-*/meta.json"):
        told = json.loads(meta.read_text())
        for name in names:
            (meta.parent / name).write_bytes(data)
            told["files"][name] = {"bytes": len(data), "blake2b": hashlib.blake2b(data, digest_size=16).hexdigest()}
            count += 1
        meta.write_text(json.dumps(told))
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (run / "model-cold-start" / name).write_bytes(data)
        count += 1
    return count


def files_with(secrets: Mapping[str, str], folders: Iterable[Path]) -> tuple[set[str], int]:
    """Returns `secret in file` for each plain file below the folders that holds one, and how many files were read."""
    found, count = set(), 0
    for file in (file for folder in folders for file in folder.rglob("*") if file.is_file() and not file.is_symlink()):
        count += 1
        tail = b""
        with file.open("rb") as read:
            while data := read.read(CHUNK):
                found.update(f"{name} in {file}" for name, text in secrets.items() if text.encode() in tail + data)
                tail = data[-200:]
    return found, count
