"""Parts that estimators and state keys of your own are made of (docs/tasks/own-estimator.md).

    from gagpo.estimators import Credit, CreditOptions, WithinGroup, discounted, states

These names are stable: a test freezes them.
"""

from learner.credit.estimator import WithinGroup
from learner.credit.gagpo import Gagpo
from learner.credit.group_operations import discounted, penalized, states
from learner.credit.options import CreditOptions
from learner.credit.state_keys import Keys, state_key
from learner.credit.types import Credit

__all__ = ["Credit", "CreditOptions", "Gagpo", "Keys", "WithinGroup", "discounted", "penalized", "state_key", "states"]
