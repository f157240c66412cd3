"""Estimators by name. A new one is a file beside gagpo.py and a line here."""

from __future__ import annotations

from learner.credit.gagpo import Gagpo
from learner.credit.gagpo_boot import GagpoBootstrapped
from learner.credit.gagpo_loo import GagpoLeaveOneOut
from learner.credit.gigpo import Gigpo
from learner.credit.grpo import Grpo
from learner.credit.ppo import Ppo
from learner.credit.reinforce_pp import ReinforcePlusPlus
from learner.credit.reinforce_pp_baseline import ReinforcePlusPlusBaseline
from learner.credit.rloo import Rloo
from learner.credit.types import Estimator
from services.errors import UserError

ESTIMATORS: dict[str, Estimator] = {
    "gagpo": Gagpo(),
    "gagpo_loo": GagpoLeaveOneOut(),
    "gagpo_boot": GagpoBootstrapped(),
    "gigpo": Gigpo(),
    "grpo": Grpo(),
    "rloo": Rloo(),
    "reinforce_pp": ReinforcePlusPlus(),
    "reinforce_pp_baseline": ReinforcePlusPlusBaseline(),
    "ppo": Ppo(),
}


def estimator(name: str) -> Estimator:
    """The estimator of that name. Raises UserError, listing those that exist."""
    found = ESTIMATORS.get(name)
    if found is None:
        raise UserError(f"there is no credit estimator {name!r}", f"use one of: {', '.join(ESTIMATORS)}")
    return found
