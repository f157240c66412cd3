"""Host memory that a driver locks: no two ranges share a page, and no range stays locked behind its last tensor."""

import gc

import pytest
import torch

from learner.model import host_memory
from learner.model.host_memory import SHARED, pinned

PAGE = 4096
GPU = torch.device("cuda", 0)


class Driver:
    """Locks whole pages, as CUDA does, and refuses a page that is locked."""

    def __init__(self):
        self.locked = {}

    def register(self, pointer, size):
        pages = set(range(pointer // PAGE, -(-(pointer + size) // PAGE)))
        if any(pages & others for others in self.locked.values()):
            raise RuntimeError("Registering memory failed with cudaError: 712.")
        self.locked[pointer] = pages

    def unregister(self, pointer):
        del self.locked[pointer]

    def covers(self, tensor):
        """Whether all of the tensor's pages are locked."""
        first, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()
        return any(set(range(first // PAGE, -(-end // PAGE))) <= pages for pages in self.locked.values())


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(host_memory, "_open", {})
    monkeypatch.setattr(host_memory, "pin_memory", made.register)
    monkeypatch.setattr(host_memory, "unpin_memory", made.unregister)
    return made


def states(count=340):
    """As AdamW has them: of each parameter two moments, and a step of four bytes. One matrix is large."""
    shapes = [(), (64,), (300, 7), (SHARED // 4 + 3,)] + [()] * count
    return [torch.full(shape, float(n)) for n, shape in enumerate(shapes)]


def test_no_two_locked_ranges_share_a_page(driver):
    hosts = [pinned(state, GPU).copy_(state) for state in states()]
    assert len(driver.locked) == 2, "one of the large matrix, one that all others share"
    assert all(map(driver.covers, hosts))
    for host, state in zip(hosts, states(), strict=True):
        assert torch.equal(host, state)


def test_small_tensors_of_any_number_have_room(driver):
    hosts = [pinned(torch.empty(SHARED // 2 - 100, dtype=torch.uint8), GPU).fill_(n) for n in range(5)]
    assert len(driver.locked) == 3
    assert [int(host.min()) for host in hosts] == [int(host.max()) for host in hosts] == [0, 1, 2, 3, 4]


def test_pages_are_unlocked_with_their_last_tensor(driver):
    large, first, second = (pinned(torch.empty(size, dtype=torch.uint8), GPU) for size in (SHARED, 4, 4))
    del large
    gc.collect()
    assert len(driver.locked) == 1
    host_memory._open.clear()  # as if it were full
    del first
    gc.collect()
    assert driver.covers(second)
    del second
    gc.collect()
    assert driver.locked == {}


def test_host_memory_of_a_cpu_is_not_locked(driver):
    host = pinned(torch.ones(3, dtype=torch.int16), torch.device("cpu"))
    assert (host.shape, host.dtype, driver.locked) == ((3,), torch.int16, {})


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64])
def test_tensors_of_all_formats_lie_side_by_side(driver, dtype):
    hosts = [pinned(torch.ones(shape, dtype=kind), GPU).fill_(1)
             for shape in ((3,), (), (0, 2)) for kind in (torch.uint8, dtype)]
    assert [host.dtype for host in hosts] == [torch.uint8, dtype] * 3
    assert all(bool((host == 1).all()) for host in hosts)
