"""Utilization of the GPUs by a learner step: model FLOPs per second over the peak in the data sheet.

Only the matrix products that the algorithm needs are counted: 2 FLOPs per weight and token forwards, twice that
backwards (Kaplan et al., arXiv 2001.08361, section 2.1), and causal attention. Recomputed activations do not count.
"""

from __future__ import annotations

import re

import numpy as np
import torch
from torch import nn

from learner.model.policy import Policy
from learner.rows.packing import Rows

PEAKS = {
    "B200": 2250e12, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
    "L4": 121e12, "A10": 125e12,
}
"""Words of a device's name, the more specific ones first -> FLOPs per second of its tensor cores in bfloat16 for dense
matrices. Some data sheets print only twice as many, for sparse ones."""
SLOWER_VARIANTS = ("NVL", "MIG")
"""Words in a device's name for slower variants: boards with less power, and slices of a GPU."""
BACKWARD = 2
"""Cost of a backward pass in forward passes: one for the gradients of inputs, one for those of weights."""


def peak(device: str) -> float | None:
    """Returns a GPU's FLOPs per second in bfloat16, by the words of its name; None if it is not listed."""
    def named(words: str) -> bool:
        return re.search(rf"\b{re.escape(words)}\b", device) is not None

    if any(map(named, SLOWER_VARIANTS)):
        return None
    return next((flops for words, flops in PEAKS.items() if named(words)), None)


def forward_flops(policy: Policy, rows: Rows) -> float:
    """Returns the FLOPs of one forward pass over all rows. The head sees only response tokens."""
    config = policy.hf.config.get_text_config()
    head = policy.hf.get_output_embeddings()
    weights = sum(module.weight.numel() for module in policy.body.modules() if isinstance(module, nn.Linear))
    size = config.num_attention_heads * (getattr(config, "head_dim", None)
                                         or config.hidden_size // config.num_attention_heads)
    lengths = rows.lengths.astype(np.float64)
    # Scores and their product with the values: 2 products of 2 FLOPs, over half of the length x length square.
    attention = 2 * size * config.num_hidden_layers * float((lengths ** 2).sum())
    assert isinstance(head, nn.Linear)
    return 2.0 * weights * lengths.sum() + 2.0 * head.weight.numel() * rows.response_lengths.sum() + attention


def passes(*, reference: bool, critic: bool, adapters: bool = False, updates: int = 1) -> float:
    """Returns the cost of a step with so many updates, in forward passes of the policy.

    It has the logprobs before the step, which the first update's own pass computes; forward and backward passes; the
    reference; and the critic, which is as large as the policy and computes its values before the step. Adapters need no
    gradients of the policy's weights.
    """
    trained = 1 + BACKWARD
    return (1 - 1 / updates) + trained - adapters + (1 + trained if critic else 0) + reference


def utilization(flops: float, seconds: float, *, device: torch.device, ranks: int, half: bool) -> float | None:
    """Returns the utilization in [0, 1]; None on CPUs, in float32, and on GPUs whose peak is not listed."""
    if device.type != "cuda" or not half or not seconds:
        return None
    most = peak(torch.cuda.get_device_name(device))
    return None if most is None else flops / (seconds * ranks * most)
