"""Pages of `gagpo explore` over an archive of a million steps: 200 learner steps of 16 groups of 8 episodes.

One learner step is made with the real credit and archive code. The other files are copies of it, which cost the
explorer the same. Pages are requested in this process, so the times include no network.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lab.bench.figures import Figure, Report, silent
from services.config.file import dump_config
from services.config.tree import Config
from services.records import Episode, Step, Ticket, Version, VersionSpan

FILES, GROUPS, SIZE, TURNS, STATES = 200, 16, 8, 40, 300
PROMPT, RESPONSE = 120, 10


def run(report: Report = silent) -> list[Figure]:
    """Measures the seconds of the first index, of a start with cached indexes, and of each kind of page."""
    with tempfile.TemporaryDirectory() as folder:
        report("an archive of a million steps", 0, 2)
        archive = _archive(Path(folder) / "million")
        report("indexes and pages", 1, 2)
        return _measure(archive)


def _measure(run_folder: Path) -> list[Figure]:
    from starlette.testclient import TestClient

    from deploy.explorer.app import create_app
    from deploy.explorer.runs import open_runs

    figures = [Figure(name=f"{name}, {FILES * GROUPS * SIZE * TURNS:,} steps", unit="s",
                      value=_seconds(open_runs([run_folder])[0].groups))
               for name in ("first index", "start with indexes")]
    client = TestClient(create_app(open_runs([run_folder]), None), base_url="http://localhost")
    group = f"step-{FILES // 2:08d}/train/00000003"
    pages = {"overview": "/", "groups by spread": "/million/groups?sort=spread&desc=1",
             "group": f"/million/group/{group}", "episode": f"/million/episode/{group.replace('/', '/0/', 1)}"}
    for name, path in pages.items():
        client.get(path)  # compile the templates first
        figures.append(Figure(name=name, unit="s", value=_seconds(lambda path=path: client.get(path))))
    return figures


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _archive(folder: Path) -> Path:
    from learner.rows.batch import assign_credit, credit_columns
    from services.store.archive import ArchiveRow, EpisodeArchive

    config = Config(name=folder.name, runs_dir=folder.parent, steps=FILES)
    folder.mkdir()
    dump_config(config, folder / "config.yaml")
    (folder / "run.json").write_text(json.dumps({"format": 1}), encoding="utf-8")
    rng = np.random.default_rng(0)
    groups = [[_episode(rng, f"train/{g:08d}", k) for k in range(SIZE)] for g in range(GROUPS)]
    credits = assign_credit(groups, config.learner.credit)
    with EpisodeArchive(folder / "episodes") as archive:
        archive.write(1, [ArchiveRow(episode=episode, outcome="trained", columns=credit_columns(credit, k))
                          for group, credit in zip(groups, credits, strict=True) for k, episode in enumerate(group)])
    for step in range(2, FILES + 1):
        shutil.copy(folder / "episodes/step-00000001.parquet", folder / f"episodes/step-{step:08d}.parquet")
    return folder


def _episode(rng: np.random.Generator, group: str, k: int) -> Episode:
    won = bool(rng.random() < 0.5)
    steps = [Step(
        observation=f"You arrive at place {rng.integers(STATES)}. On it, you see nothing.",
        prompt_ids=rng.integers(0, 600, PROMPT, dtype=np.int32),
        response_ids=rng.integers(0, 600, RESPONSE, dtype=np.int32), logprobs=-rng.random(RESPONSE, dtype=np.float32),
        spans=[VersionSpan(version=Version(incarnation=1, step=0), start=0, end=RESPONSE)],
        action=f"go to place {rng.integers(STATES)}", valid=True, admissible=True,
        reward=10.0 * (won and t == TURNS - 1)) for t in range(TURNS)]
    ticket = Ticket(group=group, k=k, size=SIZE, task=f"bench/train/{group}", seed=k, kind="train", temperature=1.0,
                    max_steps=TURNS)
    return Episode(ticket=ticket, steps=steps, won=won, end="won" if won else "turns", worker="w", attempt=1,
                   seconds=0.0, engine="none", final_observation="The end.")
