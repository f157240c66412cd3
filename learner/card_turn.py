"""The learner's side of a card that it shares with a rollout worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from services.errors import DeadlineExceeded
from services.store.card import WANTED, Card
from services.telemetry.heartbeat import Pulse

POLL_S = 0.1


@contextmanager
def card_turn(card: Card, pulse: Pulse, *, check: Callable[[], None], wait_s: float) -> Iterator[None]:
    """Inside, the card is the learner's. Afterwards all that was there for a pass is free for the sampler.

    Raises what `check` raises while it waits, or DeadlineExceeded.
    """
    started = time.monotonic()
    pulse.doing(WANTED)
    card.tell(pulse)
    while not card.take():
        check()
        if time.monotonic() - started > wait_s:
            raise DeadlineExceeded(f"the rollout worker kept the card for over {wait_s:g} s (learner.wait_s)")
        time.sleep(POLL_S)
    pulse.doing("trains, while the sampler sleeps")
    card.tell(pulse)
    try:
        yield
        card.check()
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        card.give()
