"""Moments in host memory change no number; a checkpoint fits both ways."""

import torch
from learner_tiny import CASES, critic_weights, make_config, make_groups, weights

from learner.model.trained_model import HostAdamW
from learner.trainer import Learner


def test_updates_checkpoints_and_resumption_are_the_same_to_the_bit(model_path, rank_group, tmp_path):
    options = CASES["critic"]
    plain, host = (Learner(make_config(offload=offload, **options), model_path, rank_group) for offload in (False,
                                                                                                            True))
    for learner in (plain, host):
        for seed in range(2):
            learner.train(make_groups(seed, step=seed))
    host.save(tmp_path).result(60)
    resumed = {offload: Learner(make_config(offload=offload, **options), model_path, rank_group) for offload in (False,
                                                                                                                 True)}
    for learner in resumed.values():
        learner.load(tmp_path)
    assert isinstance(resumed[True].stepper.policy.optimizer, HostAdamW)
    for learner in (plain, host, *resumed.values()):
        learner.train(make_groups(2, step=2))
    for learner in (host, *resumed.values()):
        for found, expected in ((weights(learner), weights(plain)), (critic_weights(learner), critic_weights(plain))):
            assert all(torch.equal(found[name], expected[name]) for name in expected)
