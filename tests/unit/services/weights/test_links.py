"""The links between learner and samplers. How they carry a version: tests/unit/rollout/test_inbox.py."""

import time

import pytest
import torch
from torch._C._distributed_c10d import HashStore, PrefixStore

from services.weights.links import Link, RoundEnd


def test_a_receiver_that_dies_while_all_connect_ends_the_round_once_it_is_missed():
    """It has said that it is there, and takes no part in what comes then. NCCL would wait for it for ever."""
    store, started = HashStore(), time.monotonic()
    PrefixStore("0", store).set("1", "here")
    end = RoundEnd(30.0, lost=lambda: "two: it is gone" if time.monotonic() - started > 2 else "")
    end.meets(store, "version")
    with pytest.raises(RuntimeError, match=r"^two: it is gone$"):
        Link(store, "0", rank=0, world=2, device=torch.device("cpu"), end=end)
    assert store.get("end/version") == b"two: it is gone"
