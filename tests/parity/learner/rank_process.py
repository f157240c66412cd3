"""One rank of a gang: python rank_process.py RANK WORLD RENDEZVOUS MODEL OUT. In each case two steps, save, load, one
more."""

import sys
from pathlib import Path

import torch
from learner_tiny import CASES, make_config, make_groups, weights

from learner.rank_group import STOP, RankGroup
from learner.rendezvous import Rendezvous
from learner.trainer import Learner


def lead(learner, out):
    reports = [learner.train(make_groups(seed, step=seed)) for seed in range(2)]
    checkpoint = out / "checkpoint"
    checkpoint.mkdir(parents=True)
    learner.save(checkpoint)
    torch.save({"weights": weights(learner), "metrics": [r.metrics for r in reports],
                "advantages": [c.advantages for r in reports for c in r.credits]}, out / "after.pt")
    learner.train(make_groups(7, step=2))
    learner.load(checkpoint)
    learner.train(make_groups(2, step=2))
    learner.export(out / "export")


def main(rank, world, rendezvous, model, out):
    gang = RankGroup(int(rank), int(world), Rendezvous("127.0.0.1", int(rank), int(world)).join(rendezvous, 60.0))
    for name, options in CASES.items():
        learner = Learner(make_config(ranks=int(world), **options), Path(model), gang)
        if gang.rank:
            learner.follow()
        else:
            lead(learner, Path(out) / name)
            gang.tell(STOP)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
