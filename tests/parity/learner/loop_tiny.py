"""Runs a training loop over a real Redis, with a worker that plays the issued tickets; or with a controller as well."""

from contextlib import nullcontext
from functools import partial

import msgspec
import numpy as np
from learner_tiny import make_config, make_step

from learner.actor import onloaded
from learner.checkpoints.checkpoint import Checkpoints
from learner.loop import Leaving, TrainingLoop
from learner.observer import Observer
from learner.trainer import Learner
from learner.weights.sender import WeightSender
from services.controller.controller import Controller, Hooks
from services.controller.supervise import Supervisor
from services.records import Episode, Ticket
from services.seeds import seed_for
from services.store.archive import EpisodeArchive

STEPS = 4


def episode(claim):
    """Makes the episode of a ticket, as a function of the ticket alone."""
    rng = np.random.default_rng(seed_for(claim.ticket.id))
    won = bool(rng.random() < 0.5)
    steps = [make_step(rng, observation=str(rng.integers(3))) for _ in range(rng.integers(1, 5))]
    steps[-1] = msgspec.structs.replace(steps[-1], reward=10.0 * won)
    return Episode(ticket=claim.ticket, steps=steps, won=won, end="won" if won else "turns", worker=claim.worker,
                   attempt=claim.attempt, seconds=0.1, engine="e")


def issue(store, numbers):
    """Issues groups of four."""
    lease = store.leases.acquire("controller", "c")
    for number in numbers:
        group = f"train/{number:08d}"
        tickets = [Ticket(group=group, k=k, size=4, task=f"t/{number}", seed=k, kind="train", temperature=1.0,
                          max_steps=5) for k in range(4)]
        assert store.issue(lease, tickets, capacity=100)


def play(store, numbers, *, play_one=episode):
    """Issues and finishes groups of four. Policy step 0 samples all of them, so staleness must allow for it."""
    issue(store, numbers)
    while claims := store.claim("w", 100):
        for claim in claims:
            assert store.commit_episode(claim, play_one(claim)) == "accepted"


class Crash(Exception):
    pass


def run(store, folder, model_path, rank_group, *, crash_at=None, leave_at=None, offloads=False, ask=None,
        meanwhile=lambda check: None, mirrored=None, wanted=lambda: None,
        slow=lambda version: None, **sections):
    """One life of a learner: up to the end, to the publication of `crash_at`, or until it is asked to leave.

    `leave_at`: "waiting 2" asks while it waits for groups after the publication of step 2, "publishing 2" before it.
    `offloads`: outside its turns the learner's states wait in host memory. `ask` calls the registry of transfers.
    `meanwhile` takes the loop's own check while the loop waits until the current version may be replaced.
    `mirrored` returns the step of the newest checkpoint in an object store. `wanted`: a version that a worker lacks.
    `slow` holds up the publication of a version in host memory.
    """
    config = make_config(staleness=STEPS).model_copy(update={"runs_dir": folder})
    config = type(config).model_validate(
        config.model_dump() | {"steps": STEPS, "checkpoint": {"every": 2, "keep": 1}} | sections)
    published, replaced = [], []

    def publish(version, packed):
        if version.step == crash_at:
            raise Crash
        slow(version)
        published.append((version, packed))

    def check():
        if leave_at and leave_at == f"waiting {published[-1][0].step}":
            raise Leaving

    def before_publish(version, check):
        replaced.append(version)
        meanwhile(check)
        if leave_at == f"publishing {version.step + 1}":
            raise Leaving

    learner = Learner(config, model_path, rank_group)
    if offloads:
        learner.offload()
    sender = WeightSender(learner.sender, publish, wanted, way=config.transfer, ask=ask,
                          seconds=config.weights.seconds)
    with EpisodeArchive(folder / "episodes") as archive:
        TrainingLoop(
            config=config, learner=learner, store=store, lease=store.leases.acquire("learner", "l"), archive=archive,
            checkpoints=Checkpoints(folder / "checkpoints", 1),
            observer=Observer(metrics=folder / "metrics.jsonl", patience_s=60.0),
            sender=sender, before_publish=before_publish, check=check, mirrored=mirrored,
            gpu_turn=partial(onloaded, learner) if offloads else nullcontext,
        ).run()
    return learner, published, replaced


def run_all_parts(store, config, model_path, rank_group, *, tickets, play_one, check=lambda: None, task_type=str,
                  by_type=False):
    """Lets a controller, a worker and a learner take turns until the end, or until `check` raises. Returns the learner.

    `tickets` are the controller's, and `play_one` makes the episode of a claim. `check` is called in each turn between
    the work of the learner and that of the controller.
    """
    controller = Controller(
        config=config, store=store, lease=store.leases.acquire("controller", "c"),
        supervisor=Supervisor(print, config.supervision), tickets=tickets, request=lambda version: None,
        hooks=Hooks(note=print, evaluated=print, task_type=task_type, tick=lambda: None))

    def others():
        check()
        controller.tick()
        for claim in store.claim("w", 100):
            store.commit_episode(claim, play_one(claim))

    folder, learner = config.runs_dir, Learner(config, model_path, rank_group)
    with EpisodeArchive(folder / "episodes") as archive:
        TrainingLoop(
            config=config, learner=learner, store=store, lease=store.leases.acquire("learner", "l"), archive=archive,
            checkpoints=Checkpoints(folder / "checkpoints", 1),
            observer=Observer(metrics=folder / "metrics.jsonl", by_type=by_type),
            sender=WeightSender(learner.sender, lambda *_: None), before_publish=lambda *_: None, check=others,
        ).run()
    return learner
