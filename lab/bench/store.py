"""The capacity of one Redis: episodes of 50 turns of 2,000 tokens, the turns that workers keep while they play, and
their heartbeats.

The limit of a Redis is that of its one thread, so it is told by the CPU seconds that Redis itself reports, which other
processes of a busy machine do not change. Episodes are committed, read by the learner and retired, as in a run, on a
private Redis with its append-only file, once with their bodies in Redis and once in a folder (`redis.bodies`). Token
ids follow Zipf's law over 150,000 words; 1,200 of the 1,500 prompt tokens of a turn are those of the turn before, as
instructions and history are.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lab.bench.figures import Figure, Report, silent
from services.config.redis import RedisSection
from services.records import Episode, Manifest, PlayedTurn, Step, Ticket, Version, VersionSpan, encode_episode
from services.store.redis_server import private_redis
from services.store.store import Claim, Store
from services.telemetry.heartbeat import Heartbeat

TURNS, PROMPT, RESPONSE, REPEATED, WORDS = 50, 1500, 500, 1200, 150_000
EPISODES = 64
SMALL_RESPONSE = 12
"""Response tokens of a turn of the configs that train a small model."""
KEPT = 2000
AT_ONCE = 16
"""Turns of one write: what a worker with 64 slots finishes in the pause between two writes."""
WORKERS = 600
"""Workers that are alive while heartbeats are measured: those of a run on 1,000 GPUs in lab/simulation/README.md."""
HEARTBEATS = 5
"""Heartbeats of each of them."""
MB = 1e6


class Spent(NamedTuple):
    """The measured times of some calls."""

    wall: float
    own: float
    """CPU seconds of this thread."""
    redis: float
    """CPU seconds of Redis."""


def run(report: Report = silent) -> list[Figure]:
    """Takes about half a minute."""
    with tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder, private_redis(Path(folder)) as url:
        report("episodes", 0, 4)
        whole, figures = _episodes(Store(url, "episodes"), "Redis")
        report("episodes whose bodies lie in a folder", 1, 4)
        reference, elsewhere = _episodes(
            Store(url, "references", settings=RedisSection(bodies=Path(folder).as_uri())), "a folder")
        report("kept turns", 2, 4)
        long, kept = _kept(Store(url, "long"), RESPONSE)
        _, short = _kept(Store(url, "short"), SMALL_RESPONSE)
        report("heartbeats", 3, 4)
        beats = _heartbeats(Store(url, "heartbeats"))
    return [
        *_packing(), *figures, *elsewhere, *kept, *short, *beats,
        Figure(name="limit of one Redis, turns kept as well", value=1 / (whole + TURNS * long), unit="episodes/s"),
        Figure(name="the same, bodies in a folder", value=1 / (reference + TURNS * long), unit="episodes/s"),
    ]


def _packing() -> list[Figure]:
    episode = _episode(_ticket(0), np.random.default_rng(0))
    raw = sum(array.nbytes for step in episode.steps for array in (step.prompt_ids, step.response_ids, step.logprobs))
    began = time.thread_time()
    size = len(encode_episode(episode))
    return [
        Figure(name="episode as arrays", value=raw / MB, unit="MB"),
        Figure(name="packed", value=size / MB, unit="MB"),
        Figure(name="packing, of a worker's CPU", value=1000 * (time.thread_time() - began), unit="ms"),
    ]


def _episodes(store: Store, where: str) -> tuple[float, list[Figure]]:
    """Returns Redis' CPU seconds per episode, and the figures."""
    claims = _claims(store, EPISODES)
    rng = np.random.default_rng(0)
    episodes = [_episode(claim.ticket, rng) for claim in claims]
    size = sum(len(encode_episode(episode)) for episode in episodes) / EPISODES
    commits = _measure(store, lambda: [
        store.commit_episode(claim, episode) for claim, episode in zip(claims, episodes, strict=True)])
    reads = _measure(store, lambda: [store.episodes(claim.ticket.group) for claim in claims])
    retires = _measure(store, lambda: _train(store, [claim.ticket.group for claim in claims]))
    redis = (commits.redis + reads.redis + retires.redis) / EPISODES
    return redis, [
        Figure(name=f"bodies in {where}: one committer, with packing", value=EPISODES * size / MB / commits.wall,
               unit="MB/s"),
        Figure(name=f"bodies in {where}: one reader, with unpacking", value=EPISODES * size / MB / reads.wall,
               unit="MB/s"),
        Figure(name=f"bodies in {where}: limit of one Redis", value=size / MB / redis, unit="MB/s"),
        Figure(name=f"bodies in {where}: limit of one Redis", value=1 / redis, unit="episodes/s"),
    ]


def _kept(store: Store, response: int) -> tuple[float, list[Figure]]:
    """Returns Redis' CPU seconds per turn, and the figures."""
    claims = _claims(store, AT_ONCE)
    rng = np.random.default_rng(0)
    turns = [_turn(rng, response) for _ in range(AT_ONCE)]
    before = store.connection.redis.info("memory")["used_memory"]
    spent = _measure(store, lambda: [
        store.keep_turns("bench", [(claim, index, turn) for claim, turn in zip(claims, turns, strict=True)])
        for index in range(KEPT // AT_ONCE)])
    held = store.connection.redis.info("memory")["used_memory"] - before
    name = f"kept turn of {response} tokens"
    return spent.redis / KEPT, [
        Figure(name=f"{name}, of a worker's CPU", value=1e6 * spent.own / KEPT, unit="µs"),
        Figure(name=f"{name}, of Redis' CPU", value=1e6 * spent.redis / KEPT, unit="µs"),
        Figure(name=f"{name}, in Redis", value=held / KEPT, unit="bytes"),
    ]


def _heartbeats(store: Store) -> list[Figure]:
    beat = Heartbeat("rollout", "rollout").beat()

    def send() -> None:
        for number in range(WORKERS):
            store.state.beat(f"rollout-{number}", beat, ttl_s=600.0)

    send()
    sent = _measure(store, lambda: [send() for _ in range(HEARTBEATS)])
    read = _measure(store, lambda: [store.state.beats() for _ in range(HEARTBEATS)])
    return [
        Figure(name=f"heartbeat of one of {WORKERS} workers, of Redis' CPU",
               value=1e6 * sent.redis / HEARTBEATS / WORKERS, unit="µs"),
        Figure(name=f"all {WORKERS} heartbeats read at once, of Redis' CPU", value=1e3 * read.redis / HEARTBEATS,
               unit="ms"),
    ]


def _measure(store: Store, act: Callable[[], Any]) -> Spent:
    redis, wall, own = _cpu(store), time.monotonic(), time.thread_time()
    act()
    return Spent(time.monotonic() - wall, time.thread_time() - own, _cpu(store) - redis)


def _cpu(store: Store) -> float:
    about = store.connection.redis.info("cpu")
    return about["used_cpu_user"] + about["used_cpu_sys"]


def _claims(store: Store, count: int) -> list[Claim]:
    """Claims on `count` issued groups of one episode each."""
    lease = store.leases.acquire("controller", "bench", ttl_s=600.0)
    for index in range(count):
        store.issue(lease, [_ticket(index)], capacity=count)
    return store.claim("bench", count)


def _ticket(index: int) -> Ticket:
    return Ticket(group=f"train/{index:08d}", k=0, size=1, task="bench", seed=index, kind="train", temperature=1.0,
                  max_steps=TURNS)


def _train(store: Store, groups: list[str]) -> None:
    lease = store.leases.acquire("learner", "bench", ttl_s=600.0)
    store.steps.begin(lease, Manifest(step=1, incarnation=1, groups=groups, drops=[]))
    store.steps.retire(lease, 1)
    store.sweep()


def _ids(rng: np.random.Generator, count: int) -> np.ndarray:
    return (rng.zipf(1.1, count) % WORDS).astype(np.int32)


def _turn(rng: np.random.Generator, response: int) -> PlayedTurn:
    return PlayedTurn(
        ids=_ids(rng, response), logprobs=-rng.random(response, dtype=np.float32), spans=[_span(response)],
        action="go to cabinet 3", digest="0" * 32)


def _span(response: int) -> VersionSpan:
    return VersionSpan(version=Version(incarnation=1, step=0, digest="0" * 32), start=0, end=response)


def _episode(ticket: Ticket, rng: np.random.Generator) -> Episode:
    prompt, steps = _ids(rng, PROMPT), list[Step]()
    for _ in range(TURNS):
        prompt = np.concatenate([prompt[:REPEATED], _ids(rng, PROMPT - REPEATED)])
        turn = _turn(rng, RESPONSE)
        steps.append(Step(
            observation="You arrive at cabinet 3. The cabinet 3 is closed.", prompt_ids=prompt, response_ids=turn.ids,
            logprobs=turn.logprobs, spans=turn.spans, action=turn.action, valid=True, admissible=True, reward=0.0))
    return Episode(ticket=ticket, steps=steps, won=False, end="turns", worker="bench", attempt=1, seconds=1.0,
                   engine="bench")
