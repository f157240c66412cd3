"""Two learner ranks that send weights: python sending_ranks.py WAY MODEL FOLDER. Commands on stdin, answers on stdout.

    train          takes a learner step
    send SECONDS   sends the weights to the members of the registry; answers with their version and whether all hold it
    pack           writes the same weights, packed for host memory, to FOLDER/<step>
"""

import os
import sys
import traceback
from multiprocessing.managers import BaseManager
from pathlib import Path

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "learner"))

from learner_tiny import make_config, make_groups

from learner.rank_group import RankGroup
from learner.trainer import Learner
from learner.weights.sender import WeightSender
from services.config.tree import WeightsSection
from services.process.rendezvous import Rendezvous
from services.records import Version


class Registry(BaseManager):
    """The registry of the test's process."""


Registry.register("registry")


def lead(learner, way, folder):
    manager = Registry(address=str(folder / "registry"), authkey=b"test")
    manager.connect()
    registry = manager.registry()
    sent = []
    """Versions that went through host memory."""
    sender = WeightSender(learner.sender, lambda version, _: sent.append(version), way=way,
                          ask=lambda method, *rest: getattr(registry, method)(*rest))
    for line in sys.stdin:
        command, *rest = line.split()
        answer = {}
        if command == "train":
            learner.train(make_groups(learner.step, step=learner.step))
        elif command == "send":
            sender.seconds = float(rest[0])
            version = sender.snapshot(Version(incarnation=1, step=learner.step))
            sent.clear()
            sender.send(version, lambda _: None)
            answer = {"version": version, "everywhere": not sent}
        elif command == "pack":
            packed = sender.copy().result()
            packed.buffer.tofile(folder / str(learner.step))
            answer = {"manifest": packed.manifest}
        print(msgspec.json.encode(answer).decode(), flush=True)


def run(rank, where, way, model, folder):
    torch.set_num_threads(1)
    rank_group = RankGroup(rank, 2, Rendezvous("127.0.0.1", rank, 2).join(where, 240.0), node="127.0.0.1")
    config = make_config(ranks=2).model_copy(update={"weights": WeightsSection(transfer=way)})
    learner = Learner(config, Path(model), rank_group)
    if rank:
        learner.follow()
    else:
        lead(learner, way, Path(folder))
    rank_group.leave()


def main(way, model, folder):
    where = Rendezvous("127.0.0.1", 0, 2).offer()
    child = os.fork()
    try:
        run(int(child == 0), where, way, model, folder)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
