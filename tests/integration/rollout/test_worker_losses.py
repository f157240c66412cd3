"""Losses that a rollout worker survives: workers, servers and episodes that end early."""

from __future__ import annotations

import asyncio
import json
import time

import numpy as np
import pytest
from playing_worker import DEADLINE_S, SETTINGS, Held, TokenText, issue, said, until, working

from services.errors import EnvFault
from services.seeds import seed_for
from services.telemetry.heartbeat import NO_SERVERS
from services.telemetry.logs import configure_logs

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


async def test_a_killed_worker_costs_one_turn_and_each_group_is_finished_once(world, tmp_path):
    """The second worker continues uncommitted tickets after their finished turns. No ticket is committed twice, and all
    tokens equal those of an undisturbed run."""
    configure_logs(tmp_path, process="rollout-0", show=None)
    world.shelf.publish(1)
    for number in range(4):
        issue(world.store, world.lease, f"train/{number}", min_step=1)

    def kept() -> dict[str, int]:
        tickets = [f"train/{n}#{k}" for n in range(4) for k in range(4)]
        turns = {ticket: len(world.store.turns(ticket)) for ticket in tickets}
        return {ticket: count for ticket, count in turns.items() if count}

    async with working(world, held=Held(world.engine, turn=2)) as worker:
        await until(world, lambda: list(kept().values()) == [2] * SETTINGS.slots, worker)
    left = kept()
    async with working(world) as worker:
        await until(world, lambda: len(world.store.ready("train")) == 4, worker)
    episodes = [episode for number in range(4) for episode in world.store.episodes(f"train/{number}")]
    assert len({episode.ticket.id for episode in episodes}) == len(episodes) == 16
    assert world.store.counts().outstanding_tickets == 0
    assert not any(world.store.turns(episode.ticket.id) for episode in episodes)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    gone_on = {line["ticket"]: line["turns"] for line in lines if line["event"] == "episode continues"}
    assert gone_on == left
    for episode in episodes:
        for turn, step in enumerate(episode.steps):
            again = await world.engine.sample(
                step.prompt_ids.tolist(), temperature=1.0, seed=seed_for(episode.ticket.seed, turn), max_tokens=8,
                stop_token_ids=[1], request_id="again")  # fmt: skip
            assert np.array_equal(again.ids, step.response_ids)


async def test_a_killed_environment_server_costs_no_episode(world):
    """The worker says that it waits for a server, no attempt is used up, and the games continue where they were."""
    world.shelf.publish(1)
    for number in range(4):
        issue(world.store, world.lease, f"train/{number}", min_step=1)
    port = int(world.url.rsplit(":", 1)[1])
    held = Held(world.engine, turn=2)
    async with working(world, held=held, call_s=6) as worker:
        await until(world, lambda: world.store.turns("train/0#3"), worker)
        world.server.kill()
        await asyncio.to_thread(world.server.wait, 60)
        held.free.set()
        await until(world, lambda: said(world) == NO_SERVERS, worker)
        await asyncio.sleep(7)  # longer than a call may take
        await asyncio.to_thread(world.serve, port)
        await until(world, lambda: len(world.store.ready("train")) == 4, worker)
    episodes = [episode for number in range(4) for episode in world.store.episodes(f"train/{number}")]
    assert {episode.attempt for episode in episodes} == {1}


async def test_a_drained_worker_finishes_its_tickets_takes_no_more_and_ends_while_servers_come_and_go(world):
    """The next worker plays the remaining tickets. Both follow the changing list of servers in the store."""
    world.shelf.publish(1)
    for number in range(4):
        issue(world.store, world.lease, f"train/{number}", min_step=1)
    other = world.serve()[1]
    held = Held(world.engine, turn=1)
    async with working(world, held=held) as worker:
        await until(world, lambda: world.store.backlog().claimed == SETTINGS.slots, worker)
        world.worker.drain()
        held.free.set()
        async with asyncio.timeout(DEADLINE_S):
            await worker
    finished = sum(len(world.store.episodes(f"train/{number}")) for number in range(4))
    assert finished == SETTINGS.slots
    assert world.store.backlog().claimed == 0
    world.store.state.publish_servers(world.lease, [other])
    world.server.kill()
    async with working(world) as worker:
        await until(world, lambda: len(world.store.ready("train")) == 4, worker)
    episodes = [episode for number in range(4) for episode in world.store.episodes(f"train/{number}")]
    assert {episode.attempt for episode in episodes} == {1}


async def test_episodes_keep_their_weights_while_a_restarted_learner_takes_earlier_steps_again(world):
    """It publishes its checkpoint first. Sampled by that, their groups would be too old for the learner."""
    world.shelf.publish(2)
    issue(world.store, world.lease, "train/0", size=SETTINGS.slots, min_step=2)
    held = Held(world.engine, turn=2)
    async with working(world, held=held) as worker:
        await until(world, lambda: [len(world.store.turns(f"train/0#{k}")) for k in range(SETTINGS.slots)] == [
            2] * SETTINGS.slots, worker)
        checkpoint = world.shelf.publish(1, life=1)
        await asyncio.sleep(3)  # longer than it takes to load this model
        held.free.set()
        await until(world, lambda: world.store.ready("train"), worker)
        await until(world, lambda: world.engine.version == checkpoint, worker)
    assert {episode.oldest_step for episode in world.store.episodes("train/0")} == {2}


async def test_a_ticket_that_is_lost_and_claimed_again_is_played_on_and_counts_once(world):
    """A worker that was held up for longer than its claims last gets the tickets back while it plays them still."""
    world.shelf.publish(1)
    issue(world.store, world.lease, "train/0", size=1, min_step=1)
    held = Held(world.engine, turn=0)
    async with working(world, held=held) as worker:
        await until(world, lambda: world.worker.playing, worker)
        ((lost, _),) = world.worker._playing.values()
        world.store.fail(lost, "its claim ran out")
        await until(world, lambda: [claim.attempt for claim, _ in world.worker._playing.values()] == [2], worker)
        held.free.set()
        await until(world, lambda: world.store.ready("train") and not world.worker.playing, worker)
        world.worker.drain()
        async with asyncio.timeout(DEADLINE_S):
            await worker
    assert len(world.store.episodes("train/0")) == 1


async def test_a_fault_of_some_seconds_costs_episodes_attempts_and_no_group(world):
    """The attempts of a ticket are apart. Without pauses all three would fall into the fault, for ticket after ticket.
    """
    ends: list[float] = []

    class Faulty(TokenText):
        def prompt(self, first, turns, now, correction=""):
            ends[:] = ends or [time.monotonic() + 2.5]
            if time.monotonic() < ends[0]:
                raise EnvFault("the server answers with faults")
            return super().prompt(first, turns, now, correction)

    world.shelf.publish(1)
    for number in range(4):
        issue(world.store, world.lease, f"train/{number}", min_step=1)
    async with working(world, text=Faulty) as worker:
        await until(world, lambda: len(world.store.ready("train")) == 4 or world.store.failed_groups(), worker)
    assert world.store.failed_groups() == []
    assert any(episode.attempt > 1 for number in range(4) for episode in world.store.episodes(f"train/{number}"))


async def test_an_episode_that_breaks_the_parser_takes_no_other_one_with_it(world, tmp_path):
    """Only its own ticket is charged and dropped, with the line that raised. The worker continues."""
    configure_logs(tmp_path, process="rollout-0", show=None)

    class Brittle(TokenText):
        def prompt(self, first, turns, now, correction=""):
            if [turn.action for turn in turns] == ["take key"]:
                raise LookupError("no rule for\na key")
            return super().prompt(first, turns, now, correction)

    world.shelf.publish(5)
    for number in range(4):
        issue(world.store, world.lease, f"train/{number}", min_step=1)

    def settled() -> bool:
        counts, failed = world.store.counts(), world.store.failed_groups()
        return bool(failed) and counts.outstanding_tickets == len(failed_tickets())

    def failed_tickets() -> list[str]:
        (names,) = world.store.connection.read(("HKEYS", "failed"))
        return sorted(name.decode() for name in names)

    async with working(world, text=Brittle) as worker:
        await until(world, settled, worker)
    finished = [episode for number in range(4) for episode in world.store.episodes(f"train/{number}")]
    assert len(finished) + len(failed_tickets()) == 16
    assert {episode.attempt for episode in finished} == {1}, "no innocent ticket was charged"
    reasons = {drop.reason for drop in world.store.failed_groups()}
    where = "episode: LookupError: no rule for a key (in prompt, test_worker_losses.py:"
    assert all(reason.startswith(where) for reason in reasons)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    broke = [line for line in lines if line["event"] == "episode broke"]
    assert {line["ticket"] for line in broke} == set(failed_tickets())
    assert all("Traceback" in line["exception"] for line in broke)
