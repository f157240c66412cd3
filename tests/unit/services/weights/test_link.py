"""The link between senders and receivers. How it carries a version: tests/unit/rollout/weights/test_inbox.py."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch._C._distributed_c10d import HashStore, PrefixStore

from services.weights import link
from services.weights.link import Link


def link_to(store, rank: int) -> Link:
    meeting = SimpleNamespace(join=lambda where, seconds: store)
    return Link(meeting, "here", rank=rank, world=2, device=torch.device("cpu"))


def two_links(store, seconds=60.0) -> list[Link]:
    links = [link_to(store, rank) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda link: link.begin("1.5", seconds), links))
    return links


def test_a_receiver_that_dies_while_all_connect_ends_the_round_once_it_is_missed():
    """It has said that it is there, and takes no part in what comes then. NCCL would wait for it for ever."""
    store, started = HashStore(), time.monotonic()
    PrefixStore("here", store).set("1", "here")
    with pytest.raises(RuntimeError, match=r"^two: it is gone$"):
        link_to(store, 0).begin("1.5", 10.0, lambda: "two: it is gone" if time.monotonic() - started > 2 else "")
    assert store.get("end/1.5") == b"two: it is gone"


def test_members_find_nothing_in_the_keys_of_their_group_but_what_it_wrote(monkeypatch):
    """NCCL's first member writes the name of its communicator to the key "0", and the others wait for that key. They
    found the mark of an arrived member there, and no link of NCCL could be made."""
    def connected(store, rank, *_):
        if rank:
            return store.get("0")
        time.sleep(0.2)  # it makes the name only now
        store.set("0", "a name")
        return b"a name"

    monkeypatch.setattr(link, "connected_group", connected)
    assert [made._group for made in two_links(HashStore())] == [b"a name"] * 2


def test_a_link_that_another_member_closed_names_the_first_reason_of_the_end(monkeypatch):
    """Whoever hears of an early end closes its link at once; gloo reports to the others a lost connection alone."""
    sender, receiver = two_links(HashStore())
    monkeypatch.setattr(link, "ASK_EVERY_S", 3600.0)  # so that the sender hears of it by its link alone
    receiver.abort("worker two is gone")
    receiver.abort("rank 1: worker two is gone")
    receiver.close()
    with pytest.raises(RuntimeError, match=r"^worker two is gone$"):
        list(sender.buckets([1 << 24], torch.zeros(1 << 24, dtype=torch.uint8)))
    sender.close()


class Nccl:
    """Stands for torch's group of NCCL, which CPU builds lack. It keeps the variables that torch reads in it."""

    Options = SimpleNamespace
    read: ClassVar[list[dict[str, str]]] = []

    def __init__(self, *_):
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
    link.connected_group(*arguments)
    assert Nccl.read == [{**given, "TORCH_NCCL_BLOCKING_WAIT": "1"}]
    assert variables() == given
