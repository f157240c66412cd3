from __future__ import annotations

import time
from types import SimpleNamespace

import msgspec
import pytest

from rollout.actor import UNPUBLISHED
from rollout.worker import Meter
from services.records import Episode, Ticket, Version
from services.store.store import Claim
from services.telemetry.heartbeat import decode

TICKET = Ticket(group="train/0", k=0, size=2, task="toy/train/a", seed=1, kind="train", temperature=1.0, max_steps=5)
CLAIM = Claim(ticket=TICKET, attempt=2, entry="1000-0", worker="rollout-0", issued_at=0.0)


def test_a_heartbeat_says_what_the_worker_did():
    engine = SimpleNamespace(version=Version(incarnation=2, step=3, digest="d" * 16), listener=None, kv_used=0.5)
    meter = Meter("rollout-0", engine, slots=4)  # pyright: ignore[reportArgumentType]  # an engine is vLLM
    engine.listener(40, 8, 0.3)
    meter.claimed([CLAIM])
    meter.started(CLAIM)  # it waited for no worker while its first one played it
    meter.started(msgspec.structs.replace(CLAIM, attempt=1))
    meter.finished(Episode(ticket=TICKET, steps=[], won=True, end="won", worker="rollout-0", attempt=2, seconds=2.0,
                           engine="toy 1", replays=1), accepted=True)
    meter.failed()
    meter.updated(0.4)
    meter.waits(playing=0, held=0, missing=Version(incarnation=2, step=4))
    assert meter.beat(playing=0, held=0, pointer=None)["doing"] == "waits for weights 2.4, which nobody has"
    meter.waits(playing=1, held=0, missing=None, no_servers=True)
    assert meter.beat(playing=1, held=0, pointer=None)["doing"] == "waits for environment servers"
    meter.waits(playing=0, held=1, missing=None)
    fields = meter.beat(playing=0, held=1, pointer=Version(incarnation=2, step=5))
    beat = decode({"rollout-0": fields})["rollout-0"]
    assert (beat.role, beat.doing, beat.version) == ("rollout", "waits for a version", engine.version.short)
    assert beat.progress > 0

    def of(name: str, **labels: str) -> float | None:
        return next(value for sample, its, value in beat.metrics[name]
                    if its == labels and not sample.endswith("_sum"))

    assert of("gagpo_rollout_tokens_total", kind="prompt") == 40
    assert of("gagpo_rollout_tokens_total", kind="response") == 8
    assert of("gagpo_rollout_redeliveries_total") == 1
    assert of("gagpo_rollout_episodes_total", outcome="accepted") == 1
    assert of("gagpo_rollout_episodes_total", outcome="failed") == 1
    assert of("gagpo_rollout_episode_ends_total", end="won") == 1
    assert of("gagpo_rollout_replays_total") == 1
    assert of("gagpo_rollout_update_seconds") == 1
    assert of("gagpo_rollout_version_lag_steps") == 2
    assert of("gagpo_rollout_kv_used_ratio") == 0.5
    assert of("gagpo_rollout_version_lag_incarnations") == 0
    assert of("gagpo_rollout_tickets", state="held") == 1
    assert of("gagpo_rollout_queue_seconds", le="+Inf") == 1


def test_a_worker_that_has_no_published_weights_yet_names_no_version():
    engine = SimpleNamespace(version=UNPUBLISHED, listener=None, kv_used=0.0)
    meter = Meter("rollout-0", engine, slots=4)  # pyright: ignore[reportArgumentType]  # an engine is vLLM
    assert meter.beat(playing=0, held=0, pointer=None)["version"] == ""
    engine.version = Version(incarnation=0, step=0)
    assert meter.beat(playing=0, held=0, pointer=None)["version"] == "0.0"


@pytest.mark.parametrize(("needs", "waited"), [
    ({"min_step": 2}, 60), ({"min_step": 3}, 0), ({"exact_version": Version(incarnation=1, step=3)}, 0)])
def test_a_ticket_waits_for_a_worker_only_while_the_weights_may_play_it(needs, waited: int, monkeypatch):
    """Else each one waits for a whole learner step, and autoscaling adds workers up to its bound."""
    engine = SimpleNamespace(version=Version(incarnation=1, step=2), listener=None, kv_used=0.0)
    meter = Meter("rollout-0", engine, slots=4)  # pyright: ignore[reportArgumentType]  # an engine is vLLM
    now = time.monotonic()
    with monkeypatch.context() as hour_ago:
        hour_ago.setattr(time, "monotonic", lambda: now - 3600)
        meter.updated(1.0)
    engine.version = Version(incarnation=1, step=3)
    meter.updated(1.0)
    meter.started(msgspec.structs.replace(CLAIM, ticket=msgspec.structs.replace(TICKET, **needs), attempt=1,
                                          issued_at=now - 60))
    (total,) = (value for sample, _, value in meter.beat(playing=0, held=0, pointer=None)["metrics"][
        "gagpo_rollout_queue_seconds"] if sample.endswith("_sum"))
    assert total == pytest.approx(waited, abs=5)
