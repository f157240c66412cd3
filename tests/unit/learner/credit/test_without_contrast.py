"""Groups in which no choice can be compared: no estimator makes credit of its own bias or of rounding."""

from collections.abc import Sequence

import pytest

import gagpo
from learner.credit.group_operations import discounted, has_contrast
from learner.credit.options import RecursionOptions
from learner.credit.registry import ESTIMATORS, estimator, options_of
from learner.credit.types import CreditStep
from services.config.sections import CreditSection

WITHIN = [name for name in ESTIMATORS if name not in ("reinforce_pp", "reinforce_pp_baseline", "ppo")]
"""The others compare with other groups or with a critic."""
THIRDS = (1e10 / 3, -2e10 / 7, 1e10)


def episode(states: str, rewards: Sequence[float], *, invalid: bool = False) -> list[CreditStep]:
    return [CreditStep(state=state, reward=reward, action=f"leave {state}", invalid=invalid and t == 0, tokens=3,
                       tag="explore") for t, (state, reward) in enumerate(zip(states, rewards, strict=True))]


GROUPS = {
    "four won, all alike": [episode("SXYZ", (0, 0, 0, 10.0))] * 4,
    "four lost, all alike": [episode("SXYZ", (0, 0, 0, 0.0))] * 4,
    "won by paths of one length": [episode(path, (0, 0, 10.0)) for path in ("SXZ", "SYZ", "SWZ")],
    "won without a common state": [episode(path, (0, 0, 10.0)) for path in ("ABC", "DEF")],
    "large and hard to add": [episode("SXY", THIRDS)] * 4,
    "equal but for rounding": [episode("SX", (0.0, 0.1 + 0.2)), episode("SX", (0.0, 0.3))],
}


def advantages(name: str, group: list[list[CreditStep]], **given: object) -> list[list[float]]:
    options = options_of(CreditSection(estimator=name, **given))
    chosen = estimator(name)
    return chosen.batch([chosen.group(group, options)], options)[0].advantages


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize("name", WITHIN)
def test_no_estimator_finds_credit_where_nothing_differs(name: str, case: str):
    scales = ("group", "state", "batch", "none") if "normalize" in estimator(name).Options.model_fields else (None,)
    for scale in scales:
        given = {} if scale is None else {"normalize": scale}
        found = [x for row in advantages(name, GROUPS[case], **given) for x in row]
        assert found == pytest.approx([0.0] * len(found), abs=1e-15), scale


@pytest.mark.parametrize("name", ["gagpo_loo", "gagpo_graph"])
def test_the_penalty_is_all_that_is_left(name: str):
    group = [episode("SX", (0, 10.0)), episode("SX", (0, 10.0), invalid=True)]
    assert advantages(name, group) == [[0.0, 0.0], [-0.1, 0.0]]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_logged_group_of_one_episode_has_no_credit(name: str):
    if estimator(name).needs_critic or not getattr(estimator(name), "needs_group", True):
        pytest.skip("it compares with other groups or with a critic")
    if estimator(name).needs_tokens:
        pytest.skip("logs have no tokens")
    loop = [{"state": state, "action": f"leave {state}", "reward": reward, "tag": "explore"}
            for state, reward in zip("SSX", (0, 0, 10), strict=True)]
    assert gagpo.credit({"episodes": [{"steps": loop}]}, estimator=name).advantages == [[0.0, 0.0, 0.0]]


def test_a_group_has_contrast_if_a_state_was_followed_by_different_returns_or_the_beginnings_differ():
    def contrast(group: list[list[CreditStep]], gamma: float = 0.5) -> bool:
        return has_contrast(group, discounted(group, RecursionOptions(gamma=gamma)))

    assert contrast([episode("S", (1.0,)), episode("S", (0.0,))])
    assert contrast([episode("A", (1.0,)), episode("B", (0.0,))])
    assert contrast([episode("SX", (0, 1.0)), episode("SYX", (0, 0, 1.0))])  # the discount prefers the short way
    assert not contrast([episode("SX", (0, 1.0)), episode("SYX", (0, 0, 1.0))], gamma=1.0)
    assert contrast([episode("S", (1e6 + 1e-3,)), episode("S", (1e6,))])
    assert contrast([episode("S", (1e-12,)), episode("S", (0.0,))])
    assert not contrast([episode("S", (1e6,)), episode("S", (1e6 + 1e-10,))])
