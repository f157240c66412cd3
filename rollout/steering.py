"""Which tickets a worker may start at the version it holds, and which version it should hold next. Pure.

- Training follows the pointer, and an update never waits for training episodes: they go on under the new weights.
- An evaluation episode is played at exactly one version, so no update happens while one is in flight.
- A worker that started late, or moved on early, goes back for evaluation tickets of an older version: first it lets
  its training episodes end, which must not be sampled by older weights than their ticket allows.
"""

from __future__ import annotations

from collections.abc import Collection

from services.records import Ticket, Version


def may_start(ticket: Ticket, own: Version, pointer: Version) -> bool:
    """Whether `own` may sample this ticket. `pointer` must have been read after the ticket was claimed.

    A version of an earlier incarnation is never trained on: its steps are not the steps that min_step counts.
    """
    if ticket.exact_version is not None:
        return ticket.exact_version == own
    return own.incarnation == pointer.incarnation and own.step >= ticket.min_step


def next_version(own: Version, pointer: Version, playing: Collection[Ticket], held: Collection[Ticket]) -> Version:
    """The version to load now; `own` means none. `held` tickets are claimed and not started."""
    if any(ticket.exact_version == own for ticket in (*playing, *held)):
        return own
    if own != pointer:
        return pointer
    visits = wanted_elsewhere(own, held)
    training = any(ticket.exact_version is None for ticket in playing)
    return own if not visits or training else min(visits)


def wanted_elsewhere(own: Version, held: Collection[Ticket]) -> set[Version]:
    """Versions other than `own` at which held evaluation tickets must be played."""
    return {t.exact_version for t in held if t.exact_version is not None and t.exact_version != own}
