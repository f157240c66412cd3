"""The load of environment servers, as it is read for autoscaling."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest
from ports import likely_port
from waiting import wait_until

from deploy.launch.scaling import LoadMeter
from deploy.runs.live_status import scrape
from services.config.sections import SupervisionSection
from services.config.tree import Config
from services.controller.supervise import Supervisor

METRICS = "# TYPE gagpo_env_sessions gauge\ngagpo_env_sessions 3.0\n"


class Answering(BaseHTTPRequestHandler):
    """Answers each GET with the next of the server's answers: a status and a text."""

    def do_GET(self) -> None:
        status, text = self.server.answers.pop(0)
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    made = HTTPServer(("127.0.0.1", 0), Answering)
    Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def meter_of(server: HTTPServer) -> LoadMeter:
    parts = SimpleNamespace(config=Config(name="r", steps=1, autoscale={"env": (1, 2)}), supervisor=Supervisor(
        print, SupervisionSection()), urls=lambda: (f"http://127.0.0.1:{server.server_port}",))
    return LoadMeter(parts)


def test_the_reader_of_the_load_ends_with_its_read(server: HTTPServer):
    """Its thread stayed, and the end of the process waited five seconds for each server that hung."""
    server.answers = [(200, METRICS)]
    meter = meter_of(server)
    meter.look()
    wait_until(lambda: not server.answers)
    wait_until(lambda: not [thread for thread in threading.enumerate() if "environment-load" in thread.name])
    assert meter.take()[1].requests == 0


def test_a_server_that_could_not_be_read_once_has_not_refused_all_its_sessions_again(server: HTTPServer):
    """Its counter seemed to begin again, and the number of servers doubled."""
    known = (200, f'{METRICS}# TYPE gagpo_env_errors counter\ngagpo_env_errors_total{{type="full"}} 50.0\n')
    more = (200, known[1].replace("50", "52"))
    server.answers = [known, (503, "all connections are taken"), known, more]
    meter = meter_of(server)
    for left in (3, 2, 1, 0):
        meter.look()
        wait_until(lambda left=left: len(server.answers) == left and meter._reading.done())
    meter.look()
    assert meter.take()[1].refused == 2


def test_a_server_that_refuses_or_is_away_has_no_load_and_ends_no_run(server: HTTPServer):
    """A server with all connections taken answers 503 with a text, and that is when more servers are needed."""
    server.answers = [(200, METRICS), (503, "all connections are taken"), (200, "<html>a proxy of somebody</html>")]
    url, read = f"http://127.0.0.1:{server.server_port}", partial(scrape, seconds=5.0)
    assert read(url) == {"gagpo_env_sessions": [("gagpo_env_sessions", {}, 3.0)]}
    assert [read(url), read(url), read(f"http://127.0.0.1:{likely_port()}")] == [{}, {}, {}]
