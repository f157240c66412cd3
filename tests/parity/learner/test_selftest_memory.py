"""The self-test of the learner judges memory by the plan of the learner that it measures, and by nothing before it."""

import weakref

from learner.model.memory import memory, training_of
from learner.selftest.checks import Checks, planned_bytes
from learner.selftest.scene import TINY, groups, write_model


def test_a_learner_that_a_small_gpu_makes_compute_twice_is_held_against_that_plan(model_path, rank_group, monkeypatch):
    checks = Checks(TINY, model_path, rank_group)
    kept = planned_bytes(checks.learner(128))
    monkeypatch.setattr(rank_group, "device_bytes", lambda *_: 1)
    small = checks.learner(128)
    assert small.layout.checkpointing
    assert kept == memory(small.shape, training_of(small.config, critic=False)).total
    assert planned_bytes(small) < kept


def test_a_learner_with_adapters_is_held_against_the_plan_with_adapters(model_path, rank_group):
    checks = Checks(TINY, model_path, rank_group)
    assert planned_bytes(checks.learner(128, lora={"rank": 4})) < planned_bytes(checks.learner(128))


def test_no_learner_holds_memory_while_the_next_is_measured(tmp_path, rank_group):
    checks = Checks(TINY, write_model(TINY, tmp_path / "model", rank_group.device), rank_group)
    before = checks.learner(128)
    before.train(groups(TINY, 2))
    weights = weakref.ref(next(before.policy.parameters()))
    del before
    checks.learner(128)
    assert weights() is None
