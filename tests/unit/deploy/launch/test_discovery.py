"""Names of environment servers that lead to other addresses while a run goes on."""

import socket
import threading

import structlog

from deploy.launch.topology import Discovery


class Names:
    """A name server. `asked` is set after the first answer that a change can be seen in."""

    def __init__(self, **addresses: list[str]) -> None:
        self.addresses = addresses
        self.asked = threading.Event()

    def resolve(self, url: str) -> list[str]:
        self.asked.set()
        if not self.addresses[url]:
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return self.addresses[url]


def test_servers_come_and_go_and_an_outage_of_the_name_server_changes_nothing():
    names = Names(a=["a1", "a2"], b=["b1"])
    found = Discovery(["a", "b"], resolve=names.resolve, every_s=3600)
    with found:
        assert found.urls() == ("a1", "a2", "b1")
        names.addresses |= {"a": ["a2", "a3", "b1"]}
        found.look()
        assert found.urls() == ("a2", "a3", "b1")
        names.addresses |= {"a": [], "b": ["b2"]}
        with structlog.testing.capture_logs() as told:
            for _ in range(3):
                found.look()
        assert found.urls() == ("a2", "a3", "b1", "b2")
        assert [line["url"] for line in told if line["log_level"] == "warning"] == ["a"], "told once, not every 5 s"


def test_it_looks_by_itself_until_the_run_ends():
    names = Names(a=["a1"])
    with Discovery(["a"], resolve=names.resolve, every_s=0.01):
        names.asked.clear()
        assert names.asked.wait(60)


def test_without_a_name_server_the_urls_are_as_given():
    with Discovery(["http://env:1"], resolve=Names(**{"http://env:1": []}).resolve, every_s=3600) as found:
        assert found.urls() == ("http://env:1",)
