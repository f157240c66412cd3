"""One rank of a gang: python rank_process.py RANK WORLD RENDEZVOUS MODEL OUT. Two steps, save, load, one more."""

import sys
from pathlib import Path

import torch
from learner_tiny import make_config, make_groups, weights

from learner.gang import Gang
from learner.trainer import Learner


def main(rank, world, rendezvous, model, out):
    gang = Gang(int(rank), int(world), rendezvous)
    learner = Learner(make_config(ranks=int(world)), Path(model), gang)
    if gang.rank:
        learner.follow()
    else:
        reports = [learner.train(make_groups(seed, step=seed)) for seed in range(2)]
        checkpoint = Path(out) / "checkpoint"
        checkpoint.mkdir()
        learner.save(checkpoint)
        torch.save({"weights": weights(learner), "metrics": [r.metrics for r in reports]}, Path(out) / "after.pt")
        learner.train(make_groups(7, step=2))
        learner.load(checkpoint)
        learner.train(make_groups(2, step=2))
        learner.export(Path(out) / "export")
    gang.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
