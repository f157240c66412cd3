"""A receiver that joins the links of a round and then stands still: python dying_receiver.py FOLDER. It is killed."""

import sys
import time
from multiprocessing.managers import BaseManager

import torch

from rollout.inbox import Inbox
from services.weights.links import Link
from services.weights.rounds import Participant


class Meeting(BaseManager):
    """The meeting of the test's process."""


Meeting.register("meeting")


def stand_still(*_):
    print("joined", flush=True)
    time.sleep(600)


manager = Meeting(address=f"{sys.argv[1]}/meeting", authkey=b"test")
manager.connect()
meeting = manager.meeting()
Link.broadcast = stand_still
member, inbox = Participant(worker="two", card=1), Inbox(torch.device("cpu"))
while (found := meeting.call(member)) is None:
    print("there", flush=True)
    time.sleep(0.1)
inbox.begin(found, receiver=found.first_receiver("two"), card=1, address="127.0.0.1")
time.sleep(600)
