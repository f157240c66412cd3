import errno
import os
import socket
import subprocess
import sys

import pytest
from ports import needs_ipv6

from services.http.server import listen, reserve
from services.process.addresses import (
    held_port,
    host_port,
    is_every_address,
    is_local,
    likely_port,
    servers_behind,
)


@pytest.mark.parametrize(("host", "local"), [
    ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True),
    ("0.0.0.0", False), ("::", False), ("10.0.0.5", False), ("", False), ("localhost.example.org", False),
    ("127.0.0.1.example.org", False),
])
def test_only_loopback_addresses_are_this_machine_s_alone(host: str, local: bool):
    assert is_local(host) == local


@pytest.mark.parametrize(("host", "every"), [("0.0.0.0", True), ("::", True), ("127.0.0.1", False), ("10.0.0.5", False),
                                             ("localhost", False)])
def test_only_the_empty_addresses_stand_for_all_of_a_machine(host: str, every: bool):
    assert is_every_address(host) == every


def test_brackets_keep_an_address_of_ipv6_and_a_port_apart():
    assert [host_port(host, 80) for host in ("::1", "127.0.0.1", "localhost")] == ["[::1]:80", "127.0.0.1:80",
                                                                                  "localhost:80"]


def gets(port: int, *options: int) -> bool:
    """Returns whether a stranger's socket with these options gets the port."""
    with socket.socket() as stranger:
        for option in options:
            stranger.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            stranger.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True


AS_ANOTHER_USER = """
import os, socket, sys
os.setuid(65534)
with socket.socket() as stranger:
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        stranger.setsockopt(socket.SOL_SOCKET, option, 1)
    stranger.bind(("127.0.0.1", int(sys.argv[1])))
"""


def another_user_gets(port: int) -> bool:
    """Returns whether a program of another user gets the port with both options. Only root can start one."""
    if os.getuid():
        return False
    done = subprocess.run([sys.executable, "-S", "-c", AS_ANOTHER_USER, str(port)], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0 or "Address already in use" in done.stderr, done.stderr
    return done.returncode == 0


@pytest.mark.attack
def test_a_held_port_is_for_servers_of_this_user_alone_also_while_none_listens():
    port = held_port()
    for _ in range(2):  # also for a server that starts again
        assert not gets(port)
        assert not gets(port, socket.SO_REUSEADDR)
        assert not another_user_gets(port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        with reserve("127.0.0.1", port, held=True) as server:
            listen(server)
            socket.create_connection(("127.0.0.1", port), 5).close()
            assert not gets(port, socket.SO_REUSEADDR)
            assert not another_user_gets(port)


def test_held_ports_differ():
    ports = [held_port() for _ in range(50)]
    assert len(set(ports)) == 50


def test_a_likely_port_is_for_a_server_that_reuses_an_address():
    port = likely_port()
    assert not gets(port)
    with socket.create_server(("127.0.0.1", port)):  # which sets SO_REUSEADDR
        socket.create_connection(("127.0.0.1", port), 5).close()


@needs_ipv6
def test_a_port_of_an_address_of_ipv6_is_held_too():
    port = held_port("::1")
    with reserve("::1", port, held=True) as server:
        listen(server)
        socket.create_connection(("::1", port), 5).close()


V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(("url", "answers", "servers"), [
    ("http://env:8100", [(V4, "10.0.0.2"), (V4, "10.0.0.1")], ("http://10.0.0.1:8100", "http://10.0.0.2:8100")),
    ("http://env", [(V4, "10.0.0.2"), (V4, "10.0.0.1")], ("http://10.0.0.1:80", "http://10.0.0.2:80")),
    ("http://env:1/a", [(V6, "fd00::1"), (V6, "fd00::2")], ("http://[fd00::1]:1/a", "http://[fd00::2]:1/a")),
    ("http://localhost:1", [(V6, "::1"), (V4, "127.0.0.1")], ("http://127.0.0.1:1",)),
    ("http://env:8100", [(V4, "10.0.0.2"), (V4, "10.0.0.2")], ("http://10.0.0.2:8100",)),
    ("https://env:8100", [(V4, "10.0.0.2"), (V4, "10.0.0.1")], ("https://env:8100",)),
])
def test_a_name_stands_for_the_servers_at_its_addresses(monkeypatch, url, answers, servers):
    asked = [(family, socket.SOCK_STREAM, 6, "", (address, 0)) for family, address in answers]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: asked)
    assert servers_behind(url) == servers


def test_this_machine_has_one_server_at_an_address():
    assert servers_behind("http://127.0.0.1:8100") == ("http://127.0.0.1:8100",)
    assert servers_behind("http://localhost:8100") == ("http://127.0.0.1:8100",)


def test_a_server_keeps_its_url_when_a_second_one_joins_it(monkeypatch):
    hosts = ["10.0.0.1"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(V4, socket.SOCK_STREAM, 6, "", (host, 0))
                                                                 for host in hosts])
    (first,) = servers_behind("http://env:8100")
    hosts.append("10.0.0.2")
    assert first in servers_behind("http://env:8100")
