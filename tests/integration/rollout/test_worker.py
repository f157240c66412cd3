"""The rollout worker with the real engine, real Redis and a real environment server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest

from envservice.base import ParsedAction
from envservice.client.client import EnvClient
from learner.card_turn import card_turn
from rollout.card_turns import CardTurns
from rollout.engine import Engine
from rollout.episode import EpisodeRunner, Limits
from rollout.worker import RolloutWorker
from services.config.rollout import RolloutSection
from services.records import Ticket, Version
from services.seeds import seed_for
from services.store.card import Card
from services.store.store import Store
from services.telemetry.heartbeat import NO_SERVERS, Pulse, decode
from services.telemetry.logs import configure_logs
from services.weights.pack import Packed, pack_tensors

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

DEADLINE_S = 240.0
SETTINGS = RolloutSection(slots=4)


class TokenText:
    """A prompt of 40 tokens made from the observation; an answer picks an action by its first token."""

    stop_ids = (1,)
    actions = ("go on", "take key", "open door", "go back")

    def prompt(self, first, turns, now) -> list[int]:
        return [2 + ord(character) % 500 for character in f"{now.observation}{len(turns)}".ljust(40)[:40]]

    def parse(self, ids) -> ParsedAction:
        return ParsedAction(action=self.actions[int(ids[0]) % 4], valid=True)


class Held:
    """The engine, which holds the answers of every turn from `turn` on until `free` is set, so that tests find
    episodes in the middle however fast the machine is."""

    def __init__(self, engine: Engine, *, turn: int) -> None:
        self._engine, self._turn = engine, turn
        self.free = asyncio.Event()

    async def sample(self, prompt_ids, *, request_id: str, **named):
        if int(request_id.rpartition("/")[2]) >= self._turn:
            await self.free.wait()
        return await self._engine.sample(prompt_ids, request_id=request_id, **named)


class Shelf:
    """Published weights in memory, in place of the weights actor."""

    def __init__(self, store: Store, model_of) -> None:
        self.lease = store.acquire("learner", "test", ttl_s=600)
        self.store = store
        self.model_of = model_of
        self.held: dict[Version, Packed] = {}

    def publish(self, step: int) -> Version:
        packed = pack_tensors(self.model_of(tied=True, seed=100 + step).state_dict().items())
        version = Version(incarnation=self.lease.epoch + 1000, step=step, digest=packed.digest)
        self.held[version] = packed
        self.store.publish_version(self.lease, version, "")
        return version

    async def fetch(self, version: Version, folder: str) -> Packed | None:
        return self.held.get(version)


def issue(store: Store, lease, group: str, *, size: int = 4, min_step: int = 0, exact: Version | None = None) -> None:
    store.issue(lease, [
        Ticket(group=group, k=k, size=size, task=f"toy/train/{k:02d}", seed=seed_for("run", group, k),
               kind="train" if exact is None else "eval", min_step=min_step, exact_version=exact, temperature=1.0,
               max_steps=6)
        for k in range(size)
    ], capacity=100)  # fmt: skip


@contextlib.asynccontextmanager
async def working(world: SimpleNamespace, name: str = "rollout-0", text: type[TokenText] = TokenText,
                  card: CardTurns | None = None, held: Held | None = None):
    """Runs a worker, `world.worker`, in its block. The test fails if the worker ends earlier. Its episodes ask `held`
    for answers, if there is one."""
    async with EnvClient([world.url], timeout_s=3, outage_s=60) as client:
        runner = EpisodeRunner(worker=name, engine=held or world.engine, env=client, env_engine="corridor 1",
                               text=text(), limits=Limits(prompt_tokens=64, response_tokens=8, reward_scale=10.0))
        # A store of its own, as a process of its own would have: its first claim takes back what the dead one held.
        store = Store(world.redis_url, world.run)
        worker = RolloutWorker(name, store=store, engine=world.engine, runner=runner, fetch=world.shelf.fetch,
                               settings=SETTINGS, card=card)
        world.worker, task = worker, asyncio.create_task(worker.run())
        try:
            yield task
            assert not task.done() or task.result() is None
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(world: SimpleNamespace, condition, worker: asyncio.Task) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(condition):
            if worker.done():
                worker.result()
            await asyncio.sleep(0.02)


def counted(world: SimpleNamespace, name: str, **labels: str) -> float | None:
    """Returns the worker's last heartbeat."""
    samples = decode(world.store.beats())["rollout-0"].metrics[name]
    return next((value for _, found, value in samples if found == labels), None)


def said(world: SimpleNamespace) -> str:
    return decode(world.store.beats())["rollout-0"].doing


@pytest.fixture
def world(sampler: Engine, store, redis_url, run_name, serve_toy, tiny_model) -> SimpleNamespace:
    server, url = serve_toy()
    return SimpleNamespace(
        engine=sampler, store=store, redis_url=redis_url, run=run_name, server=server, url=url, serve=serve_toy,
        shelf=Shelf(store, tiny_model), lease=store.acquire("controller", "test", ttl_s=600))


async def test_claims_plays_and_completes_groups(world):
    """Whole groups become ready. Each episode names its worker and version, and its seed samples it again."""
    version = world.shelf.publish(1)
    for group in ("train/0", "train/1", "train/2"):
        issue(world.store, world.lease, group, min_step=1)
    async with working(world) as worker:
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
    step = episodes[5].steps[0]
    again = await world.engine.sample(
        step.prompt_ids.tolist(), temperature=1.0, seed=seed_for(episodes[5].ticket.seed, 0), max_tokens=8,
        stop_token_ids=[1], request_id="again")  # fmt: skip
    assert np.array_equal(again.ids, step.response_ids)


async def test_a_worker_sleeps_while_the_learner_has_the_card_and_its_episodes_go_on(world):
    world.shelf.publish(1)
    for group in ("train/0", "train/1", "train/2"):
        issue(world.store, world.lease, group, min_step=1)
    turns = CardTurns(Card(Store(world.redis_url, world.run), "rollout-0"), wait_s=DEADLINE_S)
    learner, pulse = Card(Store(world.redis_url, world.run), "run-learner"), Pulse("learner-0", "learner")
    await turns.take()
    async with working(world, card=turns) as worker:
        turn = card_turn([learner], pulse, check=lambda: None, wait_s=DEADLINE_S)
        await asyncio.to_thread(turn.__enter__)
        beats = world.store.beats
        await until(world, lambda: beats().get("rollout-0", {}).get("doing", "").startswith("asleep"), worker)
        await asyncio.to_thread(turn.__exit__, None, None, None)
        await until(world, lambda: len(world.store.ready("train")) == 3, worker)
    await turns.give()


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
    gone_on = {line["ticket"]: line["turns"] for line in lines if line["event"] == "episode goes on"}
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
    async with working(world, held=held) as worker:
        await until(world, lambda: world.store.turns("train/0#3"), worker)
        world.server.kill()
        await asyncio.to_thread(world.server.wait, 10)
        held.free.set()
        await until(world, lambda: said(world) == NO_SERVERS, worker)
        await asyncio.sleep(4)  # longer than a call may take
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
    world.store.publish_servers(world.lease, [other])
    world.server.kill()
    async with working(world) as worker:
        await until(world, lambda: len(world.store.ready("train")) == 4, worker)
    episodes = [episode for number in range(4) for episode in world.store.episodes(f"train/{number}")]
    assert {episode.attempt for episode in episodes} == {1}


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


async def test_an_episode_that_breaks_the_parser_takes_no_other_one_with_it(world, tmp_path):
    """Only its own ticket is charged and dropped, with the line that raised. The worker continues."""
    configure_logs(tmp_path, process="rollout-0", show=None)

    class Brittle(TokenText):
        def prompt(self, first, turns, now):
            if [turn.action for turn in turns] == ["take key"]:
                raise LookupError("no rule for\na key")
            return super().prompt(first, turns, now)

    world.shelf.publish(5)
    for number in range(4):
        issue(world.store, world.lease, f"train/{number}", min_step=1)

    def settled() -> bool:
        counts, failed = world.store.counts(), world.store.failed_groups()
        return bool(failed) and counts.outstanding_tickets == len(failed_tickets())

    def failed_tickets() -> list[str]:
        (names,) = world.store.read(("HKEYS", "failed"))
        return sorted(name.decode() for name in names)

    async with working(world, text=Brittle) as worker:
        await until(world, settled, worker)
    finished = [episode for number in range(4) for episode in world.store.episodes(f"train/{number}")]
    assert len(finished) + len(failed_tickets()) == 16
    assert {episode.attempt for episode in finished} == {1}, "no innocent ticket was charged"
    reasons = {drop.reason for drop in world.store.failed_groups()}
    assert all(r.startswith("episode: LookupError: no rule for a key (in prompt, test_worker.py:") for r in reasons)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    broke = [line for line in lines if line["event"] == "episode broke"]
    assert {line["ticket"] for line in broke} == set(failed_tickets())
    assert all("Traceback" in line["exception"] for line in broke)


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
