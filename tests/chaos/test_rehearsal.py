"""The short form of `scripts/rehearsal`: a cluster of three nodes that grows, shrinks and loses a node under a run."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.toys.site import cannot, remains

pytestmark = [pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(3600)]

SCRIPT = Path(__file__).parents[2] / "scripts" / "rehearsal"
DEADLINE_S = 3400.0


def test_a_run_follows_its_cluster_loses_nothing_with_a_node_and_leaves_nothing_behind():
    if reason := cannot():
        pytest.skip(reason)
    with subprocess.Popen([SCRIPT, "--short"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said = process.communicate(timeout=DEADLINE_S)[0]
        finally:
            process.terminate()
            process.wait(120)
    assert process.returncode == 0, said
    assert re.search(r"clean: no group was lost or trained twice", said), said
    assert remains(process.pid) == []
