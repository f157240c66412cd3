"""Renewals of claims that end at the same time, and episodes in which the policy never acted."""

from __future__ import annotations

import asyncio
import json
import threading

import msgspec
import pytest
from playing_worker import DEADLINE_S, issue

from envservice.client.client import EnvClient
from lab.bench.simulated import SimulatedRunner, simulated_worker
from services.config.sections import RolloutSection
from services.records import Version
from services.store.store import Store
from services.telemetry.logs import configure_logs

NO_SERVER = "http://127.0.0.1:9"
RENEWALS = 3
"""The first may have been asked before the commit, and the third begins when the worker has read the second."""


class SlowReplies(Store):
    """Answers a commit only after the worker has renewed its claims since."""

    def __init__(self, url: str, run: str) -> None:
        super().__init__(url, run)
        self._committed = threading.Event()
        self._renewed = threading.Semaphore(0)

    def renew_claims(self, worker, claims):
        gone = super().renew_claims(worker, claims)
        if self._committed.is_set():
            self._renewed.release()
        return gone

    def commit_episode(self, claim, episode):
        verdict = super().commit_episode(claim, episode)
        self._committed.set()
        for _ in range(RENEWALS):
            assert self._renewed.acquire(timeout=DEADLINE_S)
        return verdict


class FullFolder(Store):
    """Holds every commit back until the worker has renewed its claims, as a folder of bodies that is away does."""

    def __init__(self, url: str, run: str) -> None:
        super().__init__(url, run)
        self._committing = threading.Semaphore(0)
        self._left = RENEWALS
        self._renewed = threading.Event()

    def renew_claims(self, worker, claims):
        gone = super().renew_claims(worker, claims)
        if self._left and self._committing.acquire(blocking=False):
            self._committing.release()
            self._left -= 1
            if not self._left:
                self._renewed.set()
        return gone

    def commit_episode(self, claim, episode):
        self._committing.release()
        assert self._renewed.wait(DEADLINE_S), "no claim was renewed"
        return super().commit_episode(claim, episode)


async def played(worker, store, *, within_s):
    """Runs the worker until its group is complete and no claim is left, and lets it leave."""
    work = asyncio.create_task(worker.run())
    async with asyncio.timeout(within_s):
        while not (await asyncio.to_thread(store.ready, "train") and not worker.playing):
            assert not work.done()
            await asyncio.sleep(0.02)
        worker.drain()
        await work


@pytest.mark.asyncio
async def test_claims_are_renewed_while_more_commits_wait_than_there_are_threads(store, redis_url, run_name,
                                                                                 monkeypatch):
    monkeypatch.setattr("rollout.worker.RENEW_S", 0.2)
    store.state.publish_version(store.leases.acquire("learner", "test", ttl_s=600), Version(incarnation=1, step=1), "")
    issue(store, store.leases.acquire("controller", "test", ttl_s=600), "train/0", size=64, min_step=1)
    async with EnvClient([NO_SERVER]) as client:
        worker = simulated_worker("rollout-0", FullFolder(redis_url, run_name), client, RolloutSection(slots=64),
                                  latency_s=0.0, games=False)
        await played(worker, store, within_s=2 * DEADLINE_S)


@pytest.mark.asyncio
async def test_a_claim_that_ends_while_claims_are_renewed_is_not_called_lost(store, redis_url, run_name, tmp_path,
                                                                             monkeypatch):
    """The commit is in the store, its answer on the way, and the worker renews all that it plays."""
    configure_logs(tmp_path, process="rollout-0", show=None)
    monkeypatch.setattr("rollout.worker.RENEW_S", 0.02)
    store.state.publish_version(store.leases.acquire("learner", "test", ttl_s=600), Version(incarnation=1, step=1), "")
    issue(store, store.leases.acquire("controller", "test", ttl_s=600), "train/0", size=1, min_step=1)
    async with EnvClient([NO_SERVER]) as client:
        worker = simulated_worker("rollout-0", SlowReplies(redis_url, run_name), client, RolloutSection(slots=4),
                                  latency_s=0.0, games=False)
        await played(worker, store, within_s=DEADLINE_S)
    events = [json.loads(line)["event"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert "claim lost" not in events


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
