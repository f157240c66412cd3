"""The async client of the environment API: one episode sees one unbroken game, whatever happens to the servers.

    episode ──element──▶ batcher of its replica ──one POST for all that queued meanwhile──▶ server
       ▲                                                                                      │
       └──────── result, typed error, or no answer: ask again, here or elsewhere ◀────────────┘

If a server has lost a session that cannot be rebuilt from its actions, it asks for the results so far, and gets them.
Retries are safe because the API is idempotent: a repeated reset or step gives its recorded result, or its session is
rebuilt.
The rendezvous hash of an episode's id chooses its first replica. The episode stays there until that replica fails.
A request without an answer is sent again on another connection after some seconds, because a connection can be dead
without a sign. A reset of a live environment acts on the world: it is sent again only after its server's full time for
an answer, and to the same server, which may hold the session.
A replica that failed or is full gets no requests for a while; the next one in the episode's ranking serves meanwhile.
If that one cannot rebuild the session, because the environment is live, the episode waits for its own replica.
While all replicas are unavailable or full, or a service behind them is unavailable, calls wait, and nothing counts
against an episode.
The list of replicas may change at any time. If an episode's replica is removed, it continues at another, which
rebuilds it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import httpx
import msgspec

from envservice.base import Outcome
from envservice.client.request_batching import (
    BACKOFF_S,
    SHARE,
    ElementReply,
    Later,
    NotSent,
    Replica,
    Unreachable,
)
from envservice.wire import MAX_ACTION, Info, TaskList
from services.amounts import number_of, rounded
from services.errors import EnvFault, ReplayDiverged, UnknownTask
from services.http.bounded import PLAIN, UNLIMITED
from services.rewards import LARGEST_REWARD, within_reward_limit

CONNECT_S = 5.0
LOOK_S = 1.0
"""Longest pause before the list of servers is read again, while all of them are paused."""
LATER_S = 1.0
"""Pause after the server had no room for one element of a request, or a service behind it was unavailable."""
FAULTS: Mapping[str, type[EnvFault]] = {
    "replay_diverged": ReplayDiverged, "engine_mismatch": ReplayDiverged, "unknown_task": UnknownTask}
"""Maps the type of a problem to its fault. All others are an EnvFault."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Outcome):
    """An outcome with the digest of the game so far."""

    digest: str


def result_of(element: dict[str, Any], where: str) -> Result:
    """Returns the result in an element of a reply. Raises EnvFault if it is a problem or no result. `where` names the
    game, step and server."""
    if "type" in element:
        kind = element["type"]
        raise FAULTS.get(kind, EnvFault)(f"{kind}: {element.get('message')} ({where})")
    try:
        result = msgspec.convert(element, Result)
    except msgspec.ValidationError as error:
        raise EnvFault(f"the answer is not a result: {error} ({where})") from error
    if not within_reward_limit(result.reward):
        raise EnvFault(f"the reward is {result.reward:g}, and at most {LARGEST_REWARD:g} in size is taken ({where})")
    return result


class HeldElsewhere(Unreachable):
    """The session is live, and another replica holds it. Only that replica may continue the episode."""


class EnvClient:
    """A client of one or several replicas of the same environment.

    While servers answer others, `timeout_s` bounds each call with all its retries, and `attempts` the failed requests
    of one call. While no server answers anybody, or all are full or wait for a service behind them, calls wait for at
    most `outage_s` (None: as long as timeout_s). Calls raise ReplayDiverged if a rebuilt game differs, and EnvFault for
    every other failure; they never make up a result.
    """

    def __init__(
        self, urls: Sequence[str], token: str | None = None, *, timeout_s: float = 60.0, attempts: int = 30,
        outage_s: float | None = None,
    ) -> None:
        if not urls:
            raise ValueError("a client needs the URL of at least one environment server")
        headers = PLAIN | ({} if token is None else {"authorization": f"Bearer {token}"})
        self._answer_s = timeout_s * SHARE
        timeout = httpx.Timeout(self._answer_s, connect=min(CONNECT_S, self._answer_s))
        # Proxies of the environment are ignored: servers are on this machine or in the cluster.
        self._http = httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=False, limits=UNLIMITED)
        self.live = False
        """Whether the environment acts on the world. False until `info` has returned."""
        self._replicas = [self._replica(url.rstrip("/")) for url in urls]
        self._timeout_s = timeout_s
        self._outage_s = timeout_s if outage_s is None else max(outage_s, timeout_s)
        self._attempts = attempts
        self._under_way = 0  # calls that have not ended

    async def __aenter__(self) -> EnvClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections."""
        await self._http.aclose()

    async def info(self) -> Info:
        """Returns the environment that the servers play."""
        info, _ = await self.call(lambda: self._replicas, lambda replica: replica.get("/v1/info", Info))
        self.live = info.replay == "live"
        return info

    async def tasks(self, split: str) -> TaskList:
        """Returns the tasks of one split, sorted, with their digest."""
        tasks, _ = await self.call(lambda: self._replicas,
                                   lambda replica: replica.get(f"/v1/tasks/{split}", TaskList))
        return tasks

    def episode(self, episode_id: str, task: str) -> EpisodeHandle:
        """Makes a handle on one episode, which sends nothing before its reset. Each attempt needs an id of its own."""
        return EpisodeHandle(self, episode_id, task)

    def use(self, urls: Sequence[str]) -> None:
        """Sends all requests from now on to these servers instead. Those that are in both lists keep their state."""
        replicas = {replica.url: replica for replica in self._replicas}
        wanted = [url.rstrip("/") for url in urls]
        if list(replicas) != wanted:
            self._replicas = [replicas.get(url) or self._replica(url) for url in wanted]

    def _replica(self, url: str) -> Replica:
        return Replica(self._http, url, lambda: self.live, self._answer_s)

    def ranking(self, key: str, home: Replica | None = None) -> list[Replica]:
        """Ranks replicas by rendezvous hash: all clients rank alike, and a lost replica moves only its episodes.

        `home`, the replica that holds the session, comes first unless it was removed.
        """
        return sorted(self._replicas, key=lambda replica: (
            replica is not home, hashlib.blake2b(f"{replica.url} {key}".encode()).digest()))

    @property
    def away(self) -> bool:
        """Whether the last request to each replica failed, or met an unavailable service behind it."""
        return all(replica.failing or replica.unavailable for replica in self._replicas)

    async def call(self, ranking: Callable[[], list[Replica]],
                   ask: Callable[[Replica], Awaitable[T]]) -> tuple[T, Replica]:
        """Asks the first replica that is not paused, until one answers. Returns the answer and that replica. Raises
        EnvFault.

        A failed request counts against the call only if some server has answered since the call's last failure. So a
        request that crashes every server is given up, and one that meets an outage waits until it ends. After
        HeldElsewhere, every failed request counts: a server answers, so this is no outage.
        """
        shut: dict[Replica, float] = {}
        last: Exception | None = None
        failures, answers, held, asked = 0, self._answers(), False, False
        began = asyncio.get_running_loop().time()
        limit = asyncio.timeout(self._timeout_s)
        self._under_way += 1
        try:
            async with limit:
                while failures < self._attempts:
                    replica = await _first_open(ranking, shut)
                    asked = True
                    try:
                        return await ask(replica), replica
                    except Unreachable as error:
                        last, before, answers = error, answers, self._answers()
                        held = held or isinstance(error, HeldElsewhere)
                        if held or answers != before:
                            failures += 1
                            continue
                    except Later as error:
                        shut[replica], last = time.monotonic() + error.retry_after, error
                    limit.reschedule(self._later(began))
        except TimeoutError:
            outage = limit.when() == began + self._outage_s > began + self._timeout_s
            none = "no failure" if asked else "not asked, since all servers had failed in other calls"
            raise self._late(asyncio.get_running_loop().time() - began, last or none, outage=outage) from last
        finally:
            self._under_way -= 1
        raise EnvFault(f"{failures} requests failed; last: {last}") from last

    def _late(self, waited: float, last: Exception | str, *, outage: bool) -> EnvFault:
        """Makes the fault of a call whose time ended after `waited` seconds. A server steps one game at a time, so the
        call may only have waited for others."""
        key, others = ("env.outage_seconds", 0) if outage else ("env.call_seconds", self._under_way - 1)
        line = f"; {number_of(others, 'other call')} waited too: give more env.servers or fewer rollout.slots"
        what = f"no answer within {rounded(waited)} s ({key}); last: {last}"
        return EnvFault(what + line if others else what)

    def _answers(self) -> int:
        return sum(replica.answers for replica in self._replicas)

    def _later(self, began: float) -> float:
        """Returns the new deadline of a call that met an outage, by the clock of the event loop."""
        return min(asyncio.get_running_loop().time() + self._timeout_s + BACKOFF_S[1], began + self._outage_s)


class EpisodeHandle:
    """One episode. Await its calls one after the other. A call that raised may be repeated."""

    def __init__(self, client: EnvClient, episode_id: str, task: str) -> None:
        self.episode_id = episode_id
        self.task = task
        self.replays = 0
        """Number of times that the session was rebuilt, on another server or after a restart."""
        self._client = client
        self._home: Replica | None = None
        self._unsure: set[Replica] = set()  # replicas that did not answer a reset, and may hold its session
        self._actions: list[str] = []
        self._results: list[Result] = []
        self._digest = ""

    async def reset(self) -> Result:
        """Starts the episode, or starts it again, and returns the first observation."""
        result = await self._ask("reset", {"episode_id": self.episode_id, "task": self.task})
        self._actions, self._results, self._digest = [], [], result.digest
        return result

    async def step(self, action: str) -> Result:
        """Takes one action. It is cut at MAX_ACTION characters, the server's limit: a long action is the policy's
        mistake, not a fault."""
        action = action[:MAX_ACTION]
        result = await self._ask("step", {
            "episode_id": self.episode_id, "task": self.task, "actions": self._actions, "action": action,
            "digest": self._digest,
        })
        self._actions.append(action)
        self._results.append(result)
        self._digest = result.digest
        return result

    async def close(self) -> None:
        """Frees the session, also one that a reset without an answer has opened.

        It asks once: a server that does not answer frees the session when its lease ends.
        """
        element = msgspec.json.encode({"episode_id": self.episode_id})

        async def free(replica: Replica) -> None:
            with suppress(Unreachable, Later):
                await replica.ask("close", element)

        await asyncio.gather(*map(free, self._unsure | ({self._home} if self._home else set())))

    async def _ask(self, verb: str, element: dict[str, Any]) -> Result:
        body = msgspec.json.encode(element)
        waits_for_home = False

        def ranking() -> list[Replica]:
            ranked = self._client.ranking(self.episode_id, self._home)
            return ranked[:1] if waits_for_home and ranked[0] is self._home else ranked

        async def ask(replica: Replica) -> ElementReply:
            nonlocal waits_for_home
            if verb == "reset":
                self._unsure.add(replica)
            try:
                reply = await replica.ask(verb, body)
            except Unreachable as error:
                if verb == "reset" and self._client.live and not isinstance(error, NotSent):
                    self._home, waits_for_home = replica, True
                raise
            self._unsure.discard(replica)
            if reply.element.get("type") == "session_lost" and replica is not self._home and ranking()[0] is self._home:
                waits_for_home = True
                raise HeldElsewhere(f"{replica.url} does not hold this live session")
            if reply.element.get("type") == "transcript_missing":
                complete = msgspec.json.encode({**element, "transcript": self._results})
                reply = await replica.ask(verb, complete)
            kind = reply.element.get("type")
            replica.unavailable = kind == "unavailable"
            if kind in ("full", "unavailable"):
                waits_for_home = waits_for_home or (replica.unavailable and self._client.live)
                raise Later(f"{replica.url}: {reply.element.get('message')}", LATER_S)
            return reply

        reply, replica = await self._client.call(ranking, ask)
        self._home = replica
        self.replays += reply.rebuilt
        return result_of(reply.element, f"{self.task} at step {len(self._actions)} on {replica.url}")


async def _first_open(ranking: Callable[[], list[Replica]], shut: dict[Replica, float]) -> Replica:
    while True:
        opens = {replica: max(replica.open_at, shut.get(replica, 0.0)) for replica in ranking()}
        now = time.monotonic()
        for replica, open_at in opens.items():
            if open_at <= now:
                return replica
        await asyncio.sleep(min(LOOK_S, min(opens.values()) - now))
