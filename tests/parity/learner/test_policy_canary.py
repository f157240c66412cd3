"""The learner computes for the canary's prompts what Hugging Face computes with the published weights."""

import numpy as np
import pytest
from learner_tiny import make_config, make_groups

from learner.model.probe import folder_canary
from learner.trainer import Learner
from services.records import Version
from services.weights.canary import ANSWER, PROMPTS, Canary, CanaryCheck, Played


@pytest.mark.parametrize("section", [{}, {"lora": {"rank": 2}, "lr": 1e-2}], ids=["plain", "lora"])
def test_the_canary_is_that_of_the_exported_model_and_changes_with_each_step(section, model_path, rank_group, tmp_path):
    """With adapters the learner adds what they compute, and the export has merged them."""
    learner, found = Learner(make_config(**section), model_path, rank_group), []
    for step in range(2):
        learner.train(make_groups(step, step=step))
        found.append(learner.canary())
        learner.export(tmp_path / str(step))
        expected = folder_canary(tmp_path / str(step), half=False)
        assert np.abs(np.subtract(found[-1].logprobs, expected.logprobs)).max() < 1e-4
        assert found[-1].rounding == pytest.approx(expected.rounding, rel=0.5)
    assert found[0].logprobs != found[1].logprobs
    assert len(found[0].logprobs) == sum(map(len, PROMPTS)) - len(PROMPTS)


def played(canary: Canary, off: float = 0.0, *, written: float = -1.0) -> Played:
    """A sampler whose logprobs differ by so much from the learner's."""
    count = ANSWER * len(PROMPTS)
    return Played(logprobs=[logprob + off for logprob in canary.logprobs], written=[written] * count,
                  read=[-1.0] * count)


def canary(level: float) -> Canary:
    return Canary(logprobs=[level] * 44, rounding=0.01)


def version(step: int, *, incarnation: int = 1) -> Version:
    return Version(incarnation=incarnation, step=step, digest=str(step))


@pytest.mark.parametrize(("first", "later", "noticed"), [
    (0.04, 0.19, False), (0.04, 0.21, True),  # 5 times the first
    (0.001, 0.009, False), (0.001, 0.011, True),  # rounding
    (0.0, float("nan"), True)])
def test_a_later_difference_may_be_five_times_the_first_or_what_rounding_makes(first, later, noticed):
    check = CanaryCheck()
    assert check.fault(version(1), canary(-2.0), played(canary(-2.0), first)) == ""
    assert bool(check.fault(version(2), canary(-3.0), played(canary(-3.0), later))) == noticed


@pytest.mark.parametrize(("gap", "noticed"), [(0.079, False), (0.081, True)])
def test_the_first_difference_may_be_eight_times_the_expected_rounding(gap, noticed):
    fault = CanaryCheck().fault(version(1), canary(-2.0), played(canary(-2.0), gap))
    assert fault == ("its logprobs differ from the learner's by 0.081 nats a token, and rounding explains 0.08"
                     if noticed else "")


def test_logprobs_that_stay_in_every_bit_after_a_step_are_noticed_however_small_the_step():
    check, old = CanaryCheck(), played(canary(-2.0))
    assert check.fault(version(1), canary(-2.0), old) == ""
    assert check.fault(version(1), canary(-2.0001), old) == "", "the same weights, whatever the learner computes"
    assert check.fault(version(2), canary(-2.0002), old) == "its logprobs are in every bit those of the version before"
    assert check.fault(version(2, incarnation=2), canary(-2.0002), old) == "", "another learner's kernels"


def test_an_answer_that_was_written_by_other_weights_than_it_is_read_by_is_noticed():
    """As by a CUDA graph that replays old memory."""
    fault = CanaryCheck().fault(version(1), canary(-2.0), played(canary(-2.0), written=-1.5))
    assert fault == "its logprobs differ from those of its own answers by 0.5 nats a token, and rounding explains 0.08"
