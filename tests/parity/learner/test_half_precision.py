"""Computing in bfloat16 rounds weights and activations, and nothing of the batch."""

from dataclasses import replace

import numpy as np
import torch
from learner_tiny import make_groups

from learner.model.memory import Layout
from learner.model.policy import empty_policy
from learner.model.sharding import shard
from learner.rows.batch import assign_credit, rows_of
from learner.rows.packing import pack_rows
from services.config.tree import LearnerSection


def test_a_temperature_is_not_rounded_to_bfloat16(model_path, rank_group):
    policy, weights = empty_policy(model_path)
    shard(policy, policy.body, weights, rank_group.mesh, layout=Layout(), half=True)
    groups = make_groups(0)
    rows = rows_of(groups, assign_credit(groups, LearnerSection().credit), policy_step=0)
    pack = pack_rows(rows, np.arange(2))

    def logprobs(temperature: float) -> torch.Tensor:
        with torch.no_grad():
            return policy(replace(pack, temperatures=torch.full_like(pack.temperatures, temperature)))[0]

    rounded = float(torch.tensor(0.4).bfloat16())
    assert rounded == 0.400390625
    assert not torch.equal(logprobs(0.4), logprobs(rounded))
