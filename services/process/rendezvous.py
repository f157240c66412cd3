"""The meeting point of the learner's rank group, as a text that rank 0 makes and all ranks join.

torch's TCP store does not authenticate clients. So ranks on one machine meet in a file of this user. Ranks on several
machines meet at the address by which Ray knows the node of rank 0, and at no other address of that node. Anyone who can
reach that address can still write to the store, so it must stay inside the cluster's network, like Ray's own ports.
Imports nothing heavy until a rank joins.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

from services.process.addresses import family_of, host_port, interface_of, is_local


class Rendezvous:
    """One rank's way to the other ranks. `address`: address of this rank's node."""

    def __init__(self, address: str, rank: int, world: int) -> None:
        self._address, self._rank, self._world = address, rank, world
        self._listener: socket.socket | None = None

    def offer(self) -> str:
        """Returns the meeting point: a file's path if all ranks are on this machine, else `host:port`; "" for one rank.

        Called on rank 0. The file is there as long as this process.
        """
        if self._world == 1:
            return ""
        if is_local(self._address):
            # A file in memory: this user's alone, and gone with this process, however that ends. It is never closed,
            # because a late rank would write into the file that gets its number next.
            return f"/proc/{os.getpid()}/fd/{os.memfd_create('gagpo-rendezvous')}"
        self._listener = socket.create_server((self._address, 0), family=family_of(self._address))
        return host_port(self._address, self._listener.getsockname()[1])

    def join(self, where: str, timeout_s: float) -> Any:
        """Returns the torch store of all ranks. Rank 0 serves it if they are on several machines."""
        from torch._C._distributed_c10d import FileStore, HashStore, TCPStore

        use_interface(self._address)
        if self._world == 1:
            return HashStore()
        if where.startswith("/"):
            return FileStore(where, self._world)
        host, _, port = where.rpartition(":")
        return TCPStore(host.strip("[]"), int(port), self._world, is_master=self._rank == 0,
                        timeout=timedelta(seconds=timeout_s), wait_for_workers=False,
                        master_listen_fd=self._listener.detach() if self._listener else None)


def use_interface(address: str) -> None:
    """Makes gloo and NCCL use the interface that has `address`, unless the environment names others.

    Otherwise gloo takes the address of the hostname, which is 127.0.0.1 on many machines, and NCCL takes an interface
    that the other nodes may not reach.
    """
    interface = interface_of(address)
    if interface is None:
        return
    for variable, name in (("GLOO_SOCKET_IFNAME", interface), ("NCCL_SOCKET_IFNAME", f"={interface}")):
        if not os.environ.get(variable):
            os.environ[variable] = name  # NCCL treats a name without `=` as a prefix
