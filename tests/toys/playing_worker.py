"""A rollout worker with the real engine, and what its tests wait for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

from envservice.base import ParsedAction
from envservice.client.client import EnvClient
from rollout.engine.engine import Engine
from rollout.episode import EpisodeRunner, Limits
from rollout.gpu_turns import GpuTurns
from rollout.judge import Corrector, Judge
from rollout.weights.receiver import HostReceiver
from rollout.worker import RolloutWorker
from services.config.sections import JudgeSection, RolloutSection
from services.records import Ticket, Version
from services.seeds import seed_for
from services.store.store import Store
from services.telemetry.heartbeat import decode
from services.weights.canary import Canary
from services.weights.pack import Packed, pack_tensors

DEADLINE_S = 240.0
SETTINGS = RolloutSection(slots=4, retry_seconds=1.0)


class TokenText:
    """A prompt of 40 tokens made from the observation; an answer picks an action by its first token."""

    stop_ids = (1,)
    stop_texts = ()
    actions = ("go on", "take key", "open door", "go back")

    def prompt(self, first, turns, now, correction="") -> list[int]:
        return [2 + ord(character) % 500 for character in f"{now.observation}{len(turns)}".ljust(40)[:40]]

    def ends(self, ids) -> bool:
        return int(ids[-1]) in self.stop_ids

    def parse(self, ids) -> ParsedAction:
        return ParsedAction(action=self.actions[int(ids[0]) % 4], valid=True)

    def question(self, first, turns, now, action: str, correction="") -> list[int]:
        return [*self.prompt(first, turns, now), 2 + self.actions.index(action)]

    def mistakes_question(self, critiques) -> list[int]:
        return [2 + self.actions.index(action) for action, _ in critiques]

    def split_answer(self, ids) -> tuple[str, str]:
        return "", f"instruction {int(ids[0])}"

    def verdict(self, ids) -> str:
        return ("good", "bad", "")[int(ids[0]) % 3]


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
    """Published weights in memory, in place of the weights actor. No two have an incarnation in common: an engine that
    still holds a later step of another test would begin episodes with it, and no worker continues after such turns."""

    incarnations = itertools.count(1000, 1000)

    def __init__(self, store: Store, model_of) -> None:
        self.lease = store.leases.acquire("learner", "test", ttl_s=600)
        self.store = store
        self.model_of = model_of
        self.held: dict[Version, Packed] = {}
        self.incarnation = next(self.incarnations)

    def publish(self, step: int, *, life: int = 0, canary: Canary | None = None) -> Version:
        """Publishes weights, as the learner that was restarted `life` times. `canary`: what it computes with them."""
        packed = pack_tensors(self.model_of(tied=True, seed=100 + step).state_dict().items())
        version = Version(incarnation=self.incarnation + life, step=step, digest=packed.digest)
        self.held[version] = packed
        self.store.state.publish_version(self.lease, version, "", canary)
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
                  gpu_turns: GpuTurns | None = None, held: Held | None = None, judges: JudgeSection | None = None,
                  call_s: float = 60.0):
    """Runs a worker, `world.worker`, in its block. The test fails if the worker ends earlier. Its episodes ask `held`
    for answers, if there is one, and for judgements with the settings `judges`. `call_s`: longest call of a server, so
    a test that never loses a server leaves a busy one time."""
    limits = Limits(prompt_tokens=64, response_tokens=8, reward_scale=10.0)
    parts: dict[str, Any] = {"engine": world.engine, "text": text(), "limits": limits}
    corrector = Corrector(**parts, keep=partial(asyncio.to_thread, world.store.state.correct))
    judge = judges and Judge(**parts, settings=judges, corrector=corrector if judges.correction else None)
    async with EnvClient([world.url], timeout_s=call_s, outage_s=DEADLINE_S) as client:
        runner = EpisodeRunner(worker=name, engine=held or world.engine, env=client, env_engine="corridor 1",
                               text=text(), limits=limits, judge=judge)
        # A store of its own, as a process of its own would have: its first claim takes back what the dead one held.
        store = Store(world.redis_url, world.run)
        worker = RolloutWorker(name, store=store, engine=world.engine, runner=runner, settings=SETTINGS,
                               weights=HostReceiver(world.engine, world.shelf.fetch, seconds=SETTINGS.update_seconds),
                               gpu_turns=gpu_turns)
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
    samples = decode(world.store.state.beats())["rollout-0"].metrics[name]
    return next((value for _, found, value in samples if found == labels), None)


def said(world: SimpleNamespace) -> str:
    return decode(world.store.state.beats())["rollout-0"].doing
