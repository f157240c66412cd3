"""Another server may stand where an environment server should, and answer without end or with what inflates."""

import gzip
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from deploy.launch.checks import servers
from deploy.members.env_server import answers
from deploy.runs import live_status
from deploy.runs.configs import load_config
from deploy.runs.live_status import scrape
from services.errors import Unanswered

MIB = 1 << 20
ALL_MIB = 100
"""The end that the test gives to it, in MiB."""


class Endless(BaseHTTPRequestHandler):
    """Answers each GET with as much as is taken, or with a small body that inflates to as much."""

    def do_GET(self) -> None:
        self.send_response(200)
        if self.server.inflates:
            body = gzip.compress(b"x" * (ALL_MIB * MIB), compresslevel=1)
            self.send_header("content-encoding", "gzip")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.end_headers()
        try:
            for _ in range(ALL_MIB):
                self.wfile.write(b"x" * MIB)
                self.server.sent += 1
        except OSError:  # the client has gone
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(params=[False, True], ids=["endless", "inflates"])
def server(request: pytest.FixtureRequest) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as made:
        made.sent, made.inflates = 0, request.param
        Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield made
        made.shutdown()


def versions(url: str) -> object:
    with pytest.raises(Unanswered, match=r"does not say what it plays \((Unbounded|TooLarge): its answer "):
        servers.check_versions([url], env="toy", engine="corridor 1")


def health(url: str) -> object:
    config = load_config("alfworld-tiny", [f"env.urls=[{url}]", "supervision.reach_seconds=0"])
    with pytest.raises(Unanswered, match=r"no environment server answers at .* \((Unbounded|TooLarge): its answer "):
        servers.check_servers(config, None, str)


@pytest.mark.attack
@pytest.mark.parametrize(("ask", "found"), [
    (versions, None), (health, None), (lambda url: answers(f"{url}/healthz"), False),
    (partial(scrape, seconds=5.0), {}), (lambda url: live_status._get(f"{url}/metrics"), (None, b""))],
    ids=["versions", "health", "start", "metrics", "status"])
def test_no_answer_fills_the_drivers_memory(server: ThreadingHTTPServer, ask: Callable[[str], object], found: object):
    assert ask(f"http://127.0.0.1:{server.server_port}") == found
    assert server.sent < ALL_MIB
