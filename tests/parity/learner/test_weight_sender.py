"""The learner's side of a transfer by memory that samplers open."""

import torch

from learner.model.policy import load_policy
from learner.weights.sender import WeightSender
from learner.weights.shared_weights import PolicyWeights
from services.weights.shared_memory import imported


def test_versions_that_nobody_reads_do_not_take_memory_again_and_again(model_path, gang):
    """torch frees memory that was offered by CUDA IPC only once a process has opened and closed it: its counter of
    readers begins at 1 (torch/csrc/CudaIPCTypes.cpp). So all versions take the same memory."""
    policy = load_policy(model_path)
    weights = PolicyWeights(policy, torch.float32, rank=0, gathers=True)
    sender = WeightSender(weights, gang, way="ipc", senders=[0])
    first = sender.prepare()
    seen = imported(first.handles[0], gang.device)
    before = seen.clone()
    sender.release()
    with torch.no_grad():
        next(policy.parameters()).add_(1)
    second = sender.prepare()
    assert second.handles == first.handles
    assert second.digest != first.digest
    assert torch.equal(seen, imported(second.handles[0], gang.device))
    assert not torch.equal(seen, before)
    sender.release()
