"""Every estimator, mode and switch against the slow oracle, on random groups."""

import numpy as np
import oracle
import pytest
import random_groups
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.credit.registry import estimator, make_options

EXAMPLES = {"gagpo": 1000, "gagpo_graph": 100, "adastep": 150, "rlvmr": 300, "hgpo": 150, "graphgpo": 150}


def compare(found, expected, field):
    np.testing.assert_allclose(np.concatenate(found), list(expected.values()), rtol=1e-9, atol=1e-7, err_msg=field)


@pytest.mark.parametrize("name", oracle.BATCHES)
def test_equals_the_slow_oracle(name):
    @settings(max_examples=EXAMPLES.get(name, 400), deadline=None)
    @given(st.lists(random_groups.groups, min_size=1, max_size=2), random_groups.options)
    def check(batch, options):
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

    check()
