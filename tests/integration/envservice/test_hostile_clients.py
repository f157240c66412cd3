"""A server process with clients that never send a token keeps answering, and its memory and log do not grow."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest

pytestmark = pytest.mark.attack

Start = Callable[..., Any]
MIB = 1024**2


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def healthy(server: Any) -> bool:
    return httpx.get(f"{server.url}/healthz", trust_env=False, timeout=60).status_code == 200


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\nhost: localhost\r\nx: "])
def test_a_request_without_end_costs_no_memory(start: Start, begin: bytes):
    server = start()
    before = psutil.Process(server.process.pid).memory_info().rss
    with connect(server.port) as client, contextlib.suppress(ConnectionError):
        client.sendall(begin)
        for _ in range(80):
            client.sendall(b"a" * MIB)
    assert psutil.Process(server.process.pid).memory_info().rss - before < 16 * MIB
    assert healthy(server)


def test_a_client_that_aborts_is_not_logged(start: Start):
    server = start()
    for _ in range(20):
        client = connect(server.port)
        client.sendall(b"POST /v1/episodes:reset HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n[")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset instead of an end
        client.close()
        assert healthy(server)
    assert [line["event"] for line in server.log()] == ["started", "serving"]


def test_one_client_cannot_take_all_sessions(start: Start):
    server = start()

    def reset(address: str, count: int) -> set[str]:
        """Starts `count` episodes of a client at this address. Returns the types of problems, `ok` for results."""
        transport = httpx.HTTPTransport(local_address=address)
        with httpx.Client(base_url=server.url, transport=transport, timeout=60) as http:
            found: set[str] = set()
            for first in range(0, count, 256):
                body = [{"episode_id": f"{address}/{number}", "task": "toy/train/00"}
                        for number in range(first, min(first + 256, count))]
                reply = http.post("/v1/episodes:reset", json=body)
                elements = reply.json() if reply.status_code == 200 else [reply.json()]
                found |= {element.get("type", "ok") for element in elements}
            return found

    assert reset("127.0.0.1", 1280) == {"ok", "full"}
    assert reset("127.0.0.2", 512) == {"ok"}, "another client gets its share"
    assert reset("127.0.0.2", 600) == {"ok", "full"}, "and no more than that"


def test_a_request_that_a_web_page_can_send_is_refused(start: Start):
    server = start()
    body = b'[{"episode_id":"e","task":"toy/train/00"}]'
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as http:
        def status(**headers: str) -> int:
            return http.post("/v1/episodes:reset", content=body, headers=headers).status_code

        assert status(origin="http://evil.example") == 403
        assert status(host="evil.example") == 421
        assert http.post("/v1/episodes:reset", content=body, headers={"content-type": "text/plain"}).status_code == 415
        assert "gagpo_env_sessions 0.0" in http.get("/metrics").text
        assert status() == 200
