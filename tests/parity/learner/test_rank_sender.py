"""The learner's side of a transfer by memory that samplers open."""

import torch

from learner.model.policy import load_policy
from learner.weights.rank_sender import RankSender
from services.records import Version
from services.weights.registry import Round
from services.weights.shared_memory import imported


def test_versions_that_nobody_reads_do_not_take_memory_again_and_again(model_path, rank_group):
    """torch frees memory that was offered by CUDA IPC only once a process has opened and closed it: its counter of
    readers begins at 1 (torch/csrc/CudaIPCTypes.cpp). So all versions take the same memory."""
    policy = load_policy(model_path)
    sender = RankSender(policy, rank_group, dtype=torch.float32, shards=1, ipc=True)
    first = sender.snapshot()
    seen = imported(first.handles[0], rank_group.device)
    before = seen.clone()
    sender.send(Round(version=Version(incarnation=1, step=1), way="ipc", manifest=first.manifest, shares=first.shares,
                      members=[], seconds=1), str)
    with torch.no_grad():
        next(policy.parameters()).add_(1)
    second = sender.snapshot()
    assert second.handles == first.handles
    assert second.digest != first.digest
    assert torch.equal(seen, imported(second.handles[0], rank_group.device))
    assert not torch.equal(seen, before)
