"""A run's folder as training leaves it, made by the learner's own credit and archive without a model."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np

from learner.credit.registry import completed
from learner.credit.types import Credit
from learner.rows.batch import assign_credit, credit_columns
from services.config.file import dump_config
from services.config.sections import CreditSection
from services.config.tree import Config
from services.records import Episode, Step, Ticket, Version, VersionSpan, choices_digest
from services.store.archive import ArchiveRow, EpisodeArchive
from services.telemetry.metrics_file import append_row

EVIL = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
ROOMS = ("You are in a room.", "You see a desk 1.", "Nothing happens.", EVIL)
TAGS = ("planning", "explore", "reflection", "monitor")
ACTIONS = ("go to desk 1", "look", "take cup \N{RIGHT-TO-LEFT OVERRIDE}1", "</code><b>go</b>")




def lists() -> list[tuple[str, ...]]:
    """Returns the lists of admissible actions: all pairs."""
    return list(combinations(ACTIONS, 2))


def make_step(rng: np.random.Generator, room: int, reward: float = 0.0) -> Step:
    size = int(rng.integers(2, 6))
    made = _make_step(rng, room, size, reward)
    fitting = [actions for actions in lists() if (made.action in actions) == made.admissible]
    return msgspec.structs.replace(made, choices=choices_digest(fitting[size % min(2, len(fitting))]))


def _make_step(rng: np.random.Generator, room: int, size: int, reward: float) -> Step:
    return Step(
        observation=ROOMS[room], prompt_ids=rng.integers(0, 90, 12, dtype=np.int32),
        response_ids=rng.integers(0, 90, size, dtype=np.int32), logprobs=-rng.random(size, dtype=np.float32),
        spans=[VersionSpan(version=Version(incarnation=1, step=0), start=0, end=size)],
        action=ACTIONS[int(rng.integers(len(ACTIONS)))], valid=bool(rng.random() > 0.2),
        admissible=bool(rng.random() > 0.3), reward=reward, tag=TAGS[room])


def make_group(seed: int, *, kind: str = "train", size: int = 4, group: str = "") -> list[Episode]:
    rng = np.random.default_rng(seed)
    episodes = []
    for k in range(size):
        won = bool(rng.random() < 0.5)
        steps = [make_step(rng, 0)] + [make_step(rng, int(rng.integers(len(ROOMS)))) for _ in range(rng.integers(1, 6))]
        steps[-1] = msgspec.structs.replace(steps[-1], reward=10.0 * won)
        ticket = Ticket(group=group or f"train/{seed:08d}", k=k, size=size, task=f"toy/train/{'ab'[seed % 2]}-{seed}",
                        seed=k, kind=kind, temperature=1.0, max_steps=6, task_type=f"type {'ab'[seed % 2]}")
        episodes.append(Episode(ticket=ticket, steps=steps, won=won, end="won" if won else "turns", worker="w",
                                attempt=1, seconds=0.1, engine="e", final_observation="It is over."))
    return episodes


def make_run(folder: Path, *, steps: int = 3, groups: int = 2, **credit: object) -> Path:
    """Writes `steps` learner steps of `groups` groups, and an evaluation of two tasks before and after."""
    section = completed(CreditSection.model_validate(credit))
    config = Config(name=folder.name, runs_dir=folder.parent, steps=steps, learner={"credit": section.model_dump()})
    folder.mkdir(parents=True)
    dump_config(config, folder / "config.yaml")
    (folder / "run.json").write_text(json.dumps({"format": 1}))
    with EpisodeArchive(folder / "episodes") as archive:
        for step in range(1, steps + 1):
            played = [make_group(step * 100 + g) for g in range(groups)]
            credits = assign_credit(played, config.learner.credit)
            archive.write(step, [
                ArchiveRow(episode=episode, outcome="trained", columns=columns(credit, episode, k))
                for group, credit in zip(played, credits, strict=True) for k, episode in enumerate(group)])
            append_row(folder / "metrics.jsonl", metrics_row(step) | {"episode_length": 20.0 - steps - step})
        for step in (0, steps):
            label = f"step-{step:06d}"
            played = [make_group(900 + t, kind="eval", size=1, group=f"eval/{label}/1/{t:05d}") for t in range(2)]
            archive.write(step, [ArchiveRow(episode=group[0], outcome="evaluated") for group in played],
                          part=f"{label}-T1")
            append_row(folder / "evaluations.jsonl", {
                "label": label, "step": step, "version": f"1.{step}", "split": "valid", "temperature": 1.0, "tasks": 2,
                "success_rate": 0.5, "success_low": 0.1, "success_high": 0.9,
                "success_by_task": {group[0].ticket.task: float(group[0].won) for group in played}})
    return folder


def columns(credit: Credit, episode: Episode, k: int) -> dict[str, object]:
    """Returns columns as the training loop writes them, with learner logprobs a little different from the sampler's."""
    return credit_columns(credit, k) | {"learner_logprobs": [step.logprobs + 0.01 for step in episode.steps]}


def metrics_row(step: int) -> dict[str, object]:
    return {"step": step, "success_rate": 0.1 * step, "episode_length": 20.0 - step, "grad_norm": None}
