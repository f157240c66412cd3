"""The fan-out of weights with few fetchers and two small nodes."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]

SMALL = """
import json
from lab.bench import fanout
fanout.FETCHERS, fanout.FETCHES, fanout.NODES, fanout.ROUNDS = (1, 4), 8, (1, 2), 2
fanout.SIZE = 10 << 20  # Ray takes no object store below 75 MiB
told = []
figures = fanout.run(lambda *what: told.append(what))
print(json.dumps([told, {figure.name: figure.value for figure in figures}]))
"""


def test_every_fetcher_and_every_node_gets_the_version():
    """A fetch that brings fewer bytes than were published ends the bench.

    It has a process of its own: Ray keeps whether it asks for a token from the first cluster that a process sees.
    """
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr
    told, figures = json.loads(done.stdout.splitlines()[-1])
    assert told == [["1 fetchers", 0, 4], ["4 fetchers", 1, 4], ["starting 2 nodes", 2, 4], ["1 nodes", 2, 4],
                    ["2 nodes", 3, 4]]
    for name in ("1 fetcher of one node", "4 fetchers of one node"):
        assert figures[f"{name}: fetches"] > 0
    for name in ("1 node", "2 nodes"):
        assert figures[f"{name}: copies, all together"] > 0
