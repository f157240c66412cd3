"""A collection frees what it should also where another thread is in the middle of one."""

import gc
import threading
import weakref

from learner.selftest.scene import collect_garbage


class Ring:
    """Refers to itself, so only a collection frees it."""

    def __init__(self) -> None:
        self.own = self


class Slow(Ring):
    """Its finalizer lets others run, and waits: its thread's collection lasts as long."""

    def __init__(self, begun: threading.Event, ends: threading.Event) -> None:
        super().__init__()
        self.begun, self.ends = begun, ends

    def __del__(self) -> None:
        self.begun.set()
        self.ends.wait(60)


def collect_slowly(begun: threading.Event, ends: threading.Event) -> None:
    Slow(begun, ends)
    gc.collect()


def test_it_waits_for_the_collection_of_another_thread():
    begun, ends = threading.Event(), threading.Event()
    other = threading.Thread(target=collect_slowly, args=(begun, ends))
    other.start()
    assert begun.wait(60)
    gone = weakref.ref(Ring())
    assert gc.collect() == 0  # does nothing now
    assert gone() is not None
    threading.Timer(0.1, ends.set).start()
    collect_garbage()
    assert gone() is None
    other.join()


def test_it_leaves_nothing_behind():
    before = list(gc.callbacks)
    gone = weakref.ref(Ring())
    collect_garbage()
    assert gone() is None
    assert gc.callbacks == before
