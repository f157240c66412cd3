"""Looks for secrets that other users or later readers could see: in command lines, environments and files."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

PERIOD_S = 0.2
CHUNK = 1 << 20


class Watch(threading.Thread):
    """Samples the command lines of all processes, and the environments of those below `root`, until end().

    `found` names each secret that was seen, and the process that showed it.
    """

    def __init__(self, root: int, secrets: Mapping[str, str]) -> None:
        super().__init__(daemon=True)
        self._root, self._secrets = psutil.Process(root), secrets
        self._done = threading.Event()
        self.samples = 0
        self.found: set[str] = set()

    def run(self) -> None:
        while not self._done.wait(PERIOD_S):
            below = {process.pid for process in self._root.children(recursive=True)}
            for process in Path("/proc").glob("[0-9]*"):
                names = ("cmdline", "environ") if int(process.name) in below else ("cmdline",)
                for name in names:
                    try:
                        data = (process / name).read_bytes()
                    except OSError:  # it has just ended
                        continue
                    self.samples += 1
                    self.found.update(f"{secret} in the {name} of {process.name}: {data[:200]!r}"
                                      for secret, text in self._secrets.items() if text.encode() in data)

    def end(self) -> None:
        """Returns when the last sample is taken."""
        self._done.set()
        self.join(10)


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
