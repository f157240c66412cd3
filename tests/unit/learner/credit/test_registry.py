"""The keys that an estimator declares are the keys that it reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_groups import credit_steps, groups, options

from learner.credit.registry import ESTIMATORS, estimator, keys_read
from services.config.tree import CreditSection

OTHER = {"gamma": 0.5, "lam": 0.25, "penalty": 3.0, "penalty_mode": "reward", "normalize": "none", "ddof": 0,
         "bootstrap": True, "broadcast": 2.0, "prior": 7.0, "mode": "mean_norm", "statistics": "trajectories",
         "omega": 3.0}
"""A second value for each key that an estimator itself can read."""
BY_THE_CRITIC = {("ppo", "gamma"), ("ppo", "lam")}
"""The learner reads these where it has the critic's values; learner/critic.py."""
TELLING = [[{"state": s, "reward": 0.0, "invalid": s == "B", "tokens": 1 + i} for i, s in enumerate(text)]
           for text in ("ABC", "ABBD", "ACD", "EA")]
TELLING[0][-1]["reward"] = 10.0
TELLING[2][0]["reward"] = 2.0


def advantages(group, section):
    chosen = estimator(section.estimator)
    credit, = chosen.batch([chosen.group(group, section)], section)
    return credit.advantages


@given(groups, options, st.sampled_from(sorted(ESTIMATORS)))
def test_a_key_that_is_not_read_changes_no_advantage(group, given_options, name):
    before = CreditSection(**given_options, estimator=name)
    unread = OTHER.keys() - keys_read(before)
    after = before.model_copy(update={key: OTHER[key] for key in unread})
    assert advantages(credit_steps(group), after) == advantages(credit_steps(group), before)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_key_that_is_read_changes_some_advantage(name):
    cut = [{"steps": steps, "cut_in": "A" if k == 1 else None} for k, steps in enumerate(TELLING)]
    before = CreditSection(estimator=name)
    for key in keys_read(before) & OTHER.keys():
        if (name, key) not in BY_THE_CRITIC:
            after = before.model_copy(update={key: OTHER[key]})
            assert advantages(credit_steps(cut), after) != advantages(credit_steps(cut), before), key


def test_keys_of_keys_are_read_only_where_their_key_is():
    assert "penalty" not in keys_read(CreditSection(penalty_mode="none"))
    assert "similarity" not in keys_read(CreditSection())
    assert "similarity" in keys_read(CreditSection(state_key="embedding"))
    assert "similarity" not in keys_read(CreditSection(estimator="grpo", state_key="embedding"))
    assert "statistics" not in keys_read(CreditSection())
    assert "statistics" in keys_read(CreditSection(broadcast=0.5))
