"""Plays on real servers for a long time and checks for growing memory, leaks, and games that change when rebuilt.

    players ──HTTP──▶ `gagpo serve-env`, one process per environment ◀──/proc── a sample every PERIOD_S

Each session plays one game after the other, at random, with the client that runs use. If a game lists no actions, its
scripted player acts, and half of its actions are noise. Before one step in fifty the player closes its session, so the
server has to rebuild it and prove that by its digest. The slope of memory is a regression over means of blocks, after a
warm-up in which caches fill. It uses blocks because neighbouring samples are not independent. Descriptors and JVMs are
counted before the first game and after the last, with all connections closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import psutil

from envservice.base import Outcome
from envservice.client.client import EnvClient, EpisodeHandle
from envservice.registry import find_spec, make_template
from lab.bench.figures import Figure, Report, silent
from lab.bench.served import served
from services.config.env import EnvSection
from services.config.sections import SftSection
from services.errors import EnvFault, ReplayDiverged, UserError
from services.statistics import student_t

MINUTES = 30.0
SESSIONS = "alfworld=150,webshop=40,scienceworld=10"
WARM_UP = 0.25
"""Share of the time, at the start, that the memory slope leaves out."""
BLOCKS = 12
"""Number of blocks into which the rest of the time is divided."""
PERIOD_S = 2.0
FEWEST_LOOKS = 6
"""Fewest samples after the warm-up: a slope with an interval needs three blocks."""
STEPS = 30
"""Steps of a game that does not end by itself."""
LOST = 0.02
"""Share of steps before which the session is closed."""
CALL_S = 180.0
"""Deadline in seconds of one call. It is long because sessions queue for a JVM."""
SETTLE_S = 3.0
"""Seconds for connections and processes to end before the last count."""
_BLANK = re.compile(r"<[^>]*>|\b(?:OBJ|LOC)\b")
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Look:
    """One sample of a server."""

    at_s: float
    own_mib: float
    """Resident memory of the server process in MiB."""
    all_mib: float
    """Resident memory of the server and its JVMs in MiB."""
    descriptors: int
    engines: int
    """Number of child processes, including zombies."""


@dataclass(slots=True)
class ServerTally:
    """Counts of the games on one server, of the environment `name`."""

    name: str
    episodes: int = 0
    steps: int = 0
    unlisted: int = 0
    """Steps that said `look`, because the environment neither lists actions nor has a scripted player."""
    replays: int = 0
    diverged: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    looks: list[Look] = field(default_factory=list[Look])


def run(report: Report = silent, *, minutes: float = MINUTES, sessions: str = SESSIONS) -> list[Figure]:
    """Starts a server for each environment in `sessions` (`name=number`, with commas) and plays for `minutes`.

    Raises UserError if `sessions` cannot be read, one server cannot hold them, or `minutes` show no slope of memory.
    """
    wanted, least = read_sessions(sessions), FEWEST_LOOKS * PERIOD_S / (1 - WARM_UP) / 60
    if minutes < least:
        raise UserError(f"--minutes {minutes:g} are too few for a slope of memory", f"give {least:.1f} or more")
    tallies = asyncio.run(_soak(wanted, 60 * minutes, report))
    return [figure for played in tallies.values() for figure in _figures(played)]


def read_sessions(text: str) -> dict[str, int]:
    """Returns a dict from environment to number of sessions. Raises UserError."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if not (name and number.isdecimal() and int(number)):
            raise UserError(f"--sessions has {part!r}", f"write it as {SESSIONS}")
        find_spec(name)
        found[name] = int(number)
    return found


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Returns (slope, low, high) of a regression line through (x, y), with Student's 95% interval. Needs 3 points."""
    n = len(points)
    mean_x, mean_y = (math.fsum(values) / n for values in zip(*points, strict=True))
    square = math.fsum((x - mean_x) ** 2 for x, _ in points)
    estimate = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / square
    rest = math.fsum((y - mean_y - estimate * (x - mean_x)) ** 2 for x, y in points)
    half = student_t(0.95, n - 2) * math.sqrt(rest / (n - 2) / square)
    return estimate, estimate - half, estimate + half


def hourly(looks: Sequence[Look], *, engines: bool) -> tuple[float, float, float]:
    """Returns MiB per hour with its interval, over means of blocks after the warm-up. `engines`: with children."""
    first, last = looks[0].at_s, looks[-1].at_s
    start = first + WARM_UP * (last - first)
    blocks: dict[int, list[Look]] = {}
    for look in looks:
        if look.at_s >= start:
            blocks.setdefault(min(BLOCKS - 1, int(BLOCKS * (look.at_s - start) / (last - start))), []).append(look)
    return slope([(statistics.fmean(look.at_s for look in block) / 3600,
                   statistics.fmean(look.all_mib if engines else look.own_mib for look in block))
                  for block in blocks.values()])


async def _soak(wanted: dict[str, int], seconds: float, report: Report) -> dict[str, ServerTally]:
    played = {name: ServerTally(name) for name in wanted}
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(_server(name, number)) for name, number in wanted.items()}
        report("lists of games", 0, 1)
        tasks = {name: await _tasks(url) for name, (_, url) in servers.items()}
        until = time.monotonic() + seconds
        watches = [asyncio.create_task(_watch(process, played[name])) for name, (process, _) in servers.items()]
        watches.append(asyncio.create_task(_report(played, seconds, report)))
        async with asyncio.TaskGroup() as group:
            for name, (_, url) in servers.items():
                players = [random.Random(number) for number in range(wanted[name])]
                group.create_task(_play_all(url, tasks[name], players, played[name], until))
        for watch in watches:
            if watch.done():
                watch.result()  # the sampling stopped early: raise its error
            watch.cancel()
        await asyncio.sleep(SETTLE_S)
        for name, (process, _) in servers.items():
            played[name].looks.append(_look(process))
    return played


async def _report(played: dict[str, ServerTally], seconds: float, report: Report) -> None:
    since = time.monotonic()
    while True:
        steps = ", ".join(f"{name} {one.steps} steps" for name, one in played.items())
        report(steps, int(min(seconds, time.monotonic() - since) / 60), math.ceil(seconds / 60))
        await asyncio.sleep(PERIOD_S)


@contextlib.contextmanager
def _server(name: str, sessions: int) -> Iterator[tuple[psutil.Process, str]]:
    """Starts one environment server. Yields its process and URL. Raises UserError if it holds fewer sessions."""
    with served(["--env", name, f"env.max_sessions={sessions}"]) as server:
        if server.sessions < sessions:
            raise UserError(f"{sessions} sessions of {name} are asked for, and {server.sessions} fit into this "
                            "machine's memory", "ask for fewer")
        yield psutil.Process(server.pid), server.url


async def _watch(process: psutil.Process, played: ServerTally) -> None:
    while True:
        played.looks.append(_look(process))
        await asyncio.sleep(PERIOD_S)


def _look(process: psutil.Process) -> Look:
    own = process.memory_info().rss
    engines = process.children(recursive=True)
    total = own
    for engine in engines:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended after it was listed
            total += engine.memory_info().rss
    return Look(time.monotonic(), own / _MIB, total / _MIB, process.num_fds(), len(engines))


async def _tasks(url: str) -> list[str]:
    """Returns the tasks of the first split. It is slow, because the server computes the digest of every game."""
    async with EnvClient([url], timeout_s=CALL_S) as client:
        return (await client.tasks(next(iter((await client.info()).splits)))).tasks


async def _play_all(
    url: str, tasks: list[str], players: list[random.Random], played: ServerTally, until: float,
) -> None:
    async with EnvClient([url], timeout_s=CALL_S) as client, asyncio.TaskGroup() as group:
        for rng in players:
            group.create_task(_player(client, tasks, rng, played, until))


async def _player(client: EnvClient, tasks: list[str], rng: random.Random, played: ServerTally, until: float) -> None:
    while time.monotonic() < until:
        episode = client.episode(f"soak/{rng.getrandbits(128):x}", rng.choice(tasks))
        try:
            await _play(episode, rng, played, until)
        except ReplayDiverged:
            played.diverged += 1
        except EnvFault as error:
            played.errors[str(error).partition(":")[0]] += 1
        played.replays += episode.replays
        played.episodes += 1
        await episode.close()


async def _play(episode: EpisodeHandle, rng: random.Random, played: ServerTally, until: float) -> None:
    now = await episode.reset()
    choose = chooser(played.name, now, rng)
    for _ in range(STEPS):
        if now.done or time.monotonic() > until:
            return
        if rng.random() < LOST:
            await episode.close()
        action = choose(now)
        now = await episode.step(action or "look")
        played.steps += 1
        played.unlisted += not action


def chooser(name: str, first: Outcome, rng: random.Random) -> Callable[[Outcome], str]:
    """Returns what plays an episode of an environment from its first outcome: a function from the latest outcome to an
    action, which is empty if nothing says what one may be."""
    spec = find_spec(name)
    teacher = spec.teacher
    if first.admissible_actions or teacher is None:
        return partial(_any_listed, rng=rng)
    player = teacher.player(first, rng, SftSection())
    template = make_template(EnvSection(name=name, prompt=next(iter(spec.prompts))))

    def taught(now: Outcome) -> str:
        action = template.parse(player.act(now)).action
        return rng.choice((action, teacher.disturb(action, first, now, rng)))

    return taught


def _any_listed(now: Outcome, *, rng: random.Random) -> str:
    """Returns one of the listed actions, with its placeholders filled with names of objects. Empty without a list."""
    names = str(now.info["objects"]).split("; ") if "objects" in now.info else now.observation.split()
    listed = rng.choice(now.admissible_actions or [""])
    return _BLANK.sub(lambda _: rng.choice(names or ["it"]), listed)


def _figures(played: ServerTally) -> Iterator[Figure]:
    name, first, last = played.name, played.looks[0], played.looks[-1]
    for what, engines in (("server", False), ("server and its engines", True)):
        if engines and not any(look.engines for look in played.looks):
            continue
        for part, value in zip(("", ", low", ", high"), hourly(played.looks[:-1], engines=engines), strict=True):
            yield Figure(name=f"{name}: memory slope of the {what}{part}", value=value, unit="MiB/h")
    yield Figure(name=f"{name}: memory of the server at the end, and at the start", value=last.own_mib, unit="MiB",
                 reference=first.own_mib)
    yield Figure(name=f"{name}: descriptors at the end, and at the start", value=last.descriptors, unit="",
                 reference=first.descriptors)
    yield Figure(name=f"{name}: engines at the end, and most of them", value=last.engines, unit="",
                 reference=max(look.engines for look in played.looks))
    for what, value in (("episodes", played.episodes), ("steps", played.steps), ("rebuilt sessions", played.replays),
                        ("episodes that diverged", played.diverged), ("errors", played.errors.total())):
        yield Figure(name=f"{name}: {what}", value=value, unit="")
    if played.unlisted:
        yield Figure(name=f"{name}: steps that said `look`, as no actions are listed", value=played.unlisted, unit="")
    for what, number in played.errors.most_common(5):
        yield Figure(name=f"{name}: error: {what[:60]}", value=number, unit="")
