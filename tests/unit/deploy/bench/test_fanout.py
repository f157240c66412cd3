"""The fan-out of weights with few fetchers and two small nodes."""

import pytest

from deploy.bench import fanout

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]


def test_every_fetcher_and_every_node_gets_the_version(monkeypatch):
    """A fetch that brings fewer bytes than were published ends the bench."""
    monkeypatch.setattr(fanout, "FETCHERS", (1, 4))
    monkeypatch.setattr(fanout, "FETCHES", 8)
    monkeypatch.setattr(fanout, "NODES", (1, 2))
    monkeypatch.setattr(fanout, "SIZE", 10 << 20)  # Ray takes no object store below 75 MiB
    monkeypatch.setattr(fanout, "ROUNDS", 2)
    told = []
    figures = {figure.name: figure for figure in fanout.run(lambda *what: told.append(what))}
    assert told == [("1 fetchers", 0, 4), ("4 fetchers", 1, 4), ("starting 2 nodes", 2, 4), ("1 nodes", 2, 4),
                    ("2 nodes", 3, 4)]
    for name in ("1 fetcher of one node", "4 fetchers of one node"):
        assert figures[f"{name}: fetches"].value > 0
    for name in ("1 node", "2 nodes"):
        assert figures[f"{name}: copies, all together"].value > 0
    assert len(figures) == 2 * 2 + 2 * 3
