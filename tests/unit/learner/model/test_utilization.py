from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from learner.model.policy import Policy
from learner.model.utilization import forward_flops, passes, peak, utilization
from learner.rows.packing import Rows, pack_rows


def rows_of(prompt: list[int], response: list[int]) -> Rows:
    count, tokens = len(prompt), sum(prompt) + sum(response)
    return Rows(tokens=np.arange(2, 2 + tokens, dtype=np.int32) % 500, sequence=np.arange(len(prompt)),
                prompt_lengths=np.array(prompt), response_lengths=np.array(response),
                sampler_logprobs=np.zeros(sum(response), np.float32),
                advantages=np.ones(count), temperatures=np.ones(count), stale=np.zeros(count, np.bool_),
                ends=np.ones(count, np.bool_))


@pytest.mark.parametrize("tied", [True, False])
def test_multiplications_are_those_that_torch_counts(tiny_model, tied: bool):
    """torch counts attention as a whole square, and a causal row has half of one."""
    model, rows = tiny_model(tied=tied, seed=0), rows_of([30, 30], [10, 10])
    model.set_attn_implementation("gagpo_packed")
    policy = Policy(model)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:  # it does not count the fused kernel
        policy(pack_rows(rows, np.arange(2), torch.device("cpu")))
    half_squares = 2 * 64 * 2 * (40**2 + 40**2)  # heads x width, layers, rows
    assert forward_flops(policy, rows) == counter.get_total_flops() - half_squares


def test_the_number_of_passes_grows_with_reference_and_critic():
    assert passes(reference=False, critic=False) == 3
    assert passes(reference=True, critic=False) == 4
    assert passes(reference=True, critic=True) == 8


def test_all_updates_but_the_first_need_a_pass_for_the_logprobs_before_the_step():
    assert passes(reference=False, critic=False, updates=4) == 3.75


def test_the_peak_is_that_of_the_very_device():
    assert peak("NVIDIA H100 80GB HBM3") == 989e12
    assert peak("NVIDIA H100 PCIe") == 756e12
    assert peak("NVIDIA L40S") == 362e12
    assert peak("NVIDIA A100-SXM4-80GB") == 312e12


@pytest.mark.parametrize("name", [
    "NVIDIA GeForce RTX 3060", "NVIDIA L40", "NVIDIA A10G", "NVIDIA RTX A1000", "NVIDIA GH200 480GB",
    "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"])
def test_a_device_whose_name_only_resembles_a_listed_one_has_no_peak(name):
    """NVL boards run slower than those of the same name, and a MIG slice is not a full GPU."""
    assert peak(name) is None


def test_a_cpu_has_no_utilization():
    assert utilization(1e15, 1.0, device=torch.device("cpu"), ranks=1, half=True) is None


def test_half_of_two_devices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    device = torch.device("cuda", 0)
    assert utilization(624e12, 2.0, device=device, ranks=2, half=True) == 0.5
    assert utilization(624e12, 2.0, device=device, ranks=2, half=False) is None
