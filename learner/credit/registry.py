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
from learner.credit.state_keys import CLUSTERED
from learner.credit.types import NamedEstimator
from services.config.tree import CreditSection
from services.errors import UserError

ESTIMATORS: dict[str, NamedEstimator] = {
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


def estimator(name: str) -> NamedEstimator:
    """Returns the estimator of that name. Raises UserError that lists all names."""
    found = ESTIMATORS.get(name)
    if found is None:
        raise UserError(f"there is no credit estimator {name!r}", f"use one of: {', '.join(ESTIMATORS)}")
    return found


def keys_read(options: CreditSection) -> frozenset[str]:
    """Returns the keys of `learner.credit` that have an effect under these options. Other keys change nothing.

    Raises UserError for an estimator that does not exist.
    """
    read = estimator(options.estimator).reads(options) | {"estimator"}
    if options.penalty_mode == "none":
        read -= {"penalty"}
    if "state_key" in read and options.state_key in CLUSTERED:
        read |= {"similarity"}
    return read
