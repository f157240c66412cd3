"""Every estimator, mode and switch against the slow oracle, on random groups and on those that are special."""

import numpy as np
import oracle
import pytest
import random_groups
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.credit.registry import ESTIMATORS, estimator, make_options

EXAMPLES = {"gagpo_graph": 100, "gagpo_loo": 150, "gagpo_boot": 150, "adastep": 150, "rlvmr": 300, "hgpo": 150,
            "graphgpo": 150, "graft": 60, "crbc": 60, "graphhca": 60}


def compare(found, expected, field):
    np.testing.assert_allclose(np.concatenate(found), list(expected.values()), rtol=1e-9, atol=1e-7, err_msg=field)


SPECIAL = {
    "repeated states": ["SSSX+", "SXX-", "SSXXX-"],
    "loops": ["SXSXS+", "XSXYXY-", "SXYSXYS+", "YSYS-"],
    "only states that are visited once": ["ABC+", "DEF-", "GH-"],
    "states of one episode between shared ones": ["SUMV+", "SWMEM-", "SM-", "SUUU+"],
    "all won": ["SX+", "SYX+", "SSSS+", "X+"],
    "all lost": ["SX-", "SYX-", "SSSS-", "X-"],
    "all cut": ["SX?", "SYX?", "SSSS?"],
    "equal episodes": ["SX+", "SX+", "SX+"],
    "one episode": ["SXSY+"],
    "one step each": ["S+", "S-", "X-"],
}
SETTINGS = {"gamma": 0.95, "lam": 0.8, "penalty": 0.1, "normalize": "group", "ddof": 1, "broadcast": 0.0,
            "mode": "mean_std_norm", "statistics": "rows", "omega": 1.0, "prior": 2.0, "leave_out": True, "history": 2,
            "alpha": 1.0, "values": "tokens", "decay": 0.5, "spread_floor": 0.1,
            "shrinkage": 2.0, "gate": 4.0}


def test_every_estimator_has_an_oracle():
    assert oracle.BATCHES.keys() == ESTIMATORS.keys()


def equals_the_oracle(name, batch, options):
    section = make_options(estimator=name, **options)
    chosen = estimator(name)
    found = chosen.batch([chosen.group(random_groups.credit_steps(g), section) for g in batch], section)
    for one, expected in zip(found, oracle.credit(name, batch, options), strict=True):
        compare(one.returns, expected["returns"], "returns")
        compare(one.raw_advantages, expected["raw"], "raw_advantages")
        compare(one.advantages, expected["advantages"], "advantages")
        assert (one.deltas is None) == (expected["deltas"] is None)
        if expected["deltas"] is not None:
            compare(one.deltas, expected["deltas"], "deltas")
        assert (one.values is None) == (expected["values"] is None)
        if expected["values"] is not None:
            assert one.values == {s: (pytest.approx(v, abs=1e-9), n) for s, (v, n) in expected["values"].items()}


@pytest.mark.parametrize("case", SPECIAL)
@pytest.mark.parametrize("name", oracle.BATCHES)
def test_special_groups_equal_the_slow_oracle(name, case):
    group = random_groups.written(*SPECIAL[case])
    for mode, bootstrap, scale in (("local", False, "group"), ("reward", True, "group"), ("none", True, "state"),
                                   ("local", False, "state")):
        equals_the_oracle(name, [group], SETTINGS | {
            "penalty_mode": mode, "bootstrap": bootstrap, "normalize": scale})


@pytest.mark.parametrize("name", oracle.BATCHES)
def test_random_groups_equal_the_slow_oracle(name):
    @settings(max_examples=EXAMPLES.get(name, 400), deadline=None)
    @given(st.lists(random_groups.groups, min_size=1, max_size=2), random_groups.options)
    def check(batch, options):
        equals_the_oracle(name, batch, options)

    check()
