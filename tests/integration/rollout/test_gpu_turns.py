"""Worker and learner share one GPU in turns over a real Redis. The engine is a stand-in that fills no memory."""

import asyncio
import threading

import pytest

from learner.actor import gpu_turn
from rollout.gpu_turns import GpuTurns
from services.errors import DeadlineExceeded, LeaseLost
from services.store import gpu_lease
from services.store.gpu_lease import ROLE, GpuLease
from services.store.store import Store
from services.telemetry.heartbeat import Beating, Heartbeat

ROUNDS = 3
DEADLINE_S = 240.0


class Memory:
    """The GPU's memory. It fits one side."""

    def __init__(self):
        self.full_of = None
        self.turns = []

    def fill(self, who):
        assert self.full_of is None, f"{who} finds {self.full_of} in the memory"
        self.full_of = who
        self.turns.append(who)

    def clear(self, who):
        assert self.full_of == who
        self.full_of = None


class Sampler:
    def __init__(self, memory):
        self.memory = memory
        self.woken = threading.Event()

    async def sleep(self):
        self.memory.clear("sampler")

    async def wake(self):
        self.memory.fill("sampler")
        self.woken.set()


def learner_turns(store, memory, woken):
    """Trains ROUNDS times, each after the sampler has woken up."""
    lease, heartbeat = GpuLease(store, "run-learner"), Heartbeat("learner-0", "learner")
    with Beating(heartbeat, store.state.beat):
        for _ in range(ROUNDS):
            assert woken.wait(DEADLINE_S)
            woken.clear()
            with gpu_turn([lease], heartbeat, check=lambda: None, wait_s=DEADLINE_S):
                memory.fill("learner")
                memory.clear("learner")
            heartbeat.doing("waits for groups")
            lease.send_heartbeat(heartbeat)


def test_the_two_never_fill_the_gpu_at_once(redis_url, run_name):
    store, memory, slept = Store(redis_url, run_name), Memory(), []
    sampler, turns = Sampler(memory), GpuTurns(GpuLease(store, "rollout-0"), wait_s=DEADLINE_S)
    learner = threading.Thread(target=learner_turns, args=(Store(redis_url, run_name), memory, sampler.woken),
                               daemon=True)

    async def work():
        async with asyncio.timeout(DEADLINE_S):
            await turns.take()
            await sampler.wake()
            learner.start()
            while learner.is_alive():
                await turns.turn(sampler, lambda: slept.append(1))
                await asyncio.sleep(0.01)
        await turns.give()

    asyncio.run(work())
    assert memory.turns == ["sampler", *["learner", "sampler"] * ROUNDS]
    assert len(slept) == ROUNDS


def test_the_learner_gets_the_gpu_of_a_dead_worker_and_a_worker_that_starts_waits(redis_url, run_name):
    store = Store(redis_url, run_name)
    store.leases.acquire(f"{ROLE}-0", "rollout-0", ttl_s=0.2)  # and never renews it
    turns = GpuTurns(GpuLease(store, "rollout-0"), wait_s=0.0)
    learner, heartbeat = GpuLease(store, "run-learner"), Heartbeat("learner-0", "learner")
    with (gpu_turn([learner], heartbeat, check=lambda: None, wait_s=DEADLINE_S),
          pytest.raises(DeadlineExceeded, match=r"over 0 s \(learner\.wait_s\)")):
        asyncio.run(turns.take())
    asyncio.run(GpuTurns(GpuLease(store, "rollout-0"), wait_s=DEADLINE_S).take())
    with (pytest.raises(DeadlineExceeded, match="a rollout worker kept its GPU"),
          gpu_turn([learner], heartbeat, check=lambda: None, wait_s=0.0)):
        pytest.fail("two hold it")


def test_a_worker_that_lost_the_gpu_ends(redis_url, run_name, monkeypatch):
    monkeypatch.setattr(gpu_lease, "TTL_S", 0.3)
    store = Store(redis_url, run_name)
    turns = GpuTurns(GpuLease(store, "rollout-0"), wait_s=DEADLINE_S)

    async def work():
        await turns.take()
        store.leases.acquire(f"{ROLE}-0", "rollout-0")  # the same worker, started again elsewhere
        async with asyncio.timeout(DEADLINE_S):
            while True:
                await turns.turn(Sampler(Memory()), lambda: None)
                await asyncio.sleep(0.01)

    with pytest.raises(LeaseLost, match="the lease of gpu-0 could not be renewed"):
        asyncio.run(work())


def test_the_learner_trains_once_every_sampler_that_it_shares_a_gpu_with_sleeps(redis_url, run_name):
    """Two GPUs, each with its own memory. A worker that gave its GPU waits until the learner has used both."""
    store, memories = Store(redis_url, run_name), [Memory(), Memory()]
    samplers = [Sampler(memory) for memory in memories]
    turns = [GpuTurns(GpuLease(store, f"rollout-{k}", k), wait_s=DEADLINE_S) for k in range(2)]
    leases, heartbeat = [GpuLease(store, "run-learner", k) for k in range(2)], Heartbeat("learner-0", "learner")
    trained, awake = threading.Event(), None

    def learn():
        with Beating(heartbeat, store.state.beat):
            with gpu_turn(leases, heartbeat, check=lambda: None, wait_s=DEADLINE_S):
                for memory in memories:
                    memory.fill("learner")
                    memory.clear("learner")
            heartbeat.doing("waits for groups")
            leases[0].send_heartbeat(heartbeat)
        trained.set()

    async def work(k):
        await turns[k].take()
        await samplers[k].wake()
        await awake.wait()
        if k == 0:
            learner.start()
        while not trained.is_set():
            await turns[k].turn(samplers[k], lambda: None)
            await asyncio.sleep(0.01)
        await turns[k].give()

    async def both():
        nonlocal awake
        awake = asyncio.Barrier(2)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(work(0), work(1))

    learner = threading.Thread(target=learn, daemon=True)
    asyncio.run(both())
    assert all(memory.turns == ["sampler", "learner", "sampler"] for memory in memories)


def test_a_learner_that_fails_on_its_gpu_keeps_it_until_its_process_has_ended(redis_url, run_name):
    """Its states still fill the memory. Its next process has the GPU at once."""
    store, heartbeat = Store(redis_url, run_name), Heartbeat("learner-0", "learner")
    leases = [GpuLease(store, "run-learner", k) for k in range(2)]
    with (pytest.raises(ZeroDivisionError), gpu_turn(leases, heartbeat, check=lambda: None, wait_s=DEADLINE_S)):
        raise ZeroDivisionError
    assert not any(GpuLease(store, f"rollout-{k}", k).take() for k in range(2))
    with gpu_turn([GpuLease(store, "run-learner", k) for k in range(2)], heartbeat, check=lambda: None, wait_s=0.0):
        pass
    assert all(GpuLease(store, f"rollout-{k}", k).take() for k in range(2))


def test_a_learner_that_gives_up_waiting_gives_the_gpus_that_it_has(redis_url, run_name):
    store, heartbeat = Store(redis_url, run_name), Heartbeat("learner-0", "learner")
    first, second = (GpuLease(store, f"rollout-{k}", k) for k in range(2))
    assert second.take()
    with (pytest.raises(DeadlineExceeded),
          gpu_turn([GpuLease(store, "run-learner", k) for k in range(2)], heartbeat, check=lambda: None, wait_s=0.0)):
        pytest.fail("two hold it")
    assert first.take()
