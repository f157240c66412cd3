"""The Ray actor of an environment server: it runs one `gagpo serve-env` on the node where Ray has placed it."""

from __future__ import annotations

import time
from pathlib import Path

import ray

from deploy.members.env_server import POLL_S, EnvServer
from services.errors import EnvFault
from services.process.addresses import held_port
from services.telemetry.logs import life_of


class ServerHost:
    """ServerActor without Ray's decorator. The server ends with this process."""

    def __init__(self, index: int, config_file: str, folder: str, token: str | None,
                 start_s: float) -> None:
        self._node = ray.util.get_node_ip_address()
        self._folder, self._start_s = Path(folder), start_s
        self._name = f"environment-host-{index}"
        self._server = EnvServer(index, held_port(self._node), Path(config_file), self._folder, token,
                                 host=self._node)

    def open(self) -> str:
        """Starts the server. Returns its URL once it answers."""
        with life_of(self._name, self._folder, node=self._node):
            self._server.start()
            self._server.wait(self._start_s)
        return self._server.url

    def run(self) -> None:
        """Waits until the server ends. Then raises EnvFault with the server's last line."""
        with life_of(self._name, self._folder, node=self._node):
            while (end := self._server.poll()) is None:
                time.sleep(POLL_S)
        raise EnvFault(f"{self._server.name} ended: {end.reason}")


ServerActor = ray.remote(max_restarts=0)(ServerHost)
