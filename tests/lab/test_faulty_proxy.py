"""The proxy of lab/chaos.py makes the trouble that it names, and none when it is told to stop."""

import socket
import threading
import time

import pytest

from lab.faulty_proxy import FaultyProxy

TEXT = b"x" * 1000


@pytest.fixture
def proxy():
    """In front of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def echo(link: socket.socket) -> None:
            with link:
                while data := link.recv(65536):
                    link.sendall(data)

        def serve() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=echo, args=(link,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        proxy = FaultyProxy(listener.getsockname())
        proxy.start()
        yield proxy


def said(proxy: FaultyProxy, timeout: float = 60.0) -> bytes:
    """Sends TEXT and returns the answer up to its full length or the end of the connection."""
    found = b""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=timeout) as link:
        link.sendall(TEXT)
        while len(found) < len(TEXT) and (data := link.recv(65536)):
            found += data
    return found


def test_without_trouble_all_passes_and_again_after_it(proxy):
    assert said(proxy) == TEXT
    proxy.trouble = "reset"
    with pytest.raises(ConnectionError):
        said(proxy)
    proxy.trouble = None
    assert said(proxy) == TEXT
    assert proxy.met > 0


def test_truncated_passes_a_part_and_closes(proxy):
    proxy.trouble = "truncated"
    assert len(said(proxy)) < len(TEXT)


def test_a_half_open_connection_never_answers(proxy):
    proxy.trouble = "half-open"
    with pytest.raises(TimeoutError):
        said(proxy, 0.3)


def test_latency_delays_data_and_loses_none(proxy):
    proxy.trouble = "latency"
    began = time.monotonic()
    assert said(proxy) == TEXT
    assert time.monotonic() > began
