"""Low-rank adapters (LoRA, arXiv 2106.09685): y = x Wᵀ + s (x Aᵀ) Bᵀ, W frozen, A [r, in], B [out, r], s = alpha / r.

B starts at zero, so the first policy is the model itself. The same layers with their adapters switched off are the
frozen reference, which therefore takes no memory. Samplers and exports get merged weights, W + s B A.

peft is not used: it would also install accelerate, and this file is short.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from services.config.sections import LoraSection
from services.errors import UserError

DOWN, UP = "lora_a", "lora_b"


class LoraLinear(nn.Linear):
    """A linear layer with an adapter next to its frozen weight. Plain layers are converted in place, so names stay."""

    lora_a: nn.Parameter
    """[r, in]."""
    lora_b: nn.Parameter
    """[out, r]."""
    scale: float
    adapted: bool

    def forward(self, input: Tensor) -> Tensor:  # the name is torch's
        plain = super().forward(input)
        if not self.adapted:
            return plain
        return plain + nn.functional.linear(nn.functional.linear(input, self.lora_a), self.lora_b) * self.scale


def add_adapters(body: nn.Module, section: LoraSection, *, seed: int) -> None:
    """Freezes the model and adds an adapter to each layer that `section.targets` names.

    A is drawn from `seed` and the layer's name only, so all ranks draw the same. Raises UserError as `adapted` does.
    """
    body.requires_grad_(False)
    for name, module in adapted(body, section).items():
        _adapt(module, section, _generator(name, seed))


def adapted(body: nn.Module, section: LoraSection) -> dict[str, nn.Linear]:
    """Returns the layers that `section.targets` names, by their names. The model may be empty.

    Raises UserError for a name that no layer has, unless it is a default one: families that fuse layers lack some. Also
    for a head that is tied to the embeddings, because exports omit the head and would lose its adapter.
    """
    owners = Counter(id(weight) for _, weight in body.named_parameters(remove_duplicate=False))
    targets, names = set(section.targets), linear_names(body)
    if targets.isdisjoint(names) or targets.difference(names, LoraSection().targets):
        unknown = ", ".join(sorted(targets.difference(names)))
        raise UserError(f"learner.lora.targets names no layer of this model ({unknown})",
                        f"choose from {', '.join(names)}")
    layers = {name: module for name, module in body.named_modules()
              if isinstance(module, nn.Linear) and name.rpartition(".")[2] in targets}
    for name, module in layers.items():
        if owners[id(module.weight)] > 1:
            raise UserError(f"learner.lora.targets names {name.rpartition('.')[2]}, whose weights are the embeddings "
                            "too here", "leave it out")
    return layers


def linear_names(body: nn.Module) -> list[str]:
    """Returns the last parts of the names of all linear layers."""
    return sorted({name.rpartition(".")[2] for name, module in body.named_modules() if isinstance(module, nn.Linear)})


def _adapt(module: nn.Linear, section: LoraSection, generator: torch.Generator) -> None:
    rank = section.rank
    bound = 1 / math.sqrt(module.in_features)  # kaiming_uniform with a = sqrt(5), as in the authors' code
    drawn = torch.empty(rank, module.in_features).uniform_(-bound, bound, generator=generator)
    module.__class__ = LoraLinear
    adapted = cast(LoraLinear, module)
    adapted.lora_a = nn.Parameter(drawn)
    adapted.lora_b = nn.Parameter(torch.zeros(module.out_features, rank))
    adapted.scale, adapted.adapted = section.alpha / rank, True


def _generator(name: str, seed: int) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Switches the adapters off in its block: the model computes as before it had adapters."""
    layers = [module for module in model.modules() if isinstance(module, LoraLinear)]
    for layer in layers:
        layer.adapted = False
    try:
        yield
    finally:
        for layer in layers:
            layer.adapted = True


def adapter_scale(model: nn.Module) -> float:
    """Returns s of the adapters; 0 if the model has none."""
    return next((module.scale for module in model.modules() if isinstance(module, LoraLinear)), 0.0)


def is_adapter(name: str) -> bool:
    """Whether an entry of the state dict is a part of an adapter."""
    return name.endswith((DOWN, UP))


def merged(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """Returns W + s B A, float32 [out, in]."""
    return weight.float() + scale * (up.float() @ down.float())
