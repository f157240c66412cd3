"""A sharded model with its optimizer, as both policy and critic are."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

from learner.model.host_adamw import HostAdamW
from services.config.tree import LearnerSection
from services.errors import LearnerFault

MAX_SKIPPED = 3
"""Number of consecutive updates with a non-finite gradient that ends the run. A single one may be chance."""

Model = TypeVar("Model", bound=nn.Module)


class Trainee(Generic[Model]):
    """A model and AdamW with the learner's betas, weight decay and gradient clip, and with its own learning rate."""

    def __init__(self, model: Model, section: LearnerSection, *, lr: float) -> None:
        self.model = model
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # The fused update needs no extra copies. CPUs keep the plain update, so that runs repeat their numbers.
        kind = HostAdamW if section.offload else partial(torch.optim.AdamW, fused=self.trained[0].is_cuda or None)
        self.optimizer = kind(self.trained, lr=lr, betas=section.betas, weight_decay=section.weight_decay)
        self.skipped_in_a_row = 0
        self._grad_clip = section.grad_clip

    def update(self) -> float:
        """Clips gradients, takes an optimizer step and clears gradients.

        Returns the gradient norm before clipping, NaN if the update was skipped. Raises LearnerFault if MAX_SKIPPED
        updates in a row are skipped.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self._grad_clip)
        value = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        if math.isfinite(value):
            self.optimizer.step()
            self.skipped_in_a_row = 0
        else:
            self.skipped_in_a_row += 1
        self.optimizer.zero_grad()
        if self.skipped_in_a_row >= MAX_SKIPPED:
            raise LearnerFault(f"the gradient was not finite in {MAX_SKIPPED} updates in a row")
        return value if math.isfinite(value) else math.nan

    def state(self) -> dict[str, Any]:
        """Returns the trained sharded weights and their moments for a checkpoint, with tied weights only once."""
        fresh = not self.optimizer.state
        model, optimizer = get_state_dict(
            self.model, self.optimizer, options=StateDictOptions(ignore_frozen_params=True))
        if fresh:  # torch has made the moments by a step at rate 0, which may not count in the bias correction
            for moments in self.optimizer.state.values():
                moments["step"].zero_()
        every, once = ({name for name, _ in self.model.named_parameters(remove_duplicate=alone)}
                       for alone in (False, True))
        return {"model": {name: value for name, value in model.items() if name not in every - once},
                "optimizer": optimizer}

    def load(self, state: dict[str, Any]) -> None:
        """Loads what `state` returned."""
        model = get_model_state_dict(self.model) | state["model"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=state["optimizer"])
