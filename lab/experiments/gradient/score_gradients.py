"""Sums of score gradients ∇ log π, of which every policy gradient is made; for measurements, not for training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from learner.model.policy import Policy
from learner.rows.packing import Floats, Rows, pack_rows, split


def score_gradients(policy: Policy, rows: Rows, weights: Sequence[Floats], *,
                    token_budget: int) -> npt.NDArray[np.float32]:
    """Returns for each w of `weights` [E][N] the sum over rows n of w_n ∇ log π(response n), [E, parameters].

    log π of a response is the sum over its tokens, of the tempered distribution. `rows` has N rows. `policy` is on the
    CPU. A pack has at most `token_budget` tokens.
    """
    parameters = [one for one in policy.parameters() if one.requires_grad]
    out = np.zeros((len(weights), sum(one.numel() for one in parameters)), dtype=np.float32)
    (packs,) = split(rows.lengths, 1, token_budget)
    for indices in packs:
        pack = pack_rows(rows, indices)
        logp, _ = policy(pack)
        for e, of_rows in enumerate(weights):
            of_tokens = torch.as_tensor(of_rows[pack.members], dtype=logp.dtype)[pack.row]
            gradients = torch.autograd.grad((of_tokens * logp).sum(), parameters, retain_graph=e + 1 < len(weights))
            out[e] += torch.cat([gradient.flatten() for gradient in gradients]).numpy()
    return out
