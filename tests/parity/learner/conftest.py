"""Tiny models; the helpers of this folder are in learner_tiny.py, which the rank processes import too."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

from learner_tiny import make_model  # noqa: E402 needs the path above

from learner.rank_group import RankGroup  # noqa: E402
from services.store.redis_server import private_redis  # noqa: E402


@pytest.fixture(params=["tied", "untied"], scope="session")
def any_model_path(request, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp(request.param), tied=request.param == "tied")


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"), tied=True)


@pytest.fixture(scope="session")
def rank_group():
    """Provides the group of one rank. A process has only one process group."""
    alone = RankGroup(0, 1)
    yield alone
    alone.leave()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    """Provides the URL of a real Redis. Runs in it have different names."""
    with private_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url
