"""A worker without an engine: python receiving_process.py NAME FOLDER [stops]. It tells what it does, line by line.

With `stops` it joins the links of its first round, and then waits to be killed.
"""

import sys
import time
from pathlib import Path

import torch
from sending_gang import Meeting

from rollout.transfer.inbox import HELD, RECEIVING, Inbox
from services.weights.links import RoundEnd
from services.weights.rounds import Participant

HERE = "127.0.0.1"


def main(name, folder, *stops):
    manager = Meeting(address=str(Path(folder) / "meeting"), authkey=b"test")
    manager.connect()
    meeting, member, inbox = manager.meeting(), Participant(worker=name), Inbox(torch.device("cpu"))
    while True:
        found = meeting.call(member)
        if found is None:
            time.sleep(0.05)
            continue
        receiver = found.first_receiver(name)
        if stops:
            inbox._linked(found, receiver, HERE, RoundEnd(found.seconds))
            print("linked", flush=True)
            time.sleep(3600)
        inbox.begin(found, receiver=receiver, shared_gpu=0, address=HERE)
        while inbox.state() == RECEIVING:
            time.sleep(0.01)
        meeting.tell(name, found.version, inbox.state().replace(HELD, ""))
        print(inbox.state(), found.version.name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
