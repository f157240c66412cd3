"""An answer is read within its bounds of bytes and of time."""

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest

from services.http.bounded import Unbounded, get


class Dripping(BaseHTTPRequestHandler):
    """Sends a byte each tenth of a second, ten in all, and names what was asked for in a header. For /headers it is a
    header that comes in such bytes, a hundred in all."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("x-asked", f"{self.headers['accept-encoding']} {self.headers['authorization']}")
        try:
            if self.path == "/headers":
                self.flush_headers()
                self._drip(b"x-long: " + b"x" * 92)
            self.end_headers()
            self._drip(b"x" * 10)
        except OSError:  # the client has gone
            self.close_connection = True

    def _drip(self, text: bytes) -> None:
        for byte in text:
            self.wfile.write(bytes([byte]))
            time.sleep(0.1)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Dripping) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_whole_answer_has_its_status_its_headers_and_its_body(url: str):
    reply = get(url, seconds=60, headers={"authorization": "Bearer word"})
    assert (reply.status_code, reply.content, reply.headers["x-asked"]) == (404, b"x" * 10, "identity Bearer word")
    with pytest.raises(httpx.HTTPStatusError):
        reply.raise_for_status()


async def test_an_answer_is_read_where_an_event_loop_runs_already(url: str):
    """As in a notebook, in which a run with `env.urls` could not be started."""
    assert get(url, seconds=60).content == b"x" * 10


@pytest.mark.attack
def test_an_answer_beyond_its_bytes_or_its_time_is_refused(url: str):
    with pytest.raises(Unbounded, match=r"^its answer has more than"):
        get(url, seconds=60, most=9)
    for path in ("", "/headers"):
        with pytest.raises(httpx.ReadTimeout, match=r"no complete answer within 0\.3 s"):
            get(f"{url}{path}", seconds=0.3)
