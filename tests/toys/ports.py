"""Ports of 127.0.0.1 that a test may name before its server listens."""

import socket

_HOLDERS: list[socket.socket] = []


def held_port() -> int:
    """Returns a port that refuses connections until a server of the test takes it, and again after that has ended.

    A socket that is bound but does not listen holds it until this process ends, so the kernel gives it to nobody who
    asks for any port. A server that asks for this port gets it if it sets SO_REUSEADDR, as ours, Redis and Ray do.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _HOLDERS.append(holder)
    return holder.getsockname()[1]
