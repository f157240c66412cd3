"""The rollout worker with the real engine, real Redis and a real environment server."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from playing_worker import DEADLINE_S, counted, issue, until, working

from learner.actor import gpu_turn
from rollout.gpu_turns import GpuTurns
from rollout.judge import chosen, labels
from services.config.sections import JudgeSection
from services.errors import UserError
from services.records import Version, VersionSpan
from services.seeds import seed_for
from services.store.gpu_lease import GpuLease
from services.store.store import Store
from services.telemetry.heartbeat import Beating, Heartbeat
from services.telemetry.logs import configure_logs
from services.weights.canary import PROMPTS, Canary

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


async def test_claims_plays_and_completes_groups(world):
    """Whole groups become ready. Each episode names its worker and version, and its seed samples it again. After each
    the policy has judged the actions that the rule chooses."""
    version = world.shelf.publish(1)
    for group in ("train/0", "train/1", "train/2"):
        issue(world.store, world.lease, group, min_step=1)
    async with working(world, judges=JudgeSection(questions=2, answers=2)) as worker:
        await until(world, lambda: len(world.store.ready("train")) == 3, worker)
        await until(world, lambda: counted(world, "gagpo_rollout_episodes_total", outcome="accepted") == 12, worker)
        assert counted(world, "gagpo_rollout_slots") == 4
        assert counted(world, "gagpo_rollout_version_lag_steps") == 0
        assert counted(world, "gagpo_rollout_tokens_total", kind="prompt") > 0
    episodes = [episode for group in ("train/0", "train/1", "train/2") for episode in world.store.episodes(group)]
    assert len(episodes) == 12
    for episode in episodes:
        assert episode.end in ("won", "turns")
        assert all(span.version == version for step in episode.steps for span in step.spans)
        assert all(len(step.response_ids) == len(step.logprobs) == step.spans[-1].end for step in episode.steps)
        found = labels(episode.steps, won=episode.won)
        asked = chosen(found, questions=2, seed=seed_for(episode.ticket.seed, "judge"))
        assert [(each.turn, each.good) for each in episode.judged] == [(turn, found[turn]) for turn in asked]
        answers = [answer for each in episode.judged for answer in each.answers]
        assert len(answers) == 2 * len(asked)
        assert all(answer.spans[-1] == VersionSpan(version=version, start=0, end=len(answer.response_ids))
                   for answer in answers)
    step = episodes[5].steps[0]
    again = await world.engine.sample(
        step.prompt_ids.tolist(), temperature=1.0, seed=seed_for(episodes[5].ticket.seed, 0), max_tokens=8,
        stop_token_ids=[1], request_id="again")  # fmt: skip
    assert np.array_equal(again.ids, step.response_ids)


async def test_the_policys_summary_of_what_it_judged_bad_reaches_the_store(world):
    world.shelf.publish(1)
    for group in ("train/0", "train/1", "train/2"):
        issue(world.store, world.lease, group, min_step=1)
    async with working(world, judges=JudgeSection(questions=2, answers=8, correction=True)) as worker:
        await until(world, lambda: len(world.store.ready("train")) == 3, worker)
    assert world.store.state.correction().startswith("instruction ")


async def test_a_worker_sleeps_while_the_learner_has_the_gpu_and_its_episodes_go_on(world):
    world.shelf.publish(1)
    for group in ("train/0", "train/1", "train/2"):
        issue(world.store, world.lease, group, min_step=1)
    turns = GpuTurns(GpuLease(Store(world.redis_url, world.run), "rollout-0"), wait_s=DEADLINE_S)
    learner, heartbeat = GpuLease(Store(world.redis_url, world.run), "run-learner"), Heartbeat("learner-0", "learner")
    await turns.take()
    async with working(world, gpu_turns=turns) as worker:
        turn = gpu_turn([learner], heartbeat, check=lambda: None, wait_s=DEADLINE_S)
        with Beating(heartbeat, Store(world.redis_url, world.run).state.beat):  # its wish ends with its last heartbeat
            await asyncio.to_thread(turn.__enter__)
            beats = world.store.state.beats
            await until(world, lambda: beats().get("rollout-0", {}).get("doing", "").startswith("asleep"), worker)
            await asyncio.to_thread(turn.__exit__, None, None, None)
        await until(world, lambda: len(world.store.ready("train")) == 3, worker)
    await turns.give()


async def test_tickets_wait_for_the_version_that_they_need(world):
    """Training waits for min_step; evaluation is played at its one version, even if newer weights are out."""
    first = world.shelf.publish(1)
    issue(world.store, world.lease, "train/0", min_step=2)
    async with working(world) as worker:
        await asyncio.sleep(0.5)
        assert world.store.episodes("train/0") == []
        second = world.shelf.publish(2)
        issue(world.store, world.lease, "eval/one", exact=first, size=6)
        issue(world.store, world.lease, "eval/two", exact=second, size=6)
        issue(world.store, world.lease, "train/1", min_step=2)
        await until(world, lambda: len(world.store.ready("train") + world.store.ready("eval")) == 4, worker)
    for group, version in {"eval/one": first, "eval/two": second, "train/0": second}.items():
        spans = [s for e in world.store.episodes(group) for step in e.steps for s in step.spans]
        assert {span.version for span in spans} == {version}
    assert all(e.oldest_step >= 2 for e in world.store.episodes("train/1"))


async def test_tickets_for_weights_to_come_leave_room_for_an_evaluation_that_they_wait_for(world):
    """The learner publishes step 4 only after the evaluation of step 3, one of whose tickets another worker lost."""
    first = world.shelf.publish(3)
    issue(world.store, world.lease, "eval/one", exact=first, size=1)
    (lost,) = world.store.claim("rollout-1", 1)
    for number in range(2):
        issue(world.store, world.lease, f"train/{number}", min_step=4)
    async with working(world) as worker:
        await until(world, lambda: world.engine.version == first, worker)
        world.store.fail(lost, "engine: it died")
        await until(world, lambda: world.store.ready("eval"), worker)
    assert world.store.backlog().claimed == 0, "tickets that cannot be played stay in the stream"


async def test_a_version_that_is_gone_fails_its_tickets_with_the_reason(world, tmp_path):
    """After three attempts the controller drops the group, so an evaluation never waits for weights that nobody has."""
    configure_logs(tmp_path, process="rollout-0", show=None)
    version = world.shelf.publish(1)
    gone = Version(incarnation=1, step=0, digest="forgotten")
    issue(world.store, world.lease, "eval/gone", exact=gone, size=1)
    async with working(world) as worker:
        await until(world, world.store.failed_groups, worker)
    assert "nobody has the weights" in world.store.failed_groups()[0].reason
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    failures = [line for line in lines if line["event"] == "episode failed"]
    assert [(line["ticket"], line["task"], line["attempt"], line["then"]) for line in failures] == [
        ("eval/gone#0", "toy/train/00", 1, "retry"), ("eval/gone#0", "toy/train/00", 2, "retry"),
        ("eval/gone#0", "toy/train/00", 3, "exhausted")]
    assert all("nobody has the weights" in line["reason"] for line in failures)
    updates = [line for line in lines if line["event"] == "weights updated"]
    assert [line["version"] for line in updates] == [version.short]


async def test_a_sampler_that_computes_something_else_than_the_learner_ends_the_run_by_its_name(world):
    wrong = Canary(logprobs=[-1.0] * sum(len(prompt) - 1 for prompt in PROMPTS), rounding=1e-6)
    version = world.shelf.publish(9, canary=wrong)  # the engine may hold the first one from another test
    try:
        with pytest.raises(UserError, match="sampler rollout-0 plays other weights than it was sent: its logprobs"):
            async with working(world) as worker:
                await worker
        assert world.engine.paused
    finally:
        packed = world.shelf.held[version]
        await world.engine.update(version, packed.manifest, packed.buffer)
