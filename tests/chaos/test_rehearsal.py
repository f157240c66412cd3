"""The short form of lab/rehearsal.py: a cluster of three nodes grows, shrinks and loses a node during a run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toys.site import cannot, remains

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 3400.0


def test_a_run_follows_its_cluster_loses_nothing_with_a_node_and_leaves_nothing_behind():
    if reason := cannot():
        pytest.skip(reason)
    with subprocess.Popen([sys.executable, "-m", "lab.rehearsal", "--short"], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as process:
        try:
            said = process.communicate(timeout=DEADLINE_S)[0]
        finally:
            process.terminate()
            process.wait(120)
    assert process.returncode == 0, said
    assert re.search(r"clean: no group was lost or trained twice", said), said
    assert remains(process.pid) == []
