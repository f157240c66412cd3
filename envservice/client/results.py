"""Reads one element of a server's answer: it is a result, or the problem that becomes a fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from envservice.base import Outcome
from services.errors import EnvFault, ReplayDiverged, UnknownTask
from services.rewards import LARGEST_REWARD, within_reward_limit

FAULTS: Mapping[str, type[EnvFault]] = {
    "replay_diverged": ReplayDiverged, "engine_mismatch": ReplayDiverged, "unknown_task": UnknownTask}
"""Maps the type of a problem to its fault. All others are an EnvFault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Outcome):
    """An outcome with the digest of the game so far."""

    digest: str


def result_of(element: dict[str, Any], where: str) -> Result:
    """Returns the result. Raises the EnvFault of a problem; `where` tells its reader the game, step and server."""
    if "type" in element:
        kind = element["type"]
        raise FAULTS.get(kind, EnvFault)(f"{kind}: {element.get('message')} ({where})")
    try:
        result = msgspec.convert(element, Result)
    except msgspec.ValidationError as error:
        raise EnvFault(f"the answer is not a result: {error} ({where})") from error
    if not within_reward_limit(result.reward):
        raise EnvFault(f"the reward is {result.reward:g}, and at most {LARGEST_REWARD:g} in size is taken ({where})")
    return result
