"""Where a rank group meets: nobody else on the machine or outside its network can join."""

import os
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from ports import needs_ipv6

from services.process.addresses import interface_of
from services.process.rendezvous import Rendezvous

OUTSIDE = next((one.address for name, addresses in psutil.net_if_addrs().items() for one in addresses
                if one.family == socket.AF_INET and name != "lo"), None)


def meet(where: str, ranks: list[Rendezvous]):
    with ThreadPoolExecutor(len(ranks)) as pool:
        stores = list(pool.map(lambda rank: rank.join(where, 10.0), ranks))
    stores[0].set("from", "rank 0")
    assert stores[1].get("from") == b"rank 0"
    return stores


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.attack
def test_a_rank_group_on_one_machine_meets_in_a_file_of_its_user():
    ranks = [Rendezvous("127.0.0.1", rank, 2) for rank in range(2)]
    where = ranks[0].offer()
    folder = Path(where).parent.stat()
    assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (os.getuid(), 0o500)
    meet(where, ranks)


RANK_0 = """
import sys
from services.process.rendezvous import Rendezvous
meeting = Rendezvous("127.0.0.1", 0, 2)
print(where := meeting.offer(), flush=True)
meeting.join(where, 10.0).set("from", "rank 0")
sys.stdin.read()
"""


def test_a_rank_0_that_is_killed_leaves_no_file(tmp_path):
    with subprocess.Popen([sys.executable, "-c", RANK_0], env=os.environ | {"TMPDIR": str(tmp_path)},
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank_0:
        where = rank_0.stdout.readline().strip()
        store = Rendezvous("127.0.0.1", 1, 2).join(where, 10.0)
        assert store.get("from") == b"rank 0"
        rank_0.kill()
    assert not Path(where).exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.attack
@pytest.mark.skipif(OUTSIDE is None, reason="this machine has only a loopback address")
def test_a_rank_group_on_several_machines_listens_on_the_address_of_its_node_alone():
    ranks = [Rendezvous(OUTSIDE, rank, 2) for rank in range(2)]
    where = ranks[0].offer()
    host, _, port = where.rpartition(":")
    stores = meet(where, ranks)
    assert host == OUTSIDE
    listening = [one.laddr.ip for one in psutil.Process().net_connections("tcp")
                 if one.laddr.port == int(port) and one.status == psutil.CONN_LISTEN]
    assert listening == [OUTSIDE]
    del stores


@needs_ipv6
def test_a_rank_group_on_several_machines_meets_at_an_address_of_ipv6():
    ranks = [Rendezvous("::", rank, 2) for rank in range(2)]  # ::1 would meet in a file
    where = ranks[0].offer()
    assert where.startswith("[::]:")
    meet(where, ranks)


def test_a_rank_group_of_one_listens_nowhere():
    alone = Rendezvous("127.0.0.1", 0, 1)
    assert alone.offer() == ""
    assert alone.join("", 10.0) is not None


def test_an_address_is_found_on_its_interface():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None
