"""A run at staleness 2 meets a step that cannot be trained: it says so, and ends well without that step's groups.

In its second life it waits for its one environment server. Meanwhile its engine is killed, all its processes are
stopped and go on again, and then the network to the server makes each kind of trouble.

A second "worker" hands in an episode with more logprobs than tokens, as no sampler should ever return. The learner
fails on it in each of its lives, until the run ends and names the step.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pytest
from ports import likely_port
from processes import gone

from deploy.members.env_server import EnvServer
from lab.faulty_proxy import FaultyProxy
from services.records import Episode, Step, Ticket, Version, VersionSpan
from services.store.redis_server import url_served_from
from services.store.store import Claim, Store
from services.telemetry.metrics_file import read_rows

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(1800)]

STEPS = 4
LIFE_S = 600.0
TICKETS_AHEAD = 12
"""Number of tickets that a run at staleness 2 issues before its first step: 3 steps of 2 groups of 2 episodes."""
GROUP_SIZE = 2
TINY = (
    "--config", "alfworld-tiny-async", f"steps={STEPS}", "env.max_steps=6", "model.layers=1", "model.intermediate=64",
    "sft.demos_per_game=1", "sft.minutes=0.05", "rollout.slots=8", "rollout.kv_cache_gb=0.25", "learner.staleness=2",
    "learner.groups_per_step=2", f"learner.group_size={GROUP_SIZE}", "learner.step_attempts=2", "eval.every=0",
    "eval.panel=0", "eval.compare_cold_start=false", "checkpoint.every=1",
)


def broken(ticket: Ticket) -> Episode:
    """Returns a broken episode, sampled by the oldest weights that the ticket allows, so that no step is too late for
    it."""
    step = Step(
        observation="", prompt_ids=np.arange(5, dtype=np.int32), response_ids=np.arange(2, dtype=np.int32),
        logprobs=np.zeros(99, np.float32), action="look", valid=True, admissible=True, reward=0.0,
        spans=[VersionSpan(version=Version(incarnation=1, step=ticket.min_step), start=0, end=2)])
    return Episode(ticket=ticket, steps=[step], won=False, end="lost", worker="rogue", attempt=1, seconds=0.1,
                   engine="none")


def hand_in_a_broken_episode(folder: Path) -> bool:
    """Commits the episode for the newest ticket, unless its worker was faster. The first writer wins."""
    url = url_served_from(folder / "redis") if (folder / "run.json").exists() else None
    if url is None:
        return False
    store = Store(url, json.loads((folder / "run.json").read_text())["run"])
    entries = store.connection.read(("XRANGE", "tickets", "-", "+"))[0]
    if store.counts().next_group * GROUP_SIZE < TICKETS_AHEAD or not entries:
        return False
    entry, fields = entries[-1]
    ticket = msgspec.msgpack.decode(fields[b"ticket"], type=Ticket)
    claim = Claim(ticket=ticket, attempt=1, entry=entry.decode(), worker="rogue", issued_at=0.0)
    return store.commit_episode(claim, broken(ticket)) == "accepted"


def lose_the_engine(run) -> None:
    """Kills the engine, of which nothing is asked now, and waits until it and its worker are gone."""
    lost = [run.find("ray::RolloutHost"), run.find("EngineCore")]
    lost[1].kill()
    run.wait_for("its worker's end", lambda: "rollout worker 0 died" in run.said)
    # Ray says that a worker is dead before its process has ended.
    run.wait_for("the end of both processes", lambda: all(gone(process.pid) for process in lost))


def stop_for_a_while(run) -> None:
    """Stops Redis, the learner, the sampler and its engine together, as a machine that sleeps does."""
    processes = [run.find(title) for title in ("gagpo-redis", "ray::LearnerRank", "ray::RolloutHost", "EngineCore")]
    for process in processes:
        process.suspend()
    time.sleep(3.0)
    for process in processes:
        process.resume()


def make_trouble(run, proxy: FaultyProxy) -> None:
    """Makes each kind of trouble until something has met it. Latency stays, since nothing but latency lets a step
    pass."""
    for trouble in ("reset", "truncated", "half-open", "latency"):
        proxy.trouble, met = trouble, proxy.met
        run.wait_for(trouble, lambda met=met: proxy.met > met, LIFE_S)


def check_audit(folder: Path) -> None:
    """Checks that the ledger accounts for all groups, the skipped step's two among them."""
    done = subprocess.run([sys.executable, "-m", "deploy.cli", "audit", str(folder), "--groups"], capture_output=True,
                          text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout
    assert "clean: no group was lost or trained twice" in done.stdout
    assert done.stdout.count("skipped by --skip-step") == 2


def test_a_run_without_a_step_that_cannot_be_trained_waits_for_servers_and_ends_well(
        train, tmp_path_factory, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)  # the server shall play what the run plays
    folder = tmp_path_factory.mktemp("runs") / "broken"
    run = train(folder, *TINY, f"runs_dir={folder.parent}", "name=broken")
    run.wait_for("the first tickets", lambda: hand_in_a_broken_episode(folder), LIFE_S)
    assert run.end(LIFE_S) == 2, run.tail()
    said = re.search(r"learner step (\d+) failed 2 times on train/\d+, train/\d+ \(ValueError: a step has .*"
                     r"--skip-step (\d+)", run.log.read_text())
    assert said, run.tail()
    assert said[1] == said[2]
    step = int(said[1])
    assert run.steps == list(range(1, step))

    server = EnvServer(0, likely_port(), folder / "config.yaml", tmp_path_factory.mktemp("server"))
    proxy = FaultyProxy((urlsplit(server.url).hostname, urlsplit(server.url).port))
    proxy.start()
    server.start()
    try:
        server.wait()
        again = train(folder, "--resume", str(folder), "--skip-step", str(step),
                      f'env.urls=["http://127.0.0.1:{proxy.port}"]', "env.call_seconds=30")
        again.wait_for("the samplers' start", lambda: "loading the samplers" in again.said)
        server.stop()
        again.wait_for("the wait for servers", lambda: "] waiting for environment servers" in again.said, LIFE_S)
        lose_the_engine(again)
        stop_for_a_while(again)
        proxy.trouble = "reset"  # before the server is back, so that the run cannot finish without trouble
        server.start()
        make_trouble(again, proxy)
        assert again.end(LIFE_S) == 0, again.tail()
    finally:
        server.stop()
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert 1 <= max(row["staleness_max"] for row in rows) <= 2
    check_audit(folder)
