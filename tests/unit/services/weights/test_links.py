"""The links between learner and samplers. How they carry a version: tests/unit/rollout/transfer/test_inbox.py."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch._C._distributed_c10d import HashStore, PrefixStore

from services.weights import links
from services.weights.links import Link, RoundEnd


def test_a_receiver_that_dies_while_all_connect_ends_the_round_once_it_is_missed():
    """It has said that it is there, and takes no part in what comes then. NCCL would wait for it for ever."""
    store, started = HashStore(), time.monotonic()
    PrefixStore("0/here", store).set("1", "here")
    end = RoundEnd(30.0, lost=lambda: "two: it is gone" if time.monotonic() - started > 2 else "")
    end.meets(store, "version")
    with pytest.raises(RuntimeError, match=r"^two: it is gone$"):
        Link(store, "0", rank=0, world=2, device=torch.device("cpu"), end=end)
    assert store.get("end/version") == b"two: it is gone"


def test_members_find_nothing_in_the_keys_of_their_group_but_what_it_wrote(monkeypatch):
    """NCCL's first member writes the name of its communicator to the key "0", and the others wait for that key. They
    found the mark of an arrived member there, and no link of NCCL could be made."""
    def connected(store, rank, *_):
        if rank:
            return store.get("0")
        time.sleep(0.2)  # it makes the name only now
        store.set("0", "a name")
        return b"a name"

    monkeypatch.setattr(links, "_connected", connected)
    store, cpu = HashStore(), torch.device("cpu")
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(Link, store, "0", rank=rank, world=2, device=cpu, end=RoundEnd(60.0)) for rank in range(2)]
        assert [link.result()._group for link in made] == [b"a name"] * 2


def test_a_link_that_another_member_closed_names_the_end_that_was_told(monkeypatch):
    """Whoever hears of an early end closes its link at once; gloo tells the other side of a lost connection alone."""
    store, cpu = HashStore(), torch.device("cpu")
    ends = [RoundEnd(60.0) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(Link, store, "0", rank=rank, world=2, device=cpu, end=ends[rank]) for rank in range(2)]
        sender, receiver = (link.result() for link in made)
    monkeypatch.setattr(links, "ASK_EVERY_S", 3600.0)  # so that the sender hears of it by its link alone
    ends[0].meets(store, "1.5")
    ends[1].meets(store, "1.5")
    ends[1].tell("worker two is gone")
    receiver.close()
    with pytest.raises(RuntimeError, match=r"^worker two is gone$"):
        sender.send(torch.zeros(1 << 24, dtype=torch.uint8), ends[0])
    sender.close()


class Nccl:
    """Stands for torch's group of NCCL, which CPU builds lack. It keeps the variables that torch reads in it."""

    Options = SimpleNamespace
    read: ClassVar[list[dict[str, str]]] = []

    def __init__(self, *_):
        time.sleep(0.1)  # long enough for another link to be made meanwhile
        self.read.append(variables())

    def broadcast(self, *_):
        return SimpleNamespace(wait=lambda: None)


def variables():
    return {name: value for name, value in os.environ.items() if name.startswith("TORCH_NCCL_")}


@pytest.mark.parametrize("given", [{}, {"TORCH_NCCL_BLOCKING_WAIT": "0", "TORCH_NCCL_NAN_CHECK": "1"}])
def test_links_of_nccl_have_no_watchdog_that_ends_the_process_and_other_groups_keep_theirs(given, monkeypatch):
    """Between nodes NCCL reports a dead member. torch's watchdog then ended each rank of the learner."""
    for name in variables():
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Nccl, "read", [])
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    arguments = HashStore(), 0, 1, torch.device("cuda", 0), timedelta(seconds=1)
    with ThreadPoolExecutor(3) as pool:
        for made in [pool.submit(links._connected, *arguments) for _ in range(3)]:
            made.result()
    assert Nccl.read == [{**given, "TORCH_NCCL_BLOCKING_WAIT": "1"}] * 3
    assert variables() == given
