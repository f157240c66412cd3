"""`python -m lab.chaos [--faults N] [--minutes M]`: breaks a run again and again, and prints the times to recover.

A tiny `gagpo train` plays against a Redis and an environment server of this program, through a proxy that can make the
network bad. At random moments it kills one part, stops it for a while, or disturbs the network. *back* is when the
part's new process answers or sends heartbeats. *trains* is when the next learner step begins after that. A run that
ends, or does not recover within LONGEST_S, is resumed. At the end `gagpo audit` must find nothing. Status 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from deploy.members.env_server import EnvServer
from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder
from lab.faulty_proxy import TROUBLES, FaultyProxy
from services.config.file import dump_config
from services.config.redis import RedisSection
from services.config.sections import SupervisionSection
from services.controller.supervise import Supervisor
from services.errors import Fault
from services.process.addresses import held_port
from services.store.redis_server import private_redis
from services.store.store import Store

ROOT = Path(__file__).resolve().parents[1]
TINY = (
    "alfworld-tiny", "steps=100000", "env.max_steps=6", "model.layers=1", "model.intermediate=64",
    "sft.demos_per_game=1", "sft.minutes=0.05", "rollout.slots=8", "rollout.kv_cache_gb=0.25",
    "learner.groups_per_step=2", "learner.group_size=2", "learner.threads=1", "learner.step_attempts=1000",
    "eval.every=20", "eval.episodes=4", "eval.panel=0", "eval.compare_cold_start=false", "checkpoint.every=2",
    "supervision.longest_pause_seconds=5")
TITLES = {"worker": "ray::RolloutHost", "vllm": "rollout.engine.process", "engine": "EngineCore",
          "learner": "ray::LearnerRank", "weights": "ray::WeightStore", "raylet": "raylet/raylet",
          "gcs": "gcs/gcs_server"}
"""The part of a command line that tells a process of the run."""
KILLED = (*TITLES, "environment", "redis", "driver")
PAUSED = ("worker", "engine", "learner", "raylet", "gcs", "environment", "redis", "driver")
LINKS = ("redis", "environment")
LONGEST_S = 300.0
TROUBLE_S = (1.0, 6.0)
"""Shortest and longest time for which a part is stopped or a link disturbed."""
FAULTS = (*(("kill", part) for part in KILLED), *(("stop", part) for part in PAUSED),
          *((trouble, part) for trouble in TROUBLES for part in LINKS))
PAUSE_S = (0.5, 4.0)
"""Between two faults."""
POLL_S = 0.1


class DisturbedRun:
    """One run with its Redis and its environment server."""

    def __init__(self, folder: Path, redis: str) -> None:
        self.folder, self.log = folder / "runs" / "chaos", folder / "chaos.log"
        self.resumed = 0
        self._direct = redis
        self.links = {"redis": _proxy(str(urlsplit(redis).hostname), int(urlsplit(redis).port or 0))}
        token, port = secrets.token_urlsafe(16), held_port()
        self.links["environment"] = _proxy("127.0.0.1", port)
        config = load_config(TINY[0], TINY[1:])
        dump_config(config, folder / "serve.yaml")
        self._servers = Supervisor(lambda _: None, SupervisionSection(longest_pause_seconds=5))
        self.server = EnvServer(0, port, folder / "serve.yaml", folder, token)
        self._servers.add(self.server)
        self._servers.wait("environment")
        own = redis.replace(f":{urlsplit(redis).port}/", f":{self.links['redis'].port}/")
        (folder / "password").touch(mode=0o600)
        (folder / "password").write_text(str(urlsplit(redis).password), encoding="utf-8")
        self._environ = {name: value for name, value in os.environ.items()
                         if name not in ("ALFWORLD_DATA", "RAY_ADDRESS")} | {
            "PYTHONPATH": str(ROOT), "GAGPO_ENV_TOKEN": token}
        self._first = ("--config", *TINY, f"runs_dir={folder / 'runs'}", "name=chaos",
                       f"redis.url={own.replace(':' + str(urlsplit(redis).password), '')}",
                       f"redis.password_file={folder / 'password'}",
                       f"env.urls=[http://127.0.0.1:{self.links['environment'].port}]")
        self._start(*self._first)
        self.store: Store | None = None

    def _start(self, *arguments: str) -> None:
        with self.log.open("ab") as out:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "deploy.cli", "train", *arguments], cwd=ROOT, stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, start_new_session=True, env=self._environ)

    def look_after(self) -> None:
        """Does what a job scheduler does: starts the server again when it died, and goes on with a run that ended."""
        self._servers.check()
        if self.driver.poll() is not None:
            self.resumed += 1
            last = self.log.read_text(errors="replace", encoding="utf-8").splitlines()[-1:]
            print(f"     the run ended with status {self.driver.returncode}: {' '.join(last)[:300]}", flush=True)
            time.sleep(1)
            self._start(*(("--resume", str(self.folder)) if (self.folder / "run.json").exists() else self._first))

    def find(self, part: str) -> psutil.Process | None:
        """The process of a part; None if there is none now."""
        if part == "driver":
            return psutil.Process(self.driver.pid) if self.driver.poll() is None else None
        root, title = psutil.Process(self.driver.pid), TITLES.get(part, "")
        if part in LINKS:
            root, title = psutil.Process(), "gagpo-redis" if part == "redis" else "serve-env"
        for process in root.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if title in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    return process
        return None

    def steps(self) -> int:
        """The newest learner step that began; -1 if there is none or Redis does not tell."""
        identity = RunFolder(self.folder).identity()
        if self.store is None and identity is not None:
            self.store = Store(self._direct, identity.run, timeout_s=2.0, settings=RedisSection(outage_seconds=1))
        try:
            return self.store.counts().last_step if self.store else -1
        except Fault:
            return -1

    def beating(self, since: float) -> bool:
        """Whether worker, learner and controller have all sent a heartbeat after this moment."""
        try:
            beats = self.store.state.beats() if self.store else {}
        except Fault:
            return False
        return {name.split("-")[0] for name, beat in beats.items() if beat["at"] > since} >= {
            "rollout", "learner", "controller"}

    def end(self) -> tuple[int, str]:
        """Ends the run; the status and the output of `gagpo audit`."""
        self.stop()
        done = subprocess.run([sys.executable, "-m", "deploy.cli", "audit", self.folder], cwd=ROOT, env=self._environ,
                              capture_output=True, encoding="utf-8", errors="replace", timeout=300, check=False)
        return done.returncode, done.stdout + done.stderr

    def tail(self) -> str:
        """The end of what the run printed."""
        return "".join(self.log.read_text(errors="replace", encoding="utf-8").splitlines(keepends=True)[-40:])

    def stop(self) -> None:
        """Ends the run and the server, if they have not ended.

        By SIGTERM: a shell that starts this program in the background makes it and its children ignore SIGINT.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.driver.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.driver.wait(LONGEST_S)
        self.driver.kill()
        self._servers.stop()


def _proxy(host: str, port: int) -> FaultyProxy:
    proxy = FaultyProxy((host, port))
    proxy.start()
    return proxy


def wait(world: DisturbedRun, happened: Callable[[], bool]) -> bool:
    """Whether it happens within LONGEST_S; `happened` is called again and again."""
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        world.look_after()
        with contextlib.suppress(psutil.NoSuchProcess):
            if happened():
                return True
        time.sleep(POLL_S)
    return False


def strike(world: DisturbedRun, kind: str, part: str, seconds: float) -> int | None:
    """Makes the fault; returns the process id that must be replaced."""
    if kind in TROUBLES:
        world.links[part].trouble = kind  # type: ignore[assignment]
        _hold(world, seconds)
        world.links[part].trouble = None
        return None
    wait(world, lambda: world.find(part) is not None)
    process = world.find(part)
    assert process is not None, f"there is no {part} to break"
    if kind == "kill":
        process.kill()
        return process.pid
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
        try:
            time.sleep(seconds)
        finally:
            process.resume()
    return None


def _hold(world: DisturbedRun, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        world.look_after()
        time.sleep(POLL_S)


def recover(world: DisturbedRun, part: str, gone: int | None) -> tuple[float, float] | None:
    """Seconds until the part is back, and until a learner step begins after that; None if LONGEST_S passed."""
    began, moment = time.monotonic(), time.time()

    def back() -> bool:
        process = world.find(part)
        if process is None or process.pid == gone:
            return False
        return world.server.ready() if part == "environment" else world.steps() >= 0 if part == "redis" else (
            world.beating(max(moment, process.create_time())))

    if not wait(world, back):
        return None
    back_s, step = time.monotonic() - began, world.steps()
    if not wait(world, lambda: world.steps() > step >= 0 and world.beating(moment)):
        return None
    return back_s, time.monotonic() - began


def faults(count: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Each kind of fault in random order, then again, `count` in all."""
    every = [*FAULTS]
    for number in range(count):
        if number % len(every) == 0:
            rng.shuffle(every)
        yield every[number % len(every)]


def table(found: dict[tuple[str, str], list[tuple[float, float]]]) -> str:
    """Recovery times in seconds."""
    lines = ["| fault | times | back, median | back, worst | trains, median | trains, worst |", f"|{6 * '---|'}"]
    for (kind, part), times in sorted(found.items()):
        columns = [f"{how(column):.1f}" for column in zip(*times, strict=True) for how in (statistics.median, max)]
        lines.append(f"| {kind} {part} | {len(times)} | {' | '.join(columns)} |")
    return "\n".join(lines)


def main() -> int:
    """Prints a line per fault, the table and the audit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=600.0, help="start no fault later; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], choices=[":".join(fault) for fault in FAULTS],
                        metavar="KIND:PART", help="these faults alone, in this order: %(choices)s")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rng, until = random.Random(args.seed), time.monotonic() + 60 * args.minutes
    plan = [tuple(one.split(":")) for one in args.only] or list(faults(args.faults, rng))
    with tempfile.TemporaryDirectory(prefix="chaos-") as root, private_redis(Path(root, "redis"), "127.0.0.1") as url:
        world = DisturbedRun(Path(root), url)
        try:
            return _break(world, plan, until, rng)
        finally:
            world.stop()


def _break(world: DisturbedRun, plan: Sequence[tuple[str, str]], until: float, rng: random.Random) -> int:
    """Makes the faults and prints what came of them. Returns the exit status."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    lost = 0 if wait(world, lambda: world.steps() > 0) else 1
    for number, (kind, part) in enumerate(() if lost else plan):
        if time.monotonic() > until:
            break
        _hold(world, rng.uniform(*PAUSE_S))
        gone = strike(world, kind, part, rng.uniform(*TROUBLE_S))
        times = recover(world, part, gone)
        print(f"{number + 1:>4} {kind} {part}: " + ("not recovered" if times is None else
              f"back {times[0]:.1f} s, trains {times[1]:.1f} s"), flush=True)
        if times is None:
            lost += 1
            print(world.tail(), flush=True)
            world.driver.kill()
            wait(world, partial(world.beating, time.time()))
            continue
        found[kind, part].append(times)
    steps, (status, said) = max(0, world.steps()), world.end()
    print(f"{table(found)}\n{sum(map(len, found.values()))} faults recovered from, {lost} not, {world.resumed} times "
          f"resumed, {steps} learner steps\n{said}", flush=True)
    return 1 if lost or status else 0


if __name__ == "__main__":
    sys.exit(main())
