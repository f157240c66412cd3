"""The learner's ranks find each other on nodes whose hostname resolves to 127.0.0.1 and which share only a network."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.toys.nodes import nodes, why_not

pytestmark = [pytest.mark.long, pytest.mark.timeout(600),
              pytest.mark.skipif(bool(why_not()), reason=why_not() or "namespaces")]

RANK = """
import socket, sys
from pathlib import Path
from learner.rank_group import RankGroup
from services.process.rendezvous import Rendezvous

address, rank, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
assert socket.gethostbyname(socket.gethostname()) == "127.0.0.1"
meeting = Rendezvous(address, rank, 2)
if rank == 0:
    print(meeting.offer(), flush=True)
where = sys.stdin.readline().strip()
rank_group = RankGroup(rank, 2, meeting.join(where, 240.0), collective_s=240.0)
print(rank_group.all_reduce([1.0 + rank]), flush=True)
rank_group.leave()
"""


def test_they_meet_at_the_address_of_the_node_and_not_at_that_of_its_hostname(tmp_path: Path):
    with nodes(2) as (first, second):
        ranks = [
            subprocess.Popen([*node.enter, sys.executable, "-c", RANK, node.address, str(rank), str(tmp_path)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank, node in enumerate((first, second))]
        try:
            where = ranks[0].stdout.readline()
            assert where.startswith(f"{first.address}:"), ranks[0].communicate(timeout=60)[1]
            for rank in ranks:
                rank.stdin.write(where)
                rank.stdin.flush()
            deadline = time.monotonic() + 300
            while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
                time.sleep(0.1)
            for rank in ranks:
                rank.kill()  # one that waits for the other; what both said tells why
            said = [rank.communicate(timeout=60) for rank in ranks]
            assert [out for out, _ in said] == ["[3.0]\n", "[3.0]\n"], said
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait(60)
