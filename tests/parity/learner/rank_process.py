"""A rank group of several ranks: python rank_process.py WORLD NODES RENDEZVOUS MODEL OUT CASE...

The case `imitates` makes a cold start, and `goes-on` one that is interrupted twice. In each other case two steps, save
beside a third one, load, the third one on other groups.
NODES machines hold as many ranks each. The ranks are forked, so that torch is imported once.
"""

import math
import os
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from learner_tiny import (
    CASES,
    SKEW,
    VARIANTS,
    WRONG,
    Interrupted,
    interrupt,
    make_config,
    make_groups,
    make_learner,
    norms_of,
    weights,
)

from learner import step
from learner.checkpoints.file_facts import digests
from learner.cold_start import states
from learner.cold_start.rank_training import imitator, train_on_ranks
from learner.cold_start.sft import Budget, Order
from learner.cold_start.sft_data import ROWS, load_rows
from learner.cold_start.states import States
from learner.model import memory
from learner.model.probe import folder_canary
from learner.rank_group import STOP, RankGroup
from learner.rows.packing import pack_rows
from services.config.sections import SftSection
from services.process.rendezvous import Rendezvous

OFFLOADED = "offloaded"
COLLECTIVE_S = 240.0


def lead(learner, out):
    offloads = "offloaded" in out.name
    reports = []

    def offload():
        if offloads:
            learner.offload()
            (out / OFFLOADED).unlink()  # raises if the last rank, which is late, has not offloaded

    def onload():
        if offloads:
            learner.onload()

    for seed in range(2):
        offload()
        onload()
        reports.append(learner.train(make_groups(seed, step=seed)))
    checkpoint = out / "checkpoint"
    checkpoint.mkdir()
    offload()
    saving = learner.save(checkpoint)
    onload()
    torch.save({"weights": weights(learner), "metrics": [r.metrics for r in reports],
                "advantages": [c.advantages for r in reports for c in r.credits]}, out / "after.pt")
    packed = learner.pack()
    copied = learner.sender.copy(learner.sender.snapshot().digest)
    learner.train(make_groups(7, step=2))
    assert saving.result(240) == digests(checkpoint, [file.name for file in checkpoint.iterdir()])
    assert copied.result(240).buffer.tobytes() == packed.buffer.tobytes(), "the copy is not that of the snapshot"
    learner.load(checkpoint)
    learner.train(make_groups(2, step=2))
    learner.export(out / "export")
    off = np.subtract(learner.canary().logprobs, folder_canary(out / "export", half=False).logprobs)
    assert np.abs(off).max() < 1e-4, "the canary is not that of the exported model"


def parks_late(learner, out):
    """Makes this rank offload after the others, and note each time in a file."""
    offload = learner._host_offload.offload

    def late():
        time.sleep(0.2)
        offload()
        (out / OFFLOADED).touch()

    learner._host_offload.offload = late


def skewed(*arguments, **options):
    """Packs rows, and gives the pack a wrong weight in the loss."""
    pack = pack_rows(*arguments, **options)
    return replace(pack, weight=SKEW * pack.weight)


LIVES = {"imitates": (), "goes-on": (2, 4)}
"""Cases of a cold start: the updates after which each of its lives but the last is interrupted."""


def imitates(rank_group, model, out, name):
    """Makes a cold start from the rows and the settings in `out`."""
    sft = SftSection.model_validate_json((out / "sft.json").read_text())
    config = make_config(betas=(0.9, 0.99), weight_decay=0.01, grad_clip=1e9).model_copy(update={"sft": sft})
    order, rows = Order(model=model, out=out / "new", work=out, budget=Budget(updates=5), seed=3), load_rows(out / ROWS)

    def life(end):
        learner = imitator(config, model, rank_group)
        norms = norms_of(learner.stepper.policy)
        kept = States(learner, order) if name == "goes-on" else None
        with suppress(Interrupted):
            train_on_ranks(learner, rows, sft, budget=order.budget, seed=order.seed, states=kept,
                           report=partial(interrupt, end))
        return learner, norms

    for end in LIVES[name]:
        life(end)
    learner, norms = life(None)
    if rank_group.rank:
        learner.follow()
    else:
        (out / name).mkdir()
        torch.save({"weights": weights(learner), "norms": norms}, out / name / "made.pt")
        rank_group.send_command(STOP)


def run(rank, world, nodes, rendezvous, model, out, cases):
    torch.set_num_threads(1)
    store = Rendezvous("127.0.0.1", rank, world).join(rendezvous, 240.0)
    rank_group = RankGroup(rank, world, store, node=str(rank * nodes // world), collective_s=COLLECTIVE_S)
    states.LEAST_S, states.COST = 0.0, math.inf  # one after each update
    for name in cases:
        if name in LIVES:
            imitates(rank_group, Path(model), Path(out), name)
            continue
        memory.GATHERED_BYTES = 0 if name.startswith("in-turn") else 1 << 30
        step.pack_rows = skewed if (name, rank) == ("skewed", 1) else pack_rows
        learner = make_learner(Path(model), rank_group, ranks=world, **(CASES | VARIANTS | WRONG)[name])
        assert learner.layout.shards == (world // nodes if nodes < world else world)
        for group in rank_group.mesh_of(learner.layout.shards).get_all_groups():
            assert group._get_backend(rank_group.device).options._timeout.total_seconds() == COLLECTIVE_S
        folder = Path(out) / name
        folder.mkdir(parents=True, exist_ok=True)
        if rank_group.rank:
            if rank_group.rank == world - 1:
                parks_late(learner, folder)
            learner.follow()
        else:
            lead(learner, folder)
            rank_group.send_command(STOP)
    torch.distributed.destroy_process_group()


def main(world, nodes, rendezvous, model, out, *cases):
    children = []
    for rank in range(int(world)):
        child = os.fork()
        if not child:
            try:
                run(rank, int(world), int(nodes), rendezvous, model, out, cases)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    for _ in children:  # the first death ends all
        _, status = os.wait()
        if status:
            for child in children:
                if child:
                    os.kill(child, 9)
            sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
