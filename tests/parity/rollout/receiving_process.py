"""A worker without an engine: python receiving_process.py NAME FOLDER [stops]. It tells what it does, line by line.

With `stops` it connects in its first round, and then waits to be killed.
"""

import sys
import time
from pathlib import Path

import torch
from sending_ranks import Registry

from rollout.weights.inbox import RECEIVING, Inbox
from services.process.rendezvous import Rendezvous
from services.weights.checksum import combined
from services.weights.link import Link
from services.weights.registry import Participant

HERE = "127.0.0.1"


def main(name, folder, *stops):
    manager = Registry(address=str(Path(folder) / "registry"), authkey=b"test")
    manager.connect()
    registry, member, inbox = manager.registry(), Participant(worker=name), Inbox(torch.device("cpu"))
    while True:
        found = registry.call(member)
        if found is None:
            time.sleep(0.05)
            continue
        first, world = found.first_receiver(name), len(found.shares) + found.receivers
        if stops:
            rank = len(found.shares) + first
            Link(Rendezvous(HERE, rank, world), found.group, rank=rank, world=world,
                 device=torch.device("cpu")).begin(found.version.name, found.seconds)
            print("connected", flush=True)
            time.sleep(3600)
        inbox.begin(found, first=first, shared_gpu=0, address=HERE)
        while inbox.state()[0] == RECEIVING:
            time.sleep(0.01)
        fault, sums = inbox.state()
        registry.report(name, found.version, fault)
        print(fault or combined(found.manifest, sums), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
