"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) for many small matrices.

torch.optim.Muon orthogonalises one matrix at a time, in bfloat16: for a model of this size that is a sixth of a
training step, and several times that on a processor without bfloat16 arithmetic. Here all matrices of one shape go
through the iteration as one float32 batch. The updates are the same up to rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


def orthogonalize(matrices: Tensor) -> Tensor:
    """Returns nearly the closest (semi-)orthogonal matrices: their singular values are between 0.68 and 1.21.

    Singular values below 0.0015 of the matrix's norm stay smaller. matrices [N, R, C] with R <= C. Uses a Newton-Schulz
    iteration of fifth order.
    """
    a, b, c = _COEFFICIENTS
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum with decoupled weight decay. Raises ValueError for other shapes."""

    def __init__(self, weights: Iterable[Tensor], *, lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        if any(weight.ndim != 2 for group in self.param_groups for weight in group["params"]):
            raise ValueError("Muon takes matrices only")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # no closures
        """Updates every weight that has a gradient once."""
        assert closure is None
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    shapes[tuple(sorted(weight.shape))].append(weight)
            for weights in shapes.values():
                self._update(weights, group["lr"], group["weight_decay"], group["momentum"])

    def _update(self, weights: list[Tensor], lr: float, weight_decay: float, momentum: float) -> None:
        directions = orthogonalize(torch.stack([self._momentum(weight, momentum) for weight in weights]))
        for weight, wide in zip(weights, directions, strict=True):
            rows, columns = weight.shape
            direction = wide.mT if rows > columns else wide
            weight.mul_(1 - lr * weight_decay).add_(direction, alpha=-lr * max(1.0, rows / columns) ** 0.5)

    def _momentum(self, weight: Tensor, momentum: float) -> Tensor:
        """Returns Nesterov's look-ahead of the running mean of gradients, transposed if needed to [R, C], R <= C."""
        assert weight.grad is not None
        mean = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))
        mean.lerp_(weight.grad, 1 - momentum)
        ahead = weight.grad.lerp(mean, momentum)
        return ahead.mT if ahead.shape[0] > ahead.shape[1] else ahead
