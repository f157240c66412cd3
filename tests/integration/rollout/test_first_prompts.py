"""Episodes in which the policy never acted."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from playing_worker import DEADLINE_S, issue

from envservice.client.client import EnvClient
from lab.bench.simulated import SimulatedRunner, simulated_worker
from services.config.sections import RolloutSection
from services.records import Version
from services.telemetry.logs import configure_logs


@pytest.mark.asyncio
async def test_an_episode_without_steps_is_logged_and_counted_as_failed(store, run_name, tmp_path, monkeypatch):
    """Its ticket fails. As refused it would be one that another worker had committed, and the alert would be silent."""
    play = SimulatedRunner.play

    async def too_long(self, *ticket, **named):
        return msgspec.structs.replace(await play(self, *ticket, **named), steps=[], end="context")

    monkeypatch.setattr(SimulatedRunner, "play", too_long)
    configure_logs(tmp_path, process="rollout-0", show=None)
    store.state.publish_version(store.leases.acquire("learner", "test", ttl_s=600), Version(incarnation=1, step=1), "")
    issue(store, store.leases.acquire("controller", "test", ttl_s=600), "train/0", size=1, min_step=1)
    async with EnvClient(["http://127.0.0.1:9"]) as client:
        worker = simulated_worker("rollout-0", store, client, RolloutSection(slots=4), latency_s=0.0, games=False)
        work = asyncio.create_task(worker.run())
        async with asyncio.timeout(DEADLINE_S):
            while not await asyncio.to_thread(store.failed_groups):
                assert not work.done()
                await asyncio.sleep(0.02)
            worker.drain()
            await work
    counted = {labels["outcome"]: value for name, labels, value in worker._meter.beat(
        playing=0, held=0, pointer=None)["metrics"]["gagpo_rollout_episodes_total"] if name.endswith("_total")}
    assert counted == {"accepted": 0, "refused": 0, "failed": 3}
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    reason = "env: the first prompt has more tokens than rollout.max_prompt_tokens"
    assert [line["attempt"] for line in logged if line.get("reason") == reason] == [1, 2, 3]
