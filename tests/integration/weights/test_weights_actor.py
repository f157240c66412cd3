"""The current version stays fetchable, and the next one arrives, while the weights actor is killed. A real Ray."""

import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from processes import gone, only_child
from waiting import wait_until

from learner.weights.sender import WeightsActorClient, WeightSender
from services.errors import DeadlineExceeded
from services.records import Version
from services.weights.pack import pack_tensors

DEADLINE_S = 240.0


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    import ray

    from services.weights.actor import WeightsActor

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield WeightsActor.remote()
    ray.shutdown()


def kill(weights: object) -> None:
    """Kills the actor, and waits until its process is gone: until then it may still answer."""
    import ray

    process = only_child("ray::WeightSt")
    ray.kill(weights, no_restart=False)
    wait_until(lambda: gone(process.pid))


@pytest.mark.ray
def test_a_killed_weights_actor_is_filled_again(weights, monkeypatch):
    import ray

    monkeypatch.setattr("learner.weights.sender.ASK_S", 0.5)

    now = [0.0]
    client = WeightsActorClient(weights, seconds=DEADLINE_S, clock=lambda: now[0])
    packed = pack_tensors([("w", np.arange(4, dtype=np.float32))])
    ranks = SimpleNamespace(pack=lambda: packed)
    sender, live = WeightSender(ranks, client.publish, client.wanted), []
    version = sender.snapshot(Version(incarnation=1, step=3))

    def fetch():
        now[0] += 10.0
        sender.keep()
        return ray.get(weights.fetch.options(max_task_retries=-1).remote(version), timeout=DEADLINE_S)

    assert fetch() is None
    sender.keep()  # nothing is published yet: nothing to keep
    sender.send(version, live.append)
    assert live == [version] == [ray.get(weights.latest.remote(), timeout=DEADLINE_S)]
    kill(weights)
    deadline = time.monotonic() + DEADLINE_S
    found = None
    while found is None and time.monotonic() < deadline:
        found = fetch()
    assert found is not None
    assert ray.get(found.refs[0], timeout=DEADLINE_S).tobytes() == packed.buffer.tobytes()
    for step in range(4, 7):
        kill(weights)
        client.publish(Version(incarnation=1, step=step, digest="d"), packed)  # whether the actor is there or not
    kill(weights)
    assert client.ask("members") == [], "a transfer goes on with the new actor, which knows no member yet"
    actor = only_child("ray::WeightSt")
    actor.suspend()
    try:
        now[0] += 10.0
        assert client.wanted() is None  # an actor that does not answer, as on a node that is cut off, ends no learner
        with pytest.raises(DeadlineExceeded, match=r"latest: .* no answer in 0\.5 s \(learner\.collective_s"):
            WeightsActorClient(weights, seconds=0.5).ask("latest")
    finally:
        actor.resume()
