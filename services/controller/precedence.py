"""Which members ask for their place on a cluster first: one of each role, then the others.

The learner's ranks need many places together, rollout workers one each. If all workers asked first, Ray would spread
them over all nodes, and the ranks would get what is left of each. After the loss of a node, the lost workers would take
the places that the ranks have just left. If all ranks asked first, there might be no place left for a single worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.controller.watched import Watched


def is_first(one: Watched, among: Iterable[Watched]) -> bool:
    """Whether no other member of its role has a place or asks for one."""
    return all(w is one or w.paused or w.member.role != one.member.role for w in among)


def gives_way(one: Watched, among: Sequence[Watched]) -> bool:
    """Whether a member asks for no place for now, because some other role has no member with a place."""
    placed = {w.member.role for w in among if w.placed or w.finished}
    return not is_first(one, among) and any(w.member.role not in {*placed, one.member.role} for w in among)
